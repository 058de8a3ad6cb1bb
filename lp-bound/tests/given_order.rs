//! Compares the linear program with optima worked out by hand.
#![cfg(feature = "highs")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use lp_bound::{Error, Options, Pages, period_ns};
use planner_core::{Kind, Machine, MachineParameters, OpId};
use workloads::OwnedGraph;

/// Links of one byte per nanosecond in each direction.
const MACHINE: Machine = {
    let Ok(machine) = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 40)
            .with_host_bytes(1 << 40)
            .with_chunk_bytes(1 << 10)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000),
    ) else {
        panic!("the machine is not sound")
    };
    machine
};

fn bound_ns(graph: &OwnedGraph, budget_bytes: u64, pages: Option<Pages>) -> u64 {
    period_ns(&graph.graph().unwrap(), &MACHINE, budget_bytes, Options { pages }).unwrap().period_ns
}

/// A value that is written, kept while two others are written and die, and used at the end.
fn kept_value(bytes: u64, middle_bytes: u64, middle_ns: u64) -> OwnedGraph {
    let mut graph = OwnedGraph::new("kept");
    let kept = graph.push_tensor("kept", bytes, Kind::Temporary);
    let other = graph.push_tensor("other", middle_bytes, Kind::Temporary);
    graph.push_op("make", 1000, 0, &[], &[kept]);
    graph.push_op("middle", middle_ns, 0, &[], &[other]);
    graph.push_op("use", 1000, 0, &[kept], &[]);
    graph
}

#[track_caller]
fn assert_close(found_ns: u64, optimum_ns: u64) {
    assert!(found_ns <= optimum_ns && found_ns + 3 >= optimum_ns, "{found_ns} of {optimum_ns}");
}

#[test]
fn a_stall_is_what_must_leave_and_come_back_around_an_op() {
    let graph = kept_value(6000, 5000, 4000);
    assert_close(bound_ns(&graph, 11_000, None), 6000);
    // 4000 bytes must leave the device, and nothing can move while the middle op runs.
    assert_close(bound_ns(&graph, 7000, None), 6000 + 2 * 4000);
}

#[test]
fn what_has_a_copy_on_the_host_leaves_for_nothing() {
    let mut graph = OwnedGraph::new("weights");
    let weights = ["a", "b"].map(|name| graph.push_tensor(name, 8000, Kind::State));
    graph.push_op("first", 1000, 0, &[weights[0]], &[]);
    graph.push_op("second", 1000, 0, &[weights[1]], &[]);
    // Memory is too small to upload anything while an op runs.
    assert_close(bound_ns(&graph, 8000, None), 2000 + 2 * 8000);
    assert_close(bound_ns(&graph, 16_000, None), 2000);
}

#[test]
fn one_copy_serves_both_gaps_of_a_value() {
    let mut graph = OwnedGraph::new("two gaps");
    let kept = graph.push_tensor("kept", 6000, Kind::Temporary);
    let others = ["a", "b"].map(|name| graph.push_tensor(name, 6000, Kind::Temporary));
    graph.push_op("make", 0, 0, &[], &[kept]);
    graph.push_op("first", 0, 0, &[], &[others[0]]);
    graph.push_op("read", 0, 0, &[kept], &[]);
    graph.push_op("second", 0, 0, &[], &[others[1]]);
    graph.push_op("use", 0, 0, &[kept], &[]);
    assert_close(bound_ns(&graph, 6000, None), 3 * 6000);
}

#[test]
fn a_last_page_is_a_whole_page_of_memory() {
    let pages = Some(Pages { page_bytes: 1024, least_bytes: 512 });
    let graph = kept_value(1024 + 600, 3000, 0);
    // Three pages beside the other's three are one too many for five; the cheapest to move
    // is the last one of the kept value, which has 600 bytes.
    assert_close(bound_ns(&graph, 4 << 10, pages), 2000 + 2 * 600);
    assert_close(bound_ns(&graph, 5 << 10, pages), 2000);
    assert_close(bound_ns(&graph, 4 << 10, None), 2000 + 2 * 528);
}

#[test]
fn an_op_that_does_not_fit_is_named() {
    let graph = kept_value(100, 500, 0);
    let found = period_ns(&graph.graph().unwrap(), &MACHINE, 499, Options::default());
    assert_eq!(found, Err(Error::Infeasible { op: OpId(1), needed_bytes: 500 }));
}
