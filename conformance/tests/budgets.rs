//! More memory never makes `auto` slower, and all that an in-core plan needs is enough for one.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::graphs::{graphs, machines};
use conformance::planners;
use planner_core::Machine;
use planner_core::planner::{Auto, Request, Strategy as Planner};
use proptest::prelude::*;
use spillway::figures::Needs;
use spillway::{Budget, planning};
use workloads::{OwnedGraph, OwnedPlan};

const AUTO: Planner = Planner::Auto(Auto::new().with_effort(1));

/// Plans from the least memory upwards, each budget `step_bytes` above the one before.
fn climb(graph: &OwnedGraph, machine: Machine, step_bytes: u64) -> Result<(), TestCaseError> {
    let graph = graph.graph().unwrap();
    let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
    let (min_bytes, _) = planning::min_feasible(&request(0), AUTO).unwrap();
    let mut less: Option<OwnedPlan> = None;
    for step in 0..6 {
        let request = request(min_bytes + step * step_bytes);
        let plan = planners::check(&request, min_bytes, |request| {
            planning::plan_with_more(request, AUTO, less.as_ref())
        });
        let plan = plan.map_err(TestCaseError::fail)?.unwrap();
        prop_assert_eq!(plan.budget_bytes, request.budget_bytes);
        if let Some(less) = less {
            let (period_ns, before_ns) = (plan.predicted.period_ns, less.predicted.period_ns);
            prop_assert!(period_ns <= before_ns, "{} after {}", period_ns, before_ns);
        }
        less = Some(plan);
    }
    Ok(())
}

proptest! {
    #[test]
    fn more_memory_is_never_slower(
        graph in graphs(),
        machine in machines(),
        step_bytes in 1..1024u64,
    ) {
        climb(&graph, machine, step_bytes)?;
    }

    #[test]
    fn all_of_the_memory_is_enough_in_core(
        graph in graphs(),
        machine in machines(),
        percent in 100..150u128,
    ) {
        let graph = graph.graph().unwrap();
        let machine = machine.with_device_bytes(u64::MAX);
        let needs = Needs::of(&graph, &machine, None).unwrap();
        let bytes = |milli| Budget::MilliPercent(milli).bytes(&needs);
        let budget_bytes = bytes(1000 * percent);
        let request = Request { graph: &graph, machine: &machine, budget_bytes };
        let plan = planning::plan(&request, Planner::InCore);
        prop_assert!(plan.is_ok(), "{:?} in {} bytes", plan.err(), budget_bytes);
        prop_assert!(bytes(99_999) <= needs.in_core_peak_bytes);
    }
}
