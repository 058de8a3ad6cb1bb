//! Reading, checking and importing take O(n log n) time in the size of the files, whatever
//! numbers they hold.

// The lint knows test functions, not what they call.
#![allow(clippy::unwrap_used)]

mod chains;
mod placed;
mod traces;

use planner_core::bounds::BoundOrder;
use planner_core::planner::Request;
use serde_json::{Value, json};
use spillway::planning;
use spillway::swapping::{self, Swap};
use std::fs;
use std::hint::black_box;
use std::time::Instant;
use workloads::format::{read_graph, read_machine, read_plan};
use workloads::{OwnedGraph, OwnedMachine, OwnedPlan};

const SIZE: usize = 8000;
const TIMES: usize = 8;
/// Linear work is 8 here, n log n about 10, quadratic work 64.
const MOST: u64 = 24;

/// Nanoseconds that this thread has had a processor, where the system says so: what else the
/// machine does takes none of them. It stands for work counted, as instructions can be counted
/// only where the system permits it, and counters in the loops miss those nobody thought of.
fn thread_ns() -> Option<u64> {
    fs::read_to_string("/proc/thread-self/schedstat").ok()?.split(' ').next()?.parse().ok()
}

/// The work of one run, as the mean of many: the system counts in milliseconds.
fn work_ns<T>(made: &T, run: impl Fn(&T)) -> u64 {
    const ENOUGH_NS: u64 = 50_000_000;
    let (start, start_ns) = (Instant::now(), thread_ns());
    let mut runs = 0;
    loop {
        run(made);
        runs += 1;
        let ns = match (start_ns, thread_ns()) {
            (Some(start_ns), Some(end_ns)) => end_ns - start_ns,
            _ => start.elapsed().as_nanos() as u64,
        };
        if ns > ENOUGH_NS {
            return ns / runs;
        }
    }
}

/// Checks that work grows as it may.
fn grows<T>(name: &str, make: impl Fn(usize) -> T, run: impl Fn(&T)) {
    let [small, large] = [SIZE, TIMES * SIZE].map(|size| work_ns(&make(size), &run));
    assert!(large < MOST * small, "{name}: {TIMES} times the size, {large} ns for {small}");
}

fn bytes(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).unwrap()
}

/// The files that `check` reads.
struct Files {
    graph: Vec<u8>,
    machine: Vec<u8>,
    plan: Vec<u8>,
}

#[allow(clippy::needless_pass_by_value, reason = "each caller makes them")]
fn files(tensors: Value, ops: Value, plan: [Value; 3]) -> Files {
    let [pools, resident, steps] = plan;
    Files {
        graph: bytes(&json!({
            "format": "spillway.graph.v1", "name": "g", "tensors": tensors, "ops": ops
        })),
        machine: bytes(&json!({
            "format": "spillway.machine.v1", "name": "m", "device_bytes": 1u64 << 40,
            "host_bytes": 1u64 << 50, "chunk_bytes": 1, "h2d_bytes_per_s": 1_000_000_000_000u64,
            "d2h_bytes_per_s": 1_000_000_000_000u64, "transfer_latency_ns": 0,
            "map_ns_per_chunk": 0, "unmap_ns_per_chunk": 0
        })),
        plan: bytes(&json!({
            "format": "spillway.plan.v1", "graph": "g", "machine": "m", "strategy": "x",
            "budget_bytes": 1u64 << 40, "pools": pools, "resident_at_start": resident,
            "steps": steps,
            "predicted": { "period_ns": 1, "compute_ns": 1, "peak_bytes": 1, "h2d_bytes": 0,
                           "d2h_bytes": 0, "host_bytes": 0 }
        })),
    }
}

fn read(files: &Files) -> (OwnedGraph, OwnedMachine, OwnedPlan) {
    let graph = read_graph(&files.graph).unwrap();
    (graph, read_machine(&files.machine).unwrap(), read_plan(&files.plan).unwrap())
}

/// All that `check` works out, of a plan that is safe.
fn check(files: &Files) {
    let (graph, machine, plan) = read(files);
    let (graph, machine, plan) = (graph.graph().unwrap(), &machine.machine, plan.plan());
    for order in [BoundOrder::Given, BoundOrder::Any] {
        black_box(planning::lower_bound_ns(&graph, machine, plan.budget_bytes, order).unwrap());
    }
    black_box(planning::in_core_peak_bytes(&graph, machine).unwrap());
    let schedule = planning::schedule(&graph, machine, &plan).unwrap();
    planning::prove(&graph, machine, &plan, &schedule.schedule()).unwrap();
    planning::predict(&graph, machine, &plan, &schedule.schedule()).unwrap();
}

/// A state of this many bytes, which are as many objects.
fn state(bytes: usize) -> Value {
    json!({ "name": "a", "bytes": bytes, "kind": "state" })
}

/// One tensor, cut into `size` pieces, and this many steps of it whole.
fn cut(size: usize, whole: &[Value]) -> Files {
    let ops = json!([{ "name": "o", "time_ns": 1, "reads": [0], "writes": [] }]);
    let parts = (0..size).map(|part| json!(["offload", 0, part, 1]));
    let whole = (0..size).flat_map(|_| whole.to_vec());
    let steps: Value = [json!(["launch", 0])].into_iter().chain(parts).chain(whole).collect();
    let resident = json!([{ "tensor": 0, "host_copy": false }]);
    files(
        json!([state(size)]),
        ops,
        [json!([{ "object_bytes": 1, "count": size }]), resident, steps],
    )
}

#[test]
fn steps_of_whole_tensors_that_others_cut() {
    grows("offloads", |size| cut(size, &[json!(["offload", 0])]), check);
    let moves = [json!(["evict", 0]), json!(["prefetch", 0])];
    grows("evicts and prefetches", |size| cut(size, &moves), check);
}

/// One op that reads `size` tensors and writes as many others.
fn wide(size: usize) -> Files {
    let tensors = vec![state(1 << 10); 2 * size];
    let [reads, writes] = [0, size].map(|first| (first..first + size).collect::<Vec<_>>());
    let ops = json!([{ "name": "o", "time_ns": 1, "reads": reads, "writes": writes }]);
    let resident = |tensor| json!({ "tensor": tensor, "host_copy": false });
    let resident = (0..2 * size).map(resident).collect();
    let pools = json!([{ "object_bytes": 1 << 10, "count": 2 * size }]);
    files(json!(tensors), ops, [pools, resident, json!([["launch", 0]])])
}

#[test]
fn ops_of_many_operands() {
    grows("check", wide, check);
    grows("least memory of swaps", wide, |files| {
        let (graph, machine, _) = read(files);
        let (graph, machine) = (&graph.graph().unwrap(), &machine.machine);
        let request = Request { graph, machine, budget_bytes: machine.device_bytes };
        black_box(swapping::min_feasible(&request, &Swap::default()).unwrap());
    });
}

/// A repeat of an op that updates `size` states in place and makes a temporary.
fn in_place(size: usize) -> Files {
    let mut tensors = vec![state(1 << 10); size];
    tensors.push(json!({ "name": "t", "bytes": 1 << 10, "kind": "temporary" }));
    let states: Vec<_> = (0..size).collect();
    let writes: Vec<_> = (0..=size).rev().collect();
    let op = json!({
        "name": "o", "time_ns": 1, "reads": states, "writes": writes, "repeatable": true
    });
    let last = json!({ "name": "p", "time_ns": 1, "reads": [size], "writes": [] });
    let resident = |tensor: &usize| json!({ "tensor": tensor, "host_copy": false });
    let resident = states.iter().map(resident).collect();
    let pools = json!([{ "object_bytes": 1 << 10, "count": size + 1 }]);
    let steps =
        json!([["launch", 0], ["evict", size], ["launch", 0], ["launch", 1], ["evict", size]]);
    files(json!(tensors), json!([op, last]), [pools, resident, steps])
}

#[test]
fn repeats_of_ops_that_update_many_states() {
    grows("repeats", in_place, check);
}

/// A pool for each of `size` tensors.
fn pools(size: usize) -> Files {
    let tensors: Vec<Value> = (1..=size).map(state).collect();
    let op = |at| json!({ "name": "o", "time_ns": 1, "reads": [at], "writes": [] });
    let steps = (0..size)
        .flat_map(|at| [json!(["prefetch", at]), json!(["launch", at]), json!(["evict", at])]);
    let pools = (1..=size).map(|bytes| json!({ "object_bytes": bytes, "count": 1 })).collect();
    let mut made =
        files(json!(tensors), (0..size).map(op).collect(), [pools, json!([]), steps.collect()]);
    let mut plan: Value = serde_json::from_slice(&made.plan).unwrap();
    plan["tensor_pool"] = (0..size).collect();
    made.plan = bytes(&plan);
    made
}

#[test]
fn many_pools() {
    grows("pools", pools, check);
}

/// An iteration that releases one object, from a pool of many more, and then asks for more.
fn count(objects: u64) -> Files {
    let b = json!({ "name": "b", "bytes": objects, "kind": "state" });
    let op = |at| json!({ "name": "o", "time_ns": 1, "reads": [at], "writes": [] });
    let steps =
        json!([["prefetch", 0], ["launch", 0], ["evict", 0], ["prefetch", 1], ["launch", 1]]);
    let pools = json!([{ "object_bytes": 1, "count": objects }]);
    files(json!([state(1), b]), json!([op(0), op(1)]), [pools, json!([]), steps])
}

#[test]
fn counts_are_no_work() {
    let refuse = |files: &Files| {
        let (graph, machine, plan) = read(files);
        let graph = graph.graph().unwrap();
        planning::schedule(&graph, &machine.machine, &plan.plan()).unwrap_err();
    };
    let [few, many] = [2, 1 << 33].map(|objects| work_ns(&count(objects), refuse));
    assert!(many < MOST * few, "{many} ns for many objects, {few} for two");
}

#[test]
fn placements_cover_64_iterations_at_most() {
    for (iterations, refused) in [(0, true), (64, false), (65, true), (20_000_000, true)] {
        let mut files = pools(1);
        let mut plan: Value = serde_json::from_slice(&files.plan).unwrap();
        plan["placement_iterations"] = json!(iterations);
        plan["placements"] = json!(vec![[0]; 64]);
        files.plan = bytes(&plan);
        let (graph, machine, plan) = read(&files);
        let graph = graph.graph().unwrap();
        let scheduled = planning::schedule(&graph, &machine.machine, &plan.plan());
        let expected = format!("placement_iterations is {iterations}; it must be from 1 to 64");
        match scheduled {
            Err(error) => assert!(refused && error.to_string() == expected, "{error}"),
            Ok(_) => assert!(!refused),
        }
    }
}
