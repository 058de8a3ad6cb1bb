//! The host runs ahead of the device: where mapping is free, plans that are mapped as they go
//! take no longer than if the host never blocked, and those of planners no longer than
//! predicted.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{SimDevice, SimError, SimKernels};
use conformance::chains::chains;
use conformance::graphs::{graphs, machines};
use conformance::plans::cases;
use middleware::{Layer, Layered, LayeredKernels};
use planner_core::backend::{Point, Streams};
use planner_core::planner::{Auto, Lms, Request, Strategy as Planner, Weights, Window};
use planner_core::timeline::PREDICTED_ITERATIONS;
use planner_core::{Graph, Kind, Machine, Part, Step, Stream, Verified};
use proptest::prelude::*;
use spillway::planning;
use workloads::OwnedPlan;

const STRATEGIES: [Planner; 9] = [
    Planner::InCore,
    Planner::OnDemand,
    Planner::Fit,
    Planner::Vdnn,
    Planner::Lms(Lms::new()),
    Planner::Lms(Lms::new().with_threshold(0).with_ahead(0)),
    Planner::Window(Window::new()),
    Planner::Window(Window::new().with_published(true)),
    Planner::Auto(Auto::new().with_effort(9)),
];
const CHAIN_STRATEGIES: [Planner; 3] = [
    Planner::Weights(Weights::new()),
    Planner::Weights(Weights::new().with_published(true)),
    Planner::LayerToLayer,
];

/// A host that never blocks. On a simulated device all work takes effect when it is enqueued,
/// so nothing is unmapped too early.
#[derive(Clone, Copy)]
struct NeverBlocks;

impl Layer<SimDevice> for NeverBlocks {
    type Error = SimError;

    fn reached(&mut self, _: &mut SimDevice, _: Point) -> Result<bool, SimError> {
        Ok(true)
    }

    fn block_until(&mut self, _: &mut SimDevice, _: Point) -> Result<(), SimError> {
        Ok(())
    }
}

/// A host as it is.
#[derive(Clone, Copy)]
struct Blocks;

impl Layer<SimDevice> for Blocks {
    type Error = SimError;
}

/// A device after some iterations.
fn run(
    verified: &Verified<'_>,
    host: impl Layer<SimDevice, Error = SimError>,
    iterations: u64,
) -> SimDevice {
    let graph = *verified.graph();
    let mut device = Layered::new(SimDevice::new(*verified.machine()), host);
    let mut kernels = LayeredKernels(SimKernels::new(graph));
    planning::execute(verified, &mut device, &mut kernels, iterations).unwrap();
    device.device
}

/// When all streams have ended.
fn end_ns(mut device: SimDevice) -> u64 {
    for stream in Stream::ALL {
        let point = device.signal(stream).unwrap();
        device.block_until(point).unwrap();
    }
    device.host_ns()
}

/// How much longer twice as many iterations take.
fn growth_ns(
    verified: &Verified<'_>,
    host: impl Layer<SimDevice, Error = SimError> + Copy,
    iterations: u64,
) -> u64 {
    end_ns(run(verified, host, 2 * iterations)) - end_ns(run(verified, host, iterations))
}

/// From the fourth iteration to the eighth, as predictions have it.
fn period_ns(device: &SimDevice) -> u64 {
    device.period_ns(PREDICTED_ITERATIONS / 2, PREDICTED_ITERATIONS).unwrap()
}

/// How much longer than predicted a period may be if the host never blocks.
///
/// A prediction has all residents at the start; an execution uploads them first, and its
/// eighth iteration ends later by at most these uploads, its fourth no earlier.
fn late_ns(verified: &Verified<'_>) -> u64 {
    let uploads_ns = end_ns(run(verified, NeverBlocks, 0));
    uploads_ns.div_ceil(PREDICTED_ITERATIONS - PREDICTED_ITERATIONS / 2)
}

fn with_verified(
    graph: Graph<'_>,
    machine: Machine,
    plan: &OwnedPlan,
    then: impl FnOnce(&Verified<'_>) -> Result<(), TestCaseError>,
) -> Result<(), TestCaseError> {
    let free = (*machine).with_map_ns_per_chunk(0).with_unmap_ns_per_chunk(0);
    let machine = Machine::new(free).unwrap();
    let plan = plan.plan();
    let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
    then(&planning::prove(&graph, &machine, &plan, &schedule.schedule()).unwrap())
}

fn is_as_predicted(
    graph: Graph<'_>,
    machine: Machine,
    strategies: &[Planner],
    spare_bytes: u64,
) -> Result<(), TestCaseError> {
    let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
    for &strategy in strategies {
        let (min_bytes, _) = planning::min_feasible(&request(0), strategy).unwrap();
        for budget_bytes in [min_bytes, min_bytes + spare_bytes, 16 * min_bytes] {
            let plan = planning::plan(&request(budget_bytes), strategy).unwrap();
            if waits_for_slots(&graph, &plan) {
                continue;
            }
            with_verified(graph, machine, &plan, |verified| {
                let measured_ns = period_ns(&run(verified, Blocks, PREDICTED_ITERATIONS));
                let context = format!("{strategy:?} in {budget_bytes} bytes");
                // An op waits for every resident of a planner's plan. But a prediction whose
                // iterations end with ops on the host does not show that launches are late.
                let uses_host = plan.steps.iter().any(|step| matches!(step, Step::Host(_)));
                let late_ns = if uses_host { late_ns(verified) } else { 0 };
                prop_assert!(measured_ns <= plan.predicted.period_ns + late_ns, "{}", context);
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Whether the host may block for the slot of an input: one that is copied back to it, that is
/// brought in though no op reads it, or that an op on the host reads.
fn waits_for_slots(graph: &Graph<'_>, plan: &OwnedPlan) -> bool {
    let is_input = |part: &Part| graph.tensor(part.tensor).kind == Kind::Input;
    let is_read = |part: &Part| graph.op_ids().any(|op| graph.reads(op).contains(&part.tensor));
    plan.steps.iter().any(|step| match step {
        Step::Offload(part) => is_input(part),
        Step::Prefetch(part) => is_input(part) && !is_read(part),
        Step::Host(op) => {
            graph.reads(*op).iter().any(|&tensor| graph.tensor(tensor).kind == Kind::Input)
        }
        Step::Launch(_) | Step::Evict(_) => false,
    })
}

proptest! {
    #![proptest_config(conformance::seeds::config(256))]
    /// This holds also where streams that no launch waits for are late, which a prediction
    /// leaves out.
    #[test]
    fn a_random_plan_takes_no_longer_than_if_the_host_never_blocked(case in cases()) {
        const ITERATIONS: u64 = 40;
        let graph = case.graph.graph().unwrap();
        prop_assume!(!waits_for_slots(&graph, &case.plan));
        with_verified(graph, case.machine, &case.plan, |verified| {
            let measured_ns = growth_ns(verified, Blocks, ITERATIONS);
            // What comes before the first iteration may hide some of the others.
            let predicted_ns = case.plan.predicted.period_ns * ITERATIONS;
            let least_ns = growth_ns(verified, NeverBlocks, ITERATIONS).max(predicted_ns);
            // One iteration more, since iterations differ.
            prop_assert!(measured_ns <= least_ns + least_ns / ITERATIONS, "above {}", least_ns);
            let unblocked_ns = period_ns(&run(verified, NeverBlocks, PREDICTED_ITERATIONS));
            let longest_ns = case.plan.predicted.period_ns + late_ns(verified);
            prop_assert!(unblocked_ns <= longest_ns, "{} above {}", unblocked_ns, longest_ns);
            Ok(())
        })?;
    }
}

proptest! {
    #![proptest_config(conformance::seeds::config(64))]
    #[test]
    fn the_plans_of_each_strategy_take_no_longer_than_predicted(
        graph in graphs(),
        machine in machines(),
        spare_bytes in 0..4096u64,
    ) {
        is_as_predicted(graph.graph().unwrap(), machine, &STRATEGIES, spare_bytes)?;
    }

    #[test]
    fn the_plans_of_each_strategy_for_chains_take_no_longer_than_predicted(
        chain in chains(6),
        machine in machines(),
        spare_bytes in 0..4096u64,
    ) {
        is_as_predicted(chain.graph().graph().unwrap(), machine, &CHAIN_STRATEGIES, spare_bytes)?;
    }
}
