//! More memory never makes `auto` slower, and all that an in-core plan needs is enough for one.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::graphs::{graphs, machines};
use conformance::planners;
use planner_core::planner::{Auto, Request, Strategy as Planner};
use planner_core::{Kind, Machine, MachineParameters};
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
    #![proptest_config(conformance::seeds::config(256))]
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

/// In the least memory, small tensors take the last chunk. In another order of the ops they take two chunks, so that
/// `auto`, which tries that order for lists with repeats, returned the error of that order.
#[test]
fn an_order_that_does_not_fit_is_left_out() {
    let mut graph = OwnedGraph::new("dropout");
    let [batch, hidden, norm, mean, scale, gelu, mask, dropped] =
        [192, 384, 384, 64, 64, 384, 384, 384]
            .map(|bytes| graph.push_tensor("temporary", bytes, Kind::Temporary));
    let states = [512, 64, 8, 64, 64, 64, 64, 64, 4];
    let [weight, bias, count, running_mean, running_var, scales, shifts, last, last_bias] =
        states.map(|bytes| graph.push_tensor("state", bytes, Kind::State));
    let result = graph.push_tensor("result", 24, Kind::Output);
    let generator = graph.push_tensor("generator", 5056, Kind::State);
    let before = graph.push_tensor("generator before", 5056, Kind::Temporary);
    let mut push = |workspace_bytes, reads: &[_], writes: &[_], is_repeatable| {
        let op = graph.push_op("op", 1000, workspace_bytes, reads, writes);
        if is_repeatable {
            graph.set_repeatable(op);
        }
    };
    push(0, &[], &[batch], true);
    push(10_112, &[], &[generator], false);
    push(0, &[bias, batch, weight], &[hidden], true);
    push(8, &[count], &[count], false);
    let norms = [running_mean, running_var, norm, mean, scale];
    push(192, &[hidden, scales, shifts, running_mean, running_var], &norms, true);
    push(0, &[norm], &[gelu], true);
    push(0, &[generator], &[before], false);
    push(10_112, &[before], &[mask, generator], true);
    push(12, &[mask], &[mask], true);
    push(0, &[gelu, mask], &[dropped], true);
    push(0, &[last_bias, dropped, last], &[result], false);
    push(10_112, &[generator], &[], false);
    let parameters = MachineParameters::new()
        .with_chunk_bytes(4096)
        .with_device_bytes(1 << 30)
        .with_host_bytes(1 << 30)
        .with_h2d_bytes_per_s(5_000_000_000)
        .with_d2h_bytes_per_s(5_000_000_000);
    let (graph, machine) = (graph.graph().unwrap(), Machine::new(parameters).unwrap());
    let request = Request { graph: &graph, machine: &machine, budget_bytes: 32 << 10 };
    let auto = Planner::Auto(Auto::new());
    assert_eq!(planning::min_feasible(&request, auto).unwrap().0, request.budget_bytes);
    planning::plan(&request, auto).unwrap();
}
