//! Reading, checking and importing take O(n) memory in the size of the files, in O(n) allocations.
#![allow(unsafe_code, reason = "counting bytes takes a global allocator")]
// The lint knows test functions, not what they call.
#![allow(clippy::unwrap_used)]

use planner_core::Kind;
use planner_core::planner::{Auto, Request, Strategy, Window};
use serde_json::{Value, json};
use spillway::planning;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use workloads::OwnedGraph;
use workloads::format::{read_graph, read_plan};
use workloads::machines::builtin;
use zoo::pytorch::{Device, import};

struct Counting;

/// Bytes and allocations of a thread.
#[derive(Clone, Copy)]
struct Taken {
    held_bytes: isize,
    most_held_bytes: isize,
    largest_bytes: isize,
    /// Of all allocations, freed or not.
    sum_bytes: isize,
    allocations: isize,
}

const NOTHING: Taken =
    Taken { held_bytes: 0, most_held_bytes: 0, largest_bytes: 0, sum_bytes: 0, allocations: 0 };

thread_local! {
    static TAKEN: Cell<Taken> = const { Cell::new(NOTHING) };
}

fn count(change: impl FnOnce(&mut Taken)) {
    // A thread that ends counts no more.
    let _ = TAKEN.try_with(|cell| {
        let mut taken = cell.get();
        change(&mut taken);
        cell.set(taken);
    });
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let bytes = layout.size() as isize;
        count(|taken| {
            taken.held_bytes += bytes;
            taken.most_held_bytes = taken.most_held_bytes.max(taken.held_bytes);
            taken.largest_bytes = taken.largest_bytes.max(bytes);
            taken.sum_bytes += bytes;
            taken.allocations += 1;
        });
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(|taken| taken.held_bytes -= layout.size() as isize);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// What a run takes beside what is there before.
fn taken<T>(made: &T, run: impl Fn(&T)) -> Taken {
    TAKEN.set(NOTHING);
    run(made);
    TAKEN.get()
}

/// Checks that eight times the size takes at most some ten times the memory and the allocations.
fn grows<T>(make: impl Fn(usize) -> T, run: impl Fn(&T)) {
    let [small, large] = [4000, 32_000].map(|size| taken(&make(size), &run));
    for (name, small, large) in [
        ("bytes at once", small.most_held_bytes, large.most_held_bytes),
        ("bytes", small.sum_bytes, large.sum_bytes),
        ("allocations", small.allocations, large.allocations),
    ] {
        assert!(large < 12 * small, "{large} {name} for {small}");
    }
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

/// `size` ops that each read a state of half a chunk.
fn work(size: usize) -> OwnedGraph {
    let mut graph = OwnedGraph::new("g");
    for at in 0..size {
        let state = graph.push_tensor(format!("t{at}"), 1 << 20, Kind::State);
        graph.push_op(format!("o{at}"), 1, 0, &[state], &[]);
    }
    graph
}

#[test]
fn plan() {
    let auto = Auto::new().with_effort(1);
    let strategies = [Strategy::Fit, Strategy::Window(Window::default()), Strategy::Auto(auto)];
    let machine = &builtin("v100-pcie3").unwrap().machine;
    for strategy in strategies {
        grows(work, |graph| {
            let graph = &graph.graph().unwrap();
            let request = Request { graph, machine, budget_bytes: 64 << 20 };
            drop(planning::plan(&request, strategy).unwrap());
        });
    }
}

/// A tensor of eight elements.
fn tensor(at: usize) -> Value {
    json!([at, at + (1 << 32), 0, 8, 4, "cuda:0"])
}

/// `size` operators inside each other, each of which updates a tensor of its own.
fn nested(size: usize) -> Vec<u8> {
    let node = |at: usize| {
        let tensor = tensor(at);
        json!({
            "id": at, "parent": at.max(2) - 1, "name": "aten::add_", "tid": 1, "rf_id": at,
            "op_schema": "aten::add_(Tensor(a!) self, Scalar other) -> Tensor(a!)",
            "inputs": [tensor, 1], "input_shapes": [[8], []],
            "outputs": [tensor], "output_shapes": [[8]],
        })
    };
    bytes(&json!({ "nodes": (1..=size).map(node).collect::<Value>() }))
}

/// An operator on a list of `size` tensors.
fn list(size: usize) -> Vec<u8> {
    let tensors: Value = (0..size).map(tensor).collect();
    let node = json!({
        "id": 1, "parent": 0, "name": "aten::_foreach_neg_", "tid": 1, "rf_id": 1,
        "op_schema": "aten::_foreach_neg_(Tensor(a!)[] self) -> ()",
        "inputs": [tensors], "input_shapes": [], "outputs": [], "output_shapes": [],
    });
    bytes(&json!({ "nodes": [node] }))
}

/// A Kineto trace of the operators that are [`nested`].
fn kineto(size: usize) -> Vec<u8> {
    let operator = |at| json!({ "cat": "cpu_op", "name": "aten::add_", "pid": 1, "tid": 1, "ts": at, "dur": 1 });
    let args = json!({ "correlation": 1 });
    let launch = json!({ "cat": "cuda_runtime", "pid": 1, "tid": 1, "ts": size, "args": args });
    let kernel = json!({ "cat": "kernel", "ts": size, "dur": 1, "args": args });
    let events = (1..=size).map(operator).chain([launch, kernel]);
    bytes(&json!({ "traceEvents": events.collect::<Value>() }))
}

#[test]
fn imports() {
    let without = |trace: &Vec<u8>| drop(import(trace, None, Device::Cuda, "a").unwrap());
    for make in [nested, list] {
        grows(make, without);
        // That there is memory is tried before anything is read: for all that follows, too.
        let Taken { most_held_bytes: most, largest_bytes: tried, .. } = taken(&make(4000), without);
        assert!(most <= tried, "{most} bytes, and {tried} were tried");
    }
    let both = |size| (nested(size), kineto(size));
    grows(both, |(trace, kineto)| {
        drop(import(trace, Some(kineto), Device::Cuda, "a").unwrap());
    });
}
