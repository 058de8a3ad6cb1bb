//! `auto` launches ops again where that pays, and never where it does not.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use conformance::graphs::{graphs, machines};
use conformance::planners;
use planner_core::planner::{
    Auto, Host, Order, PlanningError, Repeats, Request, Strategy as Planner,
};
use planner_core::{Graph, Kind, Machine, MachineParameters, Step};
use proptest::prelude::*;
use spillway::planning;
use workloads::OwnedGraph;
use workloads::machines::builtin;
use zoo::models::generate;

const fn auto(repeats: Repeats) -> Planner {
    Planner::Auto(
        Auto::new()
            .with_effort(9)
            .with_order(Order::Given)
            .with_repeats(repeats)
            .with_host(Host::Never),
    )
}

/// Returns the period of a plan, or none if the budget is too small. Fails if the plan breaks a rule or changes
/// the order of the ops.
fn period_ns(
    request: &Request<'_>,
    strategy: Planner,
    least_bytes: u64,
) -> Result<Option<u64>, TestCaseError> {
    let plan = planners::check(request, least_bytes, |request| planning::plan(request, strategy));
    let Some(plan) = plan.map_err(TestCaseError::fail)? else { return Ok(None) };
    let firsts = plan.steps.iter().filter_map(|step| match step {
        Step::Launch(launched) => (!launched.is_repeat).then_some(launched.op),
        _ => None,
    });
    prop_assert!(firsts.is_sorted(), "{} changes the order", strategy.name());
    Ok(Some(plan.predicted.period_ns))
}

proptest! {
    #![proptest_config(conformance::seeds::config(256))]
    #[test]
    fn auto_is_no_slower_than_without_repeats_or_with_segments(
        owned in graphs(),
        machine in machines(),
        spare_bytes in 0..4096u64,
    ) {
        let graph = owned.graph().unwrap();
        let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
        let least_bytes = planning::min_feasible(&request(0), auto(Repeats::Allowed)).unwrap().0;
        let request = request(least_bytes + spare_bytes);
        let with = period_ns(&request, auto(Repeats::Allowed), least_bytes)?.unwrap();
        for other in [auto(Repeats::Never), Planner::Checkpoint, Planner::CheckpointOffload] {
            let least_bytes = match planning::min_feasible(&request, other) {
                Err(PlanningError::Stuck) => continue,
                least => least.unwrap().0,
            };
            if let Some(without) = period_ns(&request, other, least_bytes)? {
                prop_assert!(with <= without, "{} after {} of {}", with, without, other.name());
            }
        }
    }
}

/// Neither prices nor segments alone lead to such a plan.
#[test]
fn where_memory_is_very_short_auto_adds_to_segments() {
    let graph = spillway::Graph::new(generate("resnet50:batch=64").unwrap()).unwrap();
    let machine = builtin("v100-pcie3").unwrap();
    let auto = Planner::Auto(Auto::new().with_effort(24));
    let [auto_ns, segments_ns] = [auto, Planner::CheckpointOffload].map(|strategy| {
        let plan = graph.plan(&machine).budget("15%").strategy(strategy).placed(false).run();
        plan.unwrap().owned().predicted.period_ns
    });
    assert!(auto_ns < segments_ns * 3 / 4, "{auto_ns} beside {segments_ns}");
}

/// A row of layers, each with a value that is slow to make and one that follows from it at once;
/// the backward pass reads both.
fn row(layers: u32) -> OwnedGraph {
    let mut graph = OwnedGraph::new("row");
    let mut value = graph.push_tensor("input", 64, Kind::Input);
    let mut made = Vec::new();
    for layer in 0..layers {
        let slow = graph.push_tensor(format!("slow{layer}"), 1024, Kind::Temporary);
        let quick = graph.push_tensor(format!("quick{layer}"), 1024, Kind::Temporary);
        for (name, time_ns, read, written) in
            [("convolve", 1000, value, slow), ("normalise", 10, slow, quick)]
        {
            let op = graph.push_op(format!("{name}{layer}"), time_ns, 0, &[read], &[written]);
            graph.set_repeatable(op);
        }
        made.push([slow, quick]);
        value = quick;
    }
    for (layer, [slow, quick]) in made.into_iter().enumerate().rev() {
        let gradient = graph.push_tensor(format!("gradient{layer}"), 64, Kind::Temporary);
        graph.push_op(format!("back{layer}"), 1000, 0, &[slow, quick], &[gradient]);
    }
    graph
}

fn slow_links() -> Machine {
    Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 20)
            .with_host_bytes(1 << 20)
            .with_chunk_bytes(256)
            .with_h2d_bytes_per_s(100_000_000)
            .with_d2h_bytes_per_s(100_000_000)
            .with_transfer_latency_ns(10),
    )
    .unwrap()
}

fn plan(graph: &Graph<'_>, budget_bytes: u64, strategy: Planner) -> (u64, u64) {
    let machine = slow_links();
    let request = Request { graph, machine: &machine, budget_bytes };
    let predicted = planning::plan(&request, strategy).unwrap().predicted;
    (predicted.period_ns, predicted.repeat_ns)
}

/// Of sixteen layers, what is quick to make is made again, and nothing else.
#[test]
fn what_is_quick_to_make_is_made_again() {
    let owned = row(16);
    let graph = owned.graph().unwrap();
    // All that is slow to make, and three values beside it.
    let budget_bytes = 20 * 1024;
    let (once_ns, _) = plan(&graph, budget_bytes, auto(Repeats::Never));
    let (period_ns, repeat_ns) = plan(&graph, budget_bytes, auto(Repeats::Allowed));
    assert!(repeat_ns > 0 && repeat_ns <= 16 * 10, "{repeat_ns}");
    assert_eq!(period_ns, graph.compute_ns() + repeat_ns);
    assert!(once_ns > period_ns, "{once_ns}");
}

/// An op makes two tensors, of which another op writes one anew: to launch the first op again for
/// the other tensor would overwrite that.
#[test]
fn no_repeat_overwrites_a_newer_value() {
    let mut owned = OwnedGraph::new("overwritten");
    let [one, other] = ["one", "other"].map(|name| owned.push_tensor(name, 1, Kind::Temporary));
    let large = owned.push_tensor("large", 1025, Kind::State);
    let both = owned.push_op("both", 0, 0, &[], &[one, other]);
    owned.set_repeatable(both);
    owned.push_op("large", 0, 0, &[large], &[]);
    owned.push_op("anew", 0, 1, &[], &[one]);
    owned.push_op("read", 0, 0, &[one, other], &[one, other]);
    hold(&owned, 512);
}

/// The device sees a temporary that the host reads as an output. A repeat overwrites it nevertheless.
#[test]
fn no_repeat_overwrites_a_newer_value_that_the_host_reads() {
    let mut owned = OwnedGraph::new("overwritten");
    let names = ["one", "other", "result"];
    let [one, other, result] = names.map(|name| owned.push_tensor(name, 1, Kind::Temporary));
    let large = owned.push_tensor("large", 1025, Kind::State);
    let both = owned.push_op("both", 0, 0, &[], &[other, one]);
    owned.set_repeatable(both);
    owned.push_op("anew", 0, 0, &[], &[one]);
    owned.push_op("large", 0, 0, &[large], &[result]);
    owned.push_op("read", 0, 0, &[other, one], &[other]);
    let read = owned.push_op("read by the host", 692, 0, &[one], &[]);
    owned.set_host_ns(read, 0);
    hold(&owned, 64);
}

/// Plans for little memory keep every rule.
fn hold(owned: &OwnedGraph, chunk_bytes: u64) {
    let graph = owned.graph().unwrap();
    let fast = (*slow_links()).with_chunk_bytes(chunk_bytes).with_transfer_latency_ns(0);
    let machine = Machine::new(fast).unwrap();
    let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
    let by_host = Auto::new().with_effort(9).with_order(Order::Given);
    for strategy in [
        auto(Repeats::Allowed),
        Planner::Auto(by_host),
        Planner::Checkpoint,
        Planner::CheckpointOffload,
    ] {
        let least_bytes = planning::min_feasible(&request(0), strategy).unwrap().0;
        for spare_bytes in [0, chunk_bytes, 2 * chunk_bytes] {
            let request = request(least_bytes + spare_bytes);
            assert!(period_ns(&request, strategy, least_bytes).unwrap().is_some());
        }
    }
}

/// Checkpointing runs whole segments again, and moves nothing.
#[test]
fn checkpointing_runs_segments_again() {
    let owned = row(16);
    let graph = owned.graph().unwrap();
    let (period_ns, repeat_ns) = plan(&graph, 20 * 1024, Planner::Checkpoint);
    assert!(repeat_ns > 0);
    assert_eq!(period_ns, graph.compute_ns() + repeat_ns);
    let machine = slow_links();
    let request = Request { graph: &graph, machine: &machine, budget_bytes: 4 * 1024 };
    let error = planning::plan(&request, Planner::Checkpoint).unwrap_err();
    assert!(matches!(error, PlanningError::Infeasible { min_feasible_bytes, .. }
        if min_feasible_bytes > 4 * 1024 && min_feasible_bytes <= 20 * 1024));
}
