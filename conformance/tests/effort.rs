//! What more lists make of a plan.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use planner_core::planner::{Auto, Order, Repeats, Request, Strategy};
use spillway::planning;
use workloads::{OwnedPlan, machines};
use zoo::models;

/// A request of a classifier, with the least memory that will do.
fn plan(effort: u32) -> OwnedPlan {
    let work = models::generate("resnet50:batch=64,mode=inference").unwrap();
    let graph = work.graph().unwrap();
    let machine = machines::builtin("v100-nvlink").unwrap().machine;
    let auto = Auto::new().with_order(Order::Given).with_repeats(Repeats::Never);
    let strategy = Strategy::Auto(auto.with_effort(effort));
    let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
    let (budget_bytes, _) = planning::min_feasible(&request(0), strategy).unwrap();
    planning::plan(&request(budget_bytes), strategy).unwrap()
}

#[test]
fn perturbed_lists_are_better_and_the_same_in_every_run() {
    let [few, many, again] = [32, 128, 128].map(plan);
    assert!(many.predicted.period_ns < few.predicted.period_ns);
    assert_eq!(many.steps, again.steps);
}
