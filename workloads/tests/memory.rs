//! Reading, checking and importing take O(n) memory in the size of the files.
#![allow(unsafe_code, reason = "counting bytes takes a global allocator")]
// The lint knows test functions, not what they call.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use spillway::planning;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use workloads::format::{read_graph, read_plan};
use workloads::machines::builtin;
use workloads::pytorch::{Device, import};

struct Counting;

thread_local! {
    /// Bytes that this thread holds, and the most it has held.
    static HELD: Cell<[isize; 2]> = const { Cell::new([0; 2]) };
}

fn hold(bytes: isize) {
    // A thread that ends counts no more.
    let _ = HELD.try_with(|held| {
        let [now, most] = held.get();
        held.set([now + bytes, most.max(now + bytes)]);
    });
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        hold(layout.size() as isize);
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        hold(-(layout.size() as isize));
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// The most bytes held at once beside what is there before.
fn most_bytes<T>(made: &T, run: impl Fn(&T)) -> isize {
    let [before, _] = HELD.get();
    HELD.set([before; 2]);
    run(made);
    HELD.get()[1] - before
}

/// Checks that eight times the size takes at most some ten times the memory.
fn grows<T>(make: impl Fn(usize) -> T, run: impl Fn(&T)) {
    let [small, large] = [4000, 32_000].map(|size| most_bytes(&make(size), &run));
    assert!(large < 12 * small, "{large} bytes for {small}");
}

fn bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

/// A graph and a plan of `size` states that come for an op and leave after it.
fn files(size: usize) -> [Vec<u8>; 2] {
    let tensors = vec![json!({ "name": "t", "bytes": 1, "kind": "state" }); size];
    let op = |at| json!({ "name": "o", "time_ns": 1, "reads": [at], "writes": [] });
    let steps = |at| [json!(["prefetch", at]), json!(["launch", at]), json!(["evict", at])];
    let graph = json!({
        "format": "spillway.graph.v1", "name": "g", "tensors": tensors,
        "ops": (0..size).map(op).collect::<Value>(),
    });
    let plan = json!({
        "format": "spillway.plan.v1", "graph": "g", "machine": "v100-pcie3", "strategy": "x",
        "budget_bytes": 1 << 30, "pools": [{ "object_bytes": 2 << 20, "count": 2 }],
        "resident_at_start": [], "steps": (0..size).flat_map(steps).collect::<Value>(),
        "predicted": { "period_ns": 1, "compute_ns": 1, "peak_bytes": 1, "h2d_bytes": 0,
                       "d2h_bytes": 0, "host_bytes": 0 },
    });
    [bytes(&graph), bytes(&plan)]
}

#[test]
fn check() {
    grows(files, |[graph, plan]| {
        let (graph, plan) = (read_graph(graph).unwrap(), read_plan(plan).unwrap());
        let machine = builtin("v100-pcie3").unwrap().machine;
        let (graph, plan) = (graph.graph().unwrap(), plan.plan());
        planning::in_core_peak_bytes(&graph, &machine).unwrap();
        let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
        planning::prove(&graph, &machine, &plan, &schedule.schedule()).unwrap();
        planning::predict(&graph, &machine, &plan, &schedule.schedule()).unwrap();
    });
}

/// `size` operators inside each other, each of which updates a tensor of its own.
fn nested(size: usize) -> Vec<u8> {
    let node = |at: usize| {
        let tensor = json!([at, at + (1 << 32), 0, 8, 4, "cuda:0"]);
        json!({
            "id": at, "parent": at.max(2) - 1, "name": "aten::add_", "tid": 1, "rf_id": at,
            "op_schema": "aten::add_(Tensor(a!) self, Scalar other) -> Tensor(a!)",
            "inputs": [tensor, 1], "input_shapes": [[8], []],
            "outputs": [tensor], "output_shapes": [[8]],
        })
    };
    bytes(&json!({ "nodes": (1..=size).map(node).collect::<Value>() }))
}

#[test]
fn imports() {
    grows(nested, |trace| drop(import(trace, None, Device::Cuda, "nested").unwrap()));
}
