//! Every strategy on graphs of real models: a plan that is proved safe and computes what the
//! graph says, or the smallest budget, named.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{SimDevice, SimKernels, reference_digest};
use conformance::seeds;
use planner_core::planner::{Auto, Lms, Order, PlanningError, Request, Strategy, Window};
use planner_core::{Graph, Machine};
use spillway::{placing, planning};
use std::process::ExitCode;
use test_harness::shared;
use workloads::{OwnedGraph, OwnedPlan, format, machines};

const ITERATIONS: u64 = 2;

fn main() -> ExitCode {
    test_harness::with_shared(
        &["graphs"],
        &[
            (
                "recorded_graphs_are_planned_proved_and_run",
                recorded_graphs_are_planned_proved_and_run,
            ),
            ("autos_plans_are_placed_over_pcie", || autos_plans_are_placed("v100-pcie3")),
            ("autos_plans_are_placed_over_nvlink", || autos_plans_are_placed("v100-nvlink")),
            ("little_of_the_budget_is_wasted", little_of_the_budget_is_wasted),
            ("the_given_order_is_tried_in_the_least_memory", the_given_order_is_tried),
        ],
    )
}

fn graphs() -> Vec<OwnedGraph> {
    let graphs = format::load_graphs(&shared("graphs")).unwrap().unwrap();
    assert!(!graphs.is_empty());
    graphs
}

/// Plans, proves, runs and compares; none where the budget is too small.
fn holds(
    graph: Graph<'_>,
    machine: Machine,
    budget_bytes: u64,
    strategy: Strategy,
) -> Option<OwnedPlan> {
    let request = Request { graph: &graph, machine: &machine, budget_bytes };
    match planning::plan(&request, strategy) {
        Err(PlanningError::Infeasible { min_feasible_bytes, .. }) => {
            assert!(min_feasible_bytes > budget_bytes);
            None
        }
        plan => {
            let plan = plan.unwrap();
            run(graph, machine, &plan);
            Some(plan)
        }
    }
}

/// Proves a plan and runs it, in an adversarial order; a plan with placements maps nothing
/// on the way.
fn run(graph: Graph<'_>, machine: Machine, owned: &OwnedPlan) {
    let plan = owned.plan();
    let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
    let schedule = schedule.schedule();
    planning::check_prediction(&graph, &machine, &plan, &schedule).unwrap();
    let verified = planning::prove(&graph, &machine, &plan, &schedule).unwrap();
    let mut device = SimDevice::adversarial(machine, plan.budget_bytes);
    let mut set_up = 0;
    let (device, kernels) = (&mut device, &mut SimKernels::new(graph));
    planning::with_executor(&verified, device, kernels, |mut executor, device, kernels| {
        set_up = device.counters().map_calls;
        executor.run(device, kernels, ITERATIONS)?;
        executor.save_states(device)
    })
    .unwrap();
    assert_eq!(kernels.digest(device).unwrap(), reference_digest(&graph, ITERATIONS));
    if plan.placements.is_some() {
        let counters = device.counters();
        assert_eq!((counters.map_calls, counters.unmap_calls), (set_up, 0));
    }
}

/// The budgets of a graph: shares of what it needs in-core, and the least for a strategy.
fn budgets(graph: &Graph<'_>, machine: &Machine, strategy: Strategy) -> (Vec<u64>, u64) {
    let peak_bytes = planning::in_core_peak_bytes(graph, machine).unwrap();
    let request = Request { graph, machine, budget_bytes: 0 };
    let (min_bytes, _) = planning::min_feasible(&request, strategy).unwrap();
    let shares = [75, 50, 35, 25].map(|percent| peak_bytes / 100 * percent);
    (shares.into_iter().chain([min_bytes]).collect(), min_bytes)
}

/// The budgets that a test takes, of all works that it counts.
fn taken(budgets: Vec<u64>, works: &mut impl Iterator<Item = u64>) -> Vec<u64> {
    let numbered = budgets.into_iter().zip(works);
    numbered.filter(|&(_, at)| seeds::takes(at)).map(|(budget_bytes, _)| budget_bytes).collect()
}

fn recorded_graphs_are_planned_proved_and_run() {
    let machine = machines::builtin("v100-pcie3").unwrap().machine;
    let mut works = 0..;
    for owned in graphs() {
        let graph = owned.graph().unwrap();
        for strategy in [
            Strategy::Window(Window::default()),
            Strategy::OnDemand,
            Strategy::Fit,
            Strategy::Vdnn,
            Strategy::Lms(Lms::default()),
        ] {
            let (budgets, min_bytes) = budgets(&graph, &machine, strategy);
            for budget_bytes in taken(budgets, &mut works) {
                let planned = holds(graph, machine, budget_bytes, strategy).is_some();
                assert_eq!(planned, budget_bytes >= min_bytes, "{} {strategy:?}", owned.name);
            }
        }
    }
}

/// Auto's plans hold as well, and nearly all of them get placements, with as many objects as they hold at
/// their peak and at a cost of at most a hundredth of the period.
fn autos_plans_are_placed(machine: &str) {
    let strategy = Strategy::Auto(Auto::default());
    let (mut planned, mut placed) = (0, 0);
    let machine = machines::builtin(machine).unwrap().machine;
    let mut works = 0..;
    for owned in graphs() {
        let graph = owned.graph().unwrap();
        let (budgets, min_bytes) = budgets(&graph, &machine, strategy);
        for budget_bytes in taken(budgets, &mut works) {
            let plan = holds(graph, machine, budget_bytes, strategy);
            assert_eq!(plan.is_some(), budget_bytes >= min_bytes, "{}", owned.name);
            let Some(plan) = plan else { continue };
            planned += 1;
            let most_ns = plan.predicted.period_ns / 100 * 101;
            match placing::place(&graph, &machine, &plan, most_ns) {
                Ok(plan) => {
                    run(graph, machine, &plan);
                    placed += u32::from(plan.predicted.period_ns <= most_ns);
                }
                Err(error) => println!("{} at {budget_bytes}: {error}", owned.name),
            }
        }
    }
    assert!(planned > 0);
    assert!(placed * 100 >= planned * 95, "only {placed} of {planned} plans are placed");
}

/// At 50 % and 12 GB/s each way: on average over the steps, at most 3 % of the budget.
fn little_of_the_budget_is_wasted() {
    let machine = &machines::builtin("v100-pcie3").unwrap().machine;
    let graphs = graphs();
    for name in ["inception-v3-b64", "resnet50_et"] {
        let graph = graphs.iter().find(|graph| graph.name == name).unwrap().graph().unwrap();
        let budget_bytes = planning::in_core_peak_bytes(&graph, machine).unwrap() / 2;
        let request = Request { graph: &graph, machine, budget_bytes };
        let (plan, _) = placing::plan(&request, Strategy::Auto(Auto::default())).unwrap();
        let plan = plan.plan();
        let schedule = planning::schedule(&graph, machine, &plan).unwrap();
        let checked = planning::check_prediction(&graph, machine, &plan, &schedule.schedule());
        let mean_bytes = checked.unwrap().1.mean_internal_waste_bytes;
        assert!(mean_bytes <= budget_bytes / 100 * 3, "{name}: {mean_bytes} of {budget_bytes}");
    }
}

/// In the least memory of this graph, lists with repeats fit only in the given order, but lists
/// without repeats are shorter in another order.
fn the_given_order_is_tried() {
    let (graphs, machine) = (graphs(), machines::builtin("v100-pcie3").unwrap());
    let owned = graphs.iter().find(|graph| graph.name == "resnet152-b32").unwrap();
    let graph = owned.graph().unwrap();
    let request = Request { graph: &graph, machine: &machine.machine, budget_bytes: 0 };
    let (budget_bytes, _) = planning::min_feasible(&request, Strategy::Auto(Auto::new())).unwrap();
    let [free, given] = [Order::Free, Order::Given].map(|order| {
        let strategy = Strategy::Auto(Auto::new().with_order(order));
        planning::plan(&Request { budget_bytes, ..request }, strategy).unwrap().predicted.period_ns
    });
    assert!(free <= given + given / 50, "{free} {given}");
}
