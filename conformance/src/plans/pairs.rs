//! Two valid plans with the same states, to switch between.

use super::{placements, predicted_by_ledger, random_plan};
use crate::choices::{Choices, choices};
use crate::graphs::{checked, graphs, legal_order, machines};
use planner_core::switch::SharedState;
use planner_core::{Kind, Machine, TensorId};
use proptest::prelude::*;
use workloads::{OwnedGraph, OwnedPlan};

/// Two plans for one machine, and the states that they share.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The machine that runs both.
    pub machine: Machine,
    /// The first graph and plan.
    pub from: (OwnedGraph, OwnedPlan),
    /// The second graph and plan.
    pub to: (OwnedGraph, OwnedPlan),
    /// The pairs of states that both graphs share.
    pub states: Vec<SharedState>,
}

impl Pair {
    /// The same pair with names for all tensors. The two tensors of a shared state have equal
    /// names.
    #[must_use]
    pub fn named(mut self) -> Self {
        name(&mut self.from.0, self.states.iter().map(|state| state.from));
        name(&mut self.to.0, self.states.iter().map(|state| state.to));
        self
    }
}

/// Names all tensors. Shared states are named by their number.
fn name(graph: &mut OwnedGraph, states: impl Iterator<Item = TensorId>) {
    for (number, name) in graph.tensor_names.iter_mut().enumerate() {
        *name = format!("other {number}");
    }
    for (number, state) in states.enumerate() {
        if let Some(name) = graph.tensor_names.get_mut(state.index()) {
            *name = format!("state {number}");
        }
    }
}

/// Plans for two graphs with the same states, each in its own order. Some states belong to no op.
/// One plan in three has fixed objects.
pub fn pairs() -> impl Strategy<Value = Pair> {
    let keys = proptest::collection::vec(any::<u16>(), 10);
    (graphs(), graphs(), machines(), keys, choices(2600)).prop_map(
        |(mut from, mut to, machine, keys, choices)| {
            let states = share_states(&mut from, &mut to, &keys);
            plan_both(machine, from, to, states, choices)
        },
    )
}

/// Two plans for the same graph.
pub fn pairs_of_one_graph() -> impl Strategy<Value = Pair> {
    (graphs(), machines(), choices(2600)).prop_map(|(graph, machine, choices)| {
        let states = states(&graph).into_iter().map(|id| SharedState { from: id, to: id });
        let states = states.collect();
        plan_both(machine, graph.clone(), graph, states, choices)
    })
}

fn states(graph: &OwnedGraph) -> Vec<TensorId> {
    let tensors = (0..).map(TensorId).zip(&graph.tensors);
    tensors.filter(|(_, tensor)| tensor.kind == Kind::State).map(|(id, _)| id).collect()
}

/// Gives the states of both graphs the same sizes, and adds to each graph the states that only the
/// other has. With keys, the pairs are in another order than the tensors.
fn share_states(from: &mut OwnedGraph, to: &mut OwnedGraph, keys: &[u16]) -> Vec<SharedState> {
    let (ours, mut theirs) = (states(from), states(to));
    let key = |id: &TensorId| keys.get(id.index()).copied();
    theirs.sort_by_key(key);
    let mut shared = Vec::new();
    for at in 0..ours.len().max(theirs.len()) {
        let (one, other) = (ours.get(at).copied(), theirs.get(at).copied());
        let bytes = |graph: &OwnedGraph, id: TensorId| graph.tensors[id.index()].bytes;
        let state = match (one, other) {
            (Some(one), Some(other)) => {
                to.tensors[other.index()].bytes = bytes(from, one);
                SharedState { from: one, to: other }
            }
            (Some(one), None) => {
                let bytes = bytes(from, one);
                SharedState { from: one, to: to.push_tensor("unused", bytes, Kind::State) }
            }
            (None, other) => {
                let other = other.unwrap_or(TensorId(0));
                let bytes = bytes(to, other);
                SharedState { from: from.push_tensor("unused", bytes, Kind::State), to: other }
            }
        };
        shared.push(state);
    }
    shared
}

fn plan_both(
    machine: Machine,
    from: OwnedGraph,
    to: OwnedGraph,
    states: Vec<SharedState>,
    mut choices: Choices,
) -> Pair {
    let mut plan = |graph: &OwnedGraph| {
        let mut choices = choices.fork(1300);
        let keys: Vec<u16> = (0..12).map(|_| choices.below(5) as u16).collect();
        let order = legal_order(&checked(graph), &keys);
        let iterations = choices.pick(&[0, 0, 1, 3]).unwrap_or(0);
        let plan = random_plan(&checked(graph), &machine, &order, &mut choices.fork(900));
        if iterations == 0 {
            return plan;
        }
        let graph = checked(graph);
        let plan = placements::place(&graph, &machine, plan, iterations, &mut choices);
        predicted_by_ledger(plan, &graph, &machine)
    };
    let plans = [plan(&from), plan(&to)];
    let [one, other] = plans;
    Pair { machine, from: (from, one), to: (to, other), states }
}
