//! Proofs of plans that fix where things lie.

use super::{Files, bytes, files, grows, read, state};
use serde_json::{Value, json};
use spillway::planning;
use workloads::{OwnedGraph, OwnedMachine, OwnedPlan};

/// Lowers and proves.
fn prove((graph, machine, plan): &(OwnedGraph, OwnedMachine, OwnedPlan)) {
    let (graph, machine, plan) = (&graph.graph().unwrap(), &machine.machine, &plan.plan());
    let schedule = planning::schedule(graph, machine, plan).unwrap();
    planning::prove(graph, machine, plan, &schedule.schedule()).unwrap();
}

fn with(mut files: Files, fields: &[(&str, Value)]) -> Files {
    let mut plan: Value = serde_json::from_slice(&files.plan).unwrap();
    for (name, value) in fields {
        plan[name] = value.clone();
    }
    files.plan = bytes(&plan);
    files
}

/// `size` temporaries in the arena, each below the one before, that are all read at the end.
fn stacked(size: usize) -> Files {
    let tensors = vec![json!({ "name": "t", "bytes": 1, "kind": "temporary" }); size];
    let op = |at| json!({ "name": "o", "time_ns": 1, "reads": [], "writes": [at] });
    let all: Vec<usize> = (0..size).collect();
    let last = json!({ "name": "o", "time_ns": 1, "reads": all, "writes": [] });
    let ops = (0..size).map(op).chain([last]).collect();
    let steps = (0..=size).map(|op| json!(["launch", op])).collect();
    let placement = |at| json!({ "tensor": at, "offset": size - 1 - at });
    let placements: Value = (0..size).map(placement).collect();
    let made = files(json!(tensors), ops, [json!([]), json!([]), steps]);
    with(made, &[("arena", json!({ "bytes": size, "placements": placements }))])
}

#[test]
fn arenas() {
    // Moving memory is quick: what grows as its square shows only in larger sizes.
    grows("arena", |size| read(&stacked(4 * size)), prove);
}

/// A tensor of `size` pieces that as many ops overwrite, each after these steps with a piece.
fn pieces(size: usize, before: &[&str]) -> Files {
    let op = json!({ "name": "o", "time_ns": 1, "reads": [], "writes": [0] });
    let steps = (0..size).flat_map(|at| {
        let before = before.iter().map(move |step| json!([step, 0, at, 1]));
        before.chain([json!(["launch", at])])
    });
    let pools = json!([{ "object_bytes": 1, "count": size }]);
    let resident = json!([{ "tensor": 0, "host_copy": false }]);
    let ops = Value::from(vec![op; size]);
    let made = files(json!([state(size)]), ops, [pools, resident, steps.collect()]);
    let all: Vec<usize> = (0..size).collect();
    let again = (0..size).filter(|_| before.contains(&"evict")).map(|at| vec![at]);
    let placements: Vec<_> = [all].into_iter().chain(again).collect();
    with(made, &[("placements", json!(placements)), ("placement_iterations", json!(1))])
}

#[test]
fn launches_that_write_many_pieces() {
    grows("resident", |size| read(&pieces(size, &["offload"])), prove);
    grows("missing", |size| read(&pieces(size, &["offload", "evict"])), prove);
}
