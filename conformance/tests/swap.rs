//! The swap planner's steps, followed by hand, in one class whose objects are one chunk each;
//! and the least budget that it needs.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[allow(dead_code, reason = "this test has strategies of its own")]
use crate::chain;
use crate::chain::CHUNK_BYTES;
use conformance::graphs::{graphs, machines};
use planner_core::plan::Pool;
use planner_core::planner::swap::Threshold;
use planner_core::planner::{PlanningError, Request};
use planner_core::{Kind, PlanError};
use proptest::prelude::*;
use spillway::swapping::{self, Swap};
use workloads::OwnedGraph;

fn plan(graph: &OwnedGraph, objects: u64, threshold: Threshold) -> String {
    let classes = vec![Pool { object_bytes: CHUNK_BYTES, count: objects }];
    let swap = Swap::default().with_classes(classes).with_threshold(threshold);
    chain::list(graph, objects, |request: &Request<'_>| swapping::plan(request, &swap).unwrap())
}

/// Figure 3: all tensors have unit size, and there are four units of memory.
fn figure_3() -> OwnedGraph {
    let mut graph = OwnedGraph::new("figure 3");
    let mut add = |name: &str, kind| graph.push_tensor(name, CHUNK_BYTES, kind);
    let [w1, w2, w3] = ["W1", "W2", "W3"].map(|name| add(name, Kind::State));
    let [a1, a2, a3] = ["A1", "A2", "A3"].map(|name| add(name, Kind::Temporary));
    graph.push_op("op1", 100, 0, &[w1], &[a1]);
    graph.push_op("op2", 100, 0, &[w2, a1], &[a2]);
    graph.push_op("op3", 100, 0, &[w3, a1, a2], &[a3]);
    graph
}

/// `W1` frees memory for `W3`, which comes in as soon as `op1` has ended, and `W2` for `A3`. The
/// first pass leaves `W3` on the device; in the second it gives way to `A2`, so that none is
/// there at the start.
#[test]
fn parameters_give_way_as_in_figure_3() {
    let plan = plan(&figure_3(), 4, Threshold::Ns(0));
    assert_eq!(plan, "+W1 +W2 [op1] -W1 +W3 [op2] -W2 [op3] -W3 -A1 -A2 -A3");
}

/// With an object more, what the first pass leaves stays from one iteration to the next.
#[test]
fn what_is_left_at_the_end_is_there_at_the_start() {
    let plan = plan(&figure_3(), 5, Threshold::Ns(0));
    assert_eq!(plan, "W1 W3 +W2 [op1] [op2] -W2 [op3] -A1 -A2 -A3");
}

/// `W2` is used next later than `W1`; but it has just been used.
#[test]
fn what_was_just_used_stays() {
    let plan = plan(&figure_3(), 5, Threshold::Ns(50));
    assert_eq!(plan, "W2 W3 +W1 [op1] -W1 [op2] [op3] -A1 -A2 -A3");
}

/// Weights that were updated are copied before their memory is freed, and activations too.
#[test]
fn what_the_host_does_not_hold_is_copied() {
    let plan = plan(&chain::chain(), 5, Threshold::Ns(0));
    assert_eq!(
        plan,
        "w0 w1 w2 [F0] >w0 [F1] >a0 -w0 [F2] -a0 [B2] -a2 +a0 [B1] -a1 +w0 [B0] -d -a0"
    );
}

proptest! {
    #![proptest_config(conformance::seeds::config(256))]
    /// On a host that is too small, more has to stay on the device; where that does not help,
    /// no budget does.
    #[test]
    fn the_least_budget_is_enough_and_less_is_not(
        graph in graphs(),
        machine in machines(),
        share in 0..=64u64,
    ) {
        let graph = graph.graph().unwrap();
        let all_bytes: u64 = graph.tensors().iter().map(|tensor| tensor.bytes).sum();
        let machine = machine.with_host_bytes(all_bytes * share / 64);
        let swap = Swap::default();
        let planned = |budget_bytes| {
            swapping::plan(&Request { graph: &graph, machine: &machine, budget_bytes }, &swap)
        };
        let request = Request { graph: &graph, machine: &machine, budget_bytes: 0 };
        let (least_bytes, _) = swapping::min_feasible(&request, &swap).unwrap();
        let is_short = |planned| {
            matches!(planned, Err(PlanningError::Plan(PlanError::HostMemory { .. })))
        };
        match planned(least_bytes) {
            Ok(plan) => prop_assert_eq!(plan.budget_bytes, least_bytes),
            short => prop_assert!(is_short(short) && is_short(planned(machine.device_bytes))),
        }
        if let Some(less_bytes) = least_bytes.checked_sub(machine.chunk_bytes) {
            prop_assert!(planned(less_bytes).is_err());
        }
    }
}

#[test]
fn the_least_budget_holds_the_objects_of_classes_that_are_given() {
    let graph = chain::chain();
    let graph = graph.graph().unwrap();
    let classes = vec![Pool { object_bytes: CHUNK_BYTES, count: 9 }];
    let swap = Swap::default().with_classes(classes).with_threshold(Threshold::Ns(0));
    let request = Request { graph: &graph, machine: &chain::MACHINE, budget_bytes: 0 };
    let (least_bytes, _) = swapping::min_feasible(&request, &swap).unwrap();
    assert_eq!(least_bytes, 9 * CHUNK_BYTES);
    assert!(swapping::plan(&Request { budget_bytes: least_bytes, ..request }, &swap).is_ok());
}
