//! Valid plans at random, and corruptions of them.

mod homes;
mod mutate;
mod walk;

use crate::choices::{Choices, choices};
use crate::graphs::{RandomGraph, graphs, legal_order, machines};
use crate::ledger::{Prediction, measure};
use planner_core::plan::{ArenaPlacement, Pool, Resident};
use planner_core::{Graph, Machine, OpId, Plan, Step};
use proptest::prelude::*;

pub use mutate::mutate;

/// A plan that owns its data.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RandomPlan {
    /// Device memory that arena and pools may take together.
    pub budget_bytes: u64,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// What lies in the arena.
    pub arena: Vec<ArenaPlacement>,
    /// The pools.
    pub pools: Vec<Pool>,
    /// The pool of each tensor; empty when all are in pool 0.
    pub tensor_pool: Vec<u32>,
    /// The pool of each op's workspace; empty when all are in pool 0.
    pub workspace_pool: Vec<u32>,
    /// What is on the device when an iteration starts.
    pub resident_at_start: Vec<Resident>,
    /// The steps, in list order.
    pub steps: Vec<Step>,
    /// What the plan promises.
    pub predicted: Prediction,
}

impl RandomPlan {
    /// The plan as its users take it.
    #[must_use]
    pub fn plan(&self) -> Plan<'_> {
        Plan {
            budget_bytes: self.budget_bytes,
            arena_bytes: self.arena_bytes,
            arena: &self.arena,
            pools: &self.pools,
            tensor_pool: &self.tensor_pool,
            workspace_pool: &self.workspace_pool,
            resident_at_start: &self.resident_at_start,
            steps: &self.steps,
            predicted: self.predicted,
        }
    }

    /// The same plan with the predictions that the ledger finds exact; unchanged where the
    /// ledger refuses it.
    #[must_use]
    pub fn predicted_by_ledger(self, graph: &Graph<'_>, machine: &Machine) -> Self {
        match measure(graph, machine, &self.plan()) {
            Ok(judgement) => Self { predicted: judgement.prediction, ..self },
            Err(_) => self,
        }
    }
}

/// A graph, a machine, and a plan for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The work.
    pub graph: RandomGraph,
    /// Where it runs.
    pub machine: Machine,
    /// What moves when.
    pub plan: RandomPlan,
}

/// Valid plans for random graphs, half of them with the ops in an order of their own.
pub fn cases() -> impl Strategy<Value = Case> {
    let keys = prop_oneof![Just(Vec::new()), proptest::collection::vec(any::<u16>(), 12)];
    (graphs(), machines(), keys, choices(800)).prop_map(|(graph, machine, keys, mut choices)| {
        let order = legal_order(&graph.graph(), &keys);
        let plan = random_plan(&graph.graph(), &machine, &order, &mut choices);
        Case { graph, machine, plan }
    })
}

/// Plans with one corruption each. Some are valid all the same.
pub fn mutated_cases() -> impl Strategy<Value = Case> {
    (cases(), choices(8)).prop_map(|(case, mut choices)| {
        let plan = mutate(&case.graph.graph(), &case.machine, &case.plan, &mut choices);
        Case { plan, ..case }
    })
}

/// A valid plan for the graph with its ops in this order: a walk of random legal steps that
/// ends where it began. Pools have from just enough objects to so many that memory that is
/// given back is not needed for several iterations.
#[must_use]
pub fn random_plan(
    graph: &Graph<'_>,
    machine: &Machine,
    order: &[OpId],
    choices: &mut Choices,
) -> RandomPlan {
    let mut spares = choices.fork(10);
    let homes = homes::Homes::choose(graph, machine, order, &mut choices.fork(80));
    let walked = walk::walk(graph, order, &homes, choices);
    let pools: Vec<Pool> = homes
        .pools_object_bytes
        .iter()
        .zip(&walked.use_of_pools)
        .map(|(&object_bytes, used)| Pool {
            object_bytes,
            count: used.peak + spare(used.allocated, &mut spares),
        })
        .collect();
    let rounded = |bytes: u64| bytes.next_multiple_of(machine.chunk_bytes);
    let pools_bytes: u64 = pools.iter().map(|pool| rounded(pool.object_bytes * pool.count)).sum();
    let slack_bytes = spares.below(3) as u64 * machine.chunk_bytes / 2;
    let plan = RandomPlan {
        budget_bytes: rounded(homes.arena_bytes) + pools_bytes + slack_bytes,
        arena_bytes: homes.arena_bytes,
        arena: homes.arena,
        pools,
        tensor_pool: homes.tensor_pool,
        workspace_pool: homes.workspace_pool,
        resident_at_start: walked.resident_at_start,
        steps: walked.steps,
        predicted: Prediction::default(),
    };
    // A plan that the ledger refuses is handed out with predictions of zero, so that a
    // property test sees it refused and shrinks it.
    plan.predicted_by_ledger(graph, machine)
}

/// Objects beyond the peak: none, a few, or what several iterations allocate.
fn spare(allocated: u64, choices: &mut Choices) -> u64 {
    match choices.below(3) {
        0 => 0,
        1 => 1 + choices.below(4) as u64,
        _ => allocated * (1 + choices.below(4) as u64),
    }
}
