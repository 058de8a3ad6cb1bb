//! Imports of traces.

use super::{SIZE, bytes, grows};
use serde_json::{Value, json};
use workloads::pytorch::{Device, import};

/// A tensor of eight elements.
fn tensor(at: usize) -> Value {
    json!([at, at + (1 << 32), 0, 8, 4, "cuda:0"])
}

/// A call of `aten::add_` on a thread, which updates a tensor of its own.
fn add(at: usize, parent: usize, thread: usize) -> Value {
    json!({
        "id": at, "parent": parent, "name": "aten::add_", "tid": thread, "rf_id": at,
        "op_schema": "aten::add_(Tensor(a!) self, Scalar other) -> Tensor(a!)",
        "inputs": [tensor(at), 1], "input_shapes": [[8], []],
        "outputs": [tensor(at)], "output_shapes": [[8]],
    })
}

fn trace(nodes: impl Iterator<Item = Value>) -> Vec<u8> {
    bytes(&json!({ "nodes": nodes.collect::<Value>() }))
}

#[test]
fn nodes_inside_each_other() {
    let nested = |size| trace((1..=size).map(|at: usize| add(at, at.max(2) - 1, 1)));
    grows("import", nested, |trace| {
        let graph = import(trace, None, Device::Cuda, "nested").unwrap();
        assert!(graph.ops.len() >= SIZE);
    });
}

/// One operator on a list of `size` tensors, with as many numbers after it.
fn list(size: usize) -> Vec<u8> {
    let tensors: Value = (2..size + 2).map(tensor).collect();
    let arguments = vec!["Scalar other"; size].join(", ");
    let inputs = [vec![tensors], vec![json!(1); size]].concat();
    let shapes = [vec![json!(vec![[8]; size])], vec![json!([]); size]].concat();
    let node = json!({
        "id": 2, "parent": 1, "name": "aten::_foreach_add_", "tid": 1, "rf_id": 2,
        "op_schema": format!("aten::_foreach_add_(Tensor(a!)[] self, {arguments}) -> ()"),
        "inputs": inputs, "input_shapes": shapes, "outputs": [], "output_shapes": [],
    });
    trace([add(1, 1, 1), node].into_iter())
}

#[test]
fn lists_with_many_arguments() {
    grows("import", list, |trace| {
        let graph = import(trace, None, Device::Cuda, "list").unwrap();
        assert!(graph.ops.len() >= SIZE);
    });
}
