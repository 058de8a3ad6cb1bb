//! Random valid plans, and corruptions of them.

mod homes;
mod mutate;
mod pairs;
mod placements;
mod sequence;
mod walk;

use crate::choices::{Choices, choices};
use crate::graphs::{checked, graphs, legal_order, machines};
use crate::ledger::{Judgement, Prediction, measure};
use planner_core::plan::Pool;
use planner_core::{Graph, Machine, OpId};
use proptest::prelude::*;
use sequence::Sequence;
use workloads::{OwnedGraph, OwnedPlan};

pub use mutate::mutate;
pub use pairs::{Pair, pairs, pairs_of_one_graph};

/// The same plan with the predictions that the ledger finds exact, and no more host memory than the
/// machine has. Unchanged if the ledger refuses the plan.
#[must_use]
pub fn predicted_by_ledger(mut plan: OwnedPlan, graph: &Graph<'_>, machine: &Machine) -> OwnedPlan {
    if let Ok(Judgement { prediction, .. }) = measure(graph, machine, &plan.plan()) {
        let host_bytes = prediction.host_bytes.min(machine.host_bytes);
        plan.predicted = Prediction { host_bytes, ..prediction };
    }
    plan
}

/// A graph, a machine, and a plan for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The graph.
    pub graph: OwnedGraph,
    /// The machine that runs it.
    pub machine: Machine,
    /// The plan.
    pub plan: OwnedPlan,
}

/// Valid plans for random graphs. One in three has fixed physical objects.
pub fn cases() -> impl Strategy<Value = Case> {
    prop_oneof![2 => unplaced_cases().boxed(), 1 => placed_cases().boxed()]
}

/// Valid plans without placements. Half of them run the ops in another order than the graph.
pub fn unplaced_cases() -> impl Strategy<Value = Case> {
    let keys = prop_oneof![Just(Vec::new()), proptest::collection::vec(any::<u16>(), 12)];
    (graphs(), machines(), keys, choices(1200)).prop_map(|(graph, machine, keys, mut choices)| {
        let order = legal_order(&checked(&graph), &keys);
        let plan = random_plan(&checked(&graph), &machine, &order, &mut choices);
        Case { graph, machine, plan }
    })
}

/// Valid plans with fixed physical objects for one to three iterations.
pub fn placed_cases() -> impl Strategy<Value = Case> {
    (unplaced_cases(), 1..=3u32, choices(500)).prop_map(|(case, iterations, mut choices)| {
        let (graph, machine) = (checked(&case.graph), case.machine);
        let placed = placements::place(&graph, &machine, case.plan, iterations, &mut choices);
        let plan = predicted_by_ledger(placed, &graph, &machine);
        Case { graph: case.graph, machine, plan }
    })
}

/// Plans with fixed physical objects, and the same plans with other objects, or more or fewer of
/// them, which are seldom valid.
pub fn misplaced_cases() -> impl Strategy<Value = (Case, OwnedPlan)> {
    (placed_cases(), choices(8)).prop_map(|(case, mut choices)| {
        let mut misplaced = case.plan.clone();
        mutate::corrupt_placements(&mut misplaced, &mut choices);
        (case, misplaced)
    })
}

/// Plans with one corruption each. Some of them are still valid.
pub fn mutated_cases() -> impl Strategy<Value = Case> {
    (cases(), choices(8)).prop_map(|(case, mut choices)| {
        let plan = mutate(&checked(&case.graph), &case.machine, &case.plan, &mut choices);
        Case { plan, ..case }
    })
}

/// Plans on machines whose host memory is between no bytes and a slot for each tensor. No plan
/// states more host memory than the machine has.
pub fn cases_on_small_hosts() -> impl Strategy<Value = Case> {
    (cases(), 0..=64u64).prop_map(|(mut case, share)| {
        let host_bytes = case.plan.predicted.host_bytes * share / 64;
        case.plan.predicted.host_bytes = host_bytes;
        case.machine = case.machine.with_host_bytes(host_bytes);
        case
    })
}

/// A valid plan for the graph with its ops in `order`. It is a walk of random legal steps that ends
/// in the state in which it began. Some repeatable ops run more than once, and some ops run on the
/// host. Pools have from just enough objects to so many that released memory is not needed for
/// several iterations.
#[must_use]
pub fn random_plan(
    graph: &Graph<'_>,
    machine: &Machine,
    order: &[OpId],
    choices: &mut Choices,
) -> OwnedPlan {
    let mut spares = choices.fork(10);
    let mut places = choices.fork(12);
    let repeats = choices.fork(40);
    let launches = || Sequence::random(graph, order, &mut repeats.clone());
    let any = launches().with_some_on_host(false, &mut places.clone());
    let plan = walked_plan(graph, machine, &any, &mut spares.clone(), &mut choices.clone());
    if measure(graph, machine, &plan.plan()).is_ok() {
        return predicted_by_ledger(plan, graph, machine);
    }
    let safe = launches().with_some_on_host(true, &mut places);
    let plan = walked_plan(graph, machine, &safe, &mut spares, choices);
    // A plan that the ledger refuses gets predictions of zero, so that a property test sees it
    // refused and shrinks it.
    predicted_by_ledger(plan, graph, machine)
}

/// The plan of a walk over the launches of a sequence.
fn walked_plan(
    graph: &Graph<'_>,
    machine: &Machine,
    sequence: &Sequence<'_>,
    spares: &mut Choices,
    choices: &mut Choices,
) -> OwnedPlan {
    let homes = homes::Homes::choose(graph, machine, sequence, &mut choices.fork(80));
    let walked = walk::walk(graph, sequence, &homes, choices);
    let pools: Vec<Pool> = homes
        .pools_object_bytes
        .iter()
        .zip(&walked.use_of_pools)
        .map(|(&object_bytes, used)| Pool {
            object_bytes,
            count: used.peak + spare(used.allocated, spares),
        })
        .collect();
    let rounded = |bytes: u64| bytes.next_multiple_of(machine.chunk_bytes);
    let pools_bytes: u64 = pools.iter().map(|pool| rounded(pool.object_bytes * pool.count)).sum();
    let slack_bytes = spares.below(3) as u64 * machine.chunk_bytes / 2;
    let mut plan = OwnedPlan::new(pools, walked.resident_at_start, walked.steps);
    plan.budget_bytes = rounded(homes.arena_bytes) + pools_bytes + slack_bytes;
    (plan.arena, plan.arena_bytes) = (homes.arena, homes.arena_bytes);
    (plan.tensor_pool, plan.workspace_pool) = (homes.tensor_pool, homes.workspace_pool);
    plan
}

/// Objects beyond the peak: none, a few, or as many as several iterations allocate.
fn spare(allocated: u64, choices: &mut Choices) -> u64 {
    match choices.below(3) {
        0 => 0,
        1 => 1 + choices.below(4) as u64,
        _ => allocated * (1 + choices.below(8) as u64),
    }
}
