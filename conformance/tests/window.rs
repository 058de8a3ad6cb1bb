//! The window's steps on a chain of three layers, followed by hand through figure 2 of the
//! paper: four chunks of memory, each variable one chunk.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use planner_core::planner::{Request, Strategy, Window};
use planner_core::{Kind, Machine, Step};
use workloads::{OwnedGraph, planning};

const CHUNK_BYTES: u64 = 256;

/// Forward `F0` to `F2`, then backward: each `B` reads the activation and updates the
/// weight in place; `d` is the gradient that runs through.
fn chain() -> OwnedGraph {
    let mut graph = OwnedGraph::new("chain");
    let mut add = |name: &str, kind| graph.push_tensor(name, CHUNK_BYTES, kind);
    let w = ["w0", "w1", "w2"].map(|name| add(name, Kind::State));
    let a = ["a0", "a1", "a2"].map(|name| add(name, Kind::Temporary));
    let d = add("d", Kind::Temporary);
    graph.push_op("F0", 100, 0, &[w[0]], &[a[0]]);
    graph.push_op("F1", 100, 0, &[a[0], w[1]], &[a[1]]);
    graph.push_op("F2", 100, 0, &[a[1], w[2]], &[a[2]]);
    graph.push_op("B2", 100, 0, &[a[2], w[2]], &[w[2], d]);
    graph.push_op("B1", 100, 0, &[d, a[1], w[1]], &[w[1], d]);
    graph.push_op("B0", 100, 0, &[d, a[0], w[0]], &[w[0]]);
    graph
}

/// Steps as `+in`, `>copy out`, `-evict` and `[op]`; first what is resident at start.
fn plan(budget_chunks: u64, window: Window) -> String {
    let owned = chain();
    let graph = owned.graph().unwrap();
    let machine = Machine {
        device_bytes: 1 << 30,
        host_bytes: 1 << 30,
        chunk_bytes: CHUNK_BYTES,
        h2d_bytes_per_s: 2_560_000_000,
        d2h_bytes_per_s: 2_560_000_000,
        transfer_latency_ns: 0,
        map_ns_per_chunk: 0,
        unmap_ns_per_chunk: 0,
    };
    let budget_bytes = budget_chunks * CHUNK_BYTES;
    let request = Request { graph: &graph, machine: &machine, budget_bytes };
    let plan = planning::plan(&request, Strategy::Window(window)).unwrap();
    let name = |tensor: planner_core::TensorId| &owned.tensor_names[tensor.index()];
    let start = plan.resident_at_start.iter().map(|entry| name(entry.part.tensor).clone());
    let steps = plan.steps.iter().map(|step| match *step {
        Step::Launch(op) => format!("[{}]", owned.op_names[op.index()]),
        Step::Prefetch(part) => format!("+{}", name(part.tensor)),
        Step::Offload(part) => format!(">{}", name(part.tensor)),
        Step::Evict(part) => format!("-{}", name(part.tensor)),
    });
    start.chain(steps).collect::<Vec<_>>().join(" ")
}

fn window(chunks: u64, published: bool) -> Window {
    Window { bytes: Some(chunks * CHUNK_BYTES), published }
}

/// A window of one variable: each op finds its own and no more. The oldest swap-out makes
/// room, and a variable that is used again before that stays.
#[test]
fn the_smallest_window_covers_the_running_op() {
    assert_eq!(
        plan(4, window(1, false)),
        "w0 w1 [F0] >a0 [F1] >a1 -w0 +w2 -a0 [F2] >a2 -w1 [B2] -a2 >w2 >d +w1 \
         [B1] -a1 >d >w1 +a0 -w2 +w0 [B0] -d -a0 >w0"
    );
}

/// As published, what the host holds already is copied all the same.
#[test]
fn the_published_variant_copies_clean_values() {
    assert_eq!(
        plan(4, window(1, true)),
        "w0 w1 [F0] >w0 >a0 [F1] >a0 >w1 >a1 -w0 +w2 -a0 [F2] >a1 >w2 >a2 -w1 [B2] -a2 \
         >w2 >d +w1 [B1] -a1 >d >w1 +a0 -w2 +w0 [B0] -d -a0 >w0"
    );
}

/// A window of four variables: what is in it again is not swapped out (figure 2d), `a0` and
/// `a1` after the ops that write them and `d` after both of its.
#[test]
fn a_wider_window_keeps_what_comes_again() {
    assert_eq!(
        plan(4, window(4, false)),
        "w0 w1 [F0] >w0 [F1] >a0 -w0 +w2 -a0 [F2] >a1 -w1 [B2] -a2 >w2 +w1 [B1] -a1 >w1 \
         +a0 -w2 +w0 [B0] -d -a0"
    );
}
