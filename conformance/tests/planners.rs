//! The planner suite, for every strategy there is.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{SimDevice, SimKernels, reference_digest};
use conformance::chains::chains;
use conformance::graphs::{graphs, machines};
use conformance::planners;
use planner_core::planner::swap::Threshold;
use planner_core::planner::{
    Auto, Groups, Lms, Order, PlanningError, Request, Strategy as Planner, Weights, Window,
};
use planner_core::{Graph, Machine};
use proptest::prelude::*;
use spillway::planning;
use spillway::swapping::{self, Swap};
use workloads::OwnedPlan;

const STRATEGIES: [(&str, Planner); 18] = [
    ("in-core", Planner::InCore),
    ("on-demand", Planner::OnDemand),
    ("fit", Planner::Fit),
    ("groups, the last of three", Planner::Groups(Groups::new().with_size(3).with_leaving(1))),
    (
        "groups, all and far ahead",
        Planner::Groups(Groups::new().with_size(0).with_leaving(u32::MAX).with_ahead(u32::MAX)),
    ),
    ("vdnn", Planner::Vdnn),
    ("lms", Planner::Lms(Lms::new())),
    ("lms, nothing stays", Planner::Lms(Lms::new().with_threshold(0).with_ahead(0))),
    ("lms, 2 ops ahead", Planner::Lms(Lms::new().with_threshold(3).with_ahead(2))),
    ("lms, far ahead", Planner::Lms(Lms::new().with_threshold(u32::MAX).with_ahead(u32::MAX))),
    ("window", Planner::Window(Window::new())),
    ("window, published", Planner::Window(Window::new().with_published(true))),
    ("window of 700 bytes", Planner::Window(Window::new().with_bytes(700))),
    ("auto", Planner::Auto(Auto::new().with_effort(9))),
    (
        "auto, in the given order",
        Planner::Auto(Auto::new().with_effort(9).with_order(Order::Given)),
    ),
    ("auto, first list", Planner::Auto(Auto::new().with_effort(0))),
    ("checkpoint", Planner::Checkpoint),
    ("checkpoint-offload", Planner::CheckpointOffload),
];
const PERTURBED: [(&str, Planner); 1] =
    [("auto, perturbed", Planner::Auto(Auto::new().with_effort(40).with_order(Order::Given)))];
const THRESHOLDS: [(&str, Threshold); 3] = [
    ("swap", Threshold::RoundTrip),
    ("swap at any time", Threshold::Ns(0)),
    ("swap, nothing rests", Threshold::Ns(u64::MAX)),
];
const CHAIN_STRATEGIES: [(&str, Planner); 5] = [
    ("weights", Planner::Weights(Weights::new())),
    ("weights, published", Planner::Weights(Weights::new().with_published(true))),
    ("weights, undiscounted", Planner::WeightsUndiscounted),
    ("layer-to-layer", Planner::LayerToLayer),
    ("auto", Planner::Auto(Auto::new().with_effort(9))),
];
const ITERATIONS: u64 = 8;

type Planning = Box<dyn Fn(&Request<'_>) -> Result<OwnedPlan, PlanningError>>;

/// Runs a plan in adversarial order; the digest must be that of the graph.
fn run(graph: Graph<'_>, machine: Machine, plan: &OwnedPlan, seed: u64) -> Result<(), String> {
    let plan = plan.plan();
    let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
    let schedule = schedule.schedule();
    let verified = planning::prove(&graph, &machine, &plan, &schedule).unwrap();
    let mut device = SimDevice::adversarial(machine, seed);
    let mut kernels = SimKernels::new(graph);
    planning::execute(&verified, &mut device, &mut kernels, ITERATIONS)
        .map_err(|error| error.to_string())?;
    match kernels.digest(&device).map_err(|error| error.to_string())? {
        digest if digest == reference_digest(&graph, ITERATIONS) => Ok(()),
        _ => Err("the digest is not that of the graph".into()),
    }
}

fn hold(
    graph: Graph<'_>,
    machine: Machine,
    strategies: &[(&str, Planner)],
    spare_bytes: u64,
    seed: u64,
) -> Result<(), TestCaseError> {
    let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
    let plain = strategies.iter().map(|&(name, strategy)| {
        let (min_bytes, _) = planning::min_feasible(&request(0), strategy).unwrap();
        let planner: Planning = Box::new(move |request| planning::plan(request, strategy));
        (name, min_bytes, planner)
    });
    let swaps = THRESHOLDS.map(|(name, threshold)| {
        let swap = Swap::default().with_threshold(threshold);
        let (min_bytes, _) = swapping::min_feasible(&request(0), &swap).unwrap();
        let planner: Planning = Box::new(move |request| swapping::plan(request, &swap));
        (name, min_bytes, planner)
    });
    for (name, min_bytes, planner) in plain.into_iter().chain(swaps) {
        for budget_bytes in [min_bytes.saturating_sub(1), min_bytes, min_bytes + spare_bytes] {
            let plan = planners::check(&request(budget_bytes), min_bytes, &planner);
            let context = format!("{name} at {budget_bytes} of at least {min_bytes} bytes");
            let plan = plan.map_err(|error| TestCaseError::fail(format!("{context}: {error}")))?;
            if let Some(plan) = plan {
                run(graph, machine, &plan, seed)
                    .map_err(|error| TestCaseError::fail(format!("{context}: {error}")))?;
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(conformance::seeds::config(256))]
    #[test]
    fn every_strategy_keeps_every_rule(
        graph in graphs(),
        machine in machines(),
        spare_bytes in 0..4096u64,
        seed in any::<u64>(),
    ) {
        hold(graph.graph().unwrap(), machine, &STRATEGIES, spare_bytes, seed)?;
    }

}

proptest! {
    #![proptest_config(conformance::seeds::config(32))]
    #[test]
    fn lists_that_chance_changes_keep_every_rule(
        graph in graphs(),
        machine in machines(),
        spare_bytes in 0..4096u64,
        seed in any::<u64>(),
    ) {
        hold(graph.graph().unwrap(), machine, &PERTURBED, spare_bytes, seed)?;
    }
}

proptest! {
    // Each tries a hundred ways to move parts of weights.
    #![proptest_config(conformance::seeds::config(48))]
    #[test]
    fn every_strategy_for_chains_keeps_every_rule(
        chain in chains(6),
        pages in machines(),
        is_exact in any::<bool>(),
        spare_bytes in 0..4096u64,
        seed in any::<u64>(),
    ) {
        let owned = chain.graph();
        let exact = chain.machine().unwrap().machine.with_device_bytes(1 << 30);
        let machine = if is_exact { exact } else { pages };
        hold(owned.graph().unwrap(), machine, &CHAIN_STRATEGIES, spare_bytes, seed)?;
    }
}
