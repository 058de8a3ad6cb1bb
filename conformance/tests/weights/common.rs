//! The strategies for chains, and a plan and a run of each.
#![allow(dead_code, reason = "each test program uses its own part")]

use backend_sim::{SimDevice, SimKernels, reference_digest};
use planner_core::planner::{PlanningError, Request, Strategy, Weights};
use planner_core::{Graph, Machine};
use spillway::planning;
use workloads::{OwnedChain, OwnedPlan};

pub(crate) const PUBLISHED: Strategy = Strategy::Weights(Weights::new().with_published(true));
pub(crate) const BETTER: Strategy = Strategy::Weights(Weights::new());
pub(crate) const WITH_ACTIVATIONS: Strategy =
    Strategy::Weights(Weights::new().with_activations(true));
pub(crate) const ALL: [Strategy; 5] =
    [PUBLISHED, BETTER, WITH_ACTIVATIONS, Strategy::WeightsUndiscounted, Strategy::LayerToLayer];

/// What a chain strategy makes of a chain in its own memory: its cycle, and a plan.
pub(crate) fn plan(
    chain: &OwnedChain,
    strategy: Strategy,
) -> Result<(u64, OwnedPlan), PlanningError> {
    let owned = chain.graph();
    let graph = owned.graph().unwrap();
    let machine = chain.machine().unwrap().machine;
    let request = Request { graph: &graph, machine: &machine, budget_bytes: chain.device_bytes };
    let cycle_ns = planning::cycle_ns(&request, strategy)?;
    Ok((cycle_ns.unwrap_or(u64::MAX), planning::plan(&request, strategy)?))
}

/// Proves a plan and runs it.
pub(crate) fn run(chain: &OwnedChain, plan: &OwnedPlan) {
    let owned = chain.graph();
    run_graph(owned.graph().unwrap(), chain.machine().unwrap().machine, plan);
}

pub(crate) fn run_graph(graph: Graph<'_>, machine: Machine, plan: &OwnedPlan) {
    const ITERATIONS: u64 = 3;
    let plan = plan.plan();
    let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
    let schedule = schedule.schedule();
    planning::check_prediction(&graph, &machine, &plan, &schedule).unwrap();
    let verified = planning::prove(&graph, &machine, &plan, &schedule).unwrap();
    let mut device = SimDevice::adversarial(machine, 7);
    let kernels = &mut SimKernels::new(graph);
    planning::execute(&verified, &mut device, kernels, ITERATIONS).unwrap();
    assert_eq!(kernels.digest(&device).unwrap(), reference_digest(&graph, ITERATIONS));
}
