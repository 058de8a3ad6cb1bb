//! Imports of traces.

use super::{SIZE, bytes, grows};
use serde_json::{Value, json};
use zoo::pytorch::{Device, import};

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

/// One operator on a list of `size` tensors and as many single ones.
fn shared(size: usize) -> Vec<u8> {
    let tensors: Value = (2..size + 2).map(tensor).collect();
    let single = (size + 2..2 * size + 2).map(tensor);
    let arguments = vec!["Tensor other"; size].join(", ");
    let inputs: Value = [tensors].into_iter().chain(single).collect();
    let shapes = [vec![json!(vec![[8]; size])], vec![json!([8]); size]].concat();
    let node = json!({
        "id": 2, "parent": 1, "name": "aten::_foreach_add_", "tid": 1, "rf_id": 2,
        "op_schema": format!("aten::_foreach_add_(Tensor(a!)[] self, {arguments}) -> ()"),
        "inputs": inputs, "input_shapes": shapes, "outputs": [], "output_shapes": [],
    });
    trace([add(1, 1, 1), node].into_iter())
}

#[test]
fn lists_beside_many_tensors() {
    grows("import", shared, |trace| {
        import(trace, None, Device::Cuda, "shared").unwrap();
    });
}

/// A Kineto trace of operators, each of a name and a thread, that start one after the other and
/// last to the end; the last one of the last thread launches a kernel.
fn kineto(operators: &[(&str, usize)]) -> Vec<u8> {
    let end = operators.len();
    let operator = |(at, (name, thread)): (usize, &(&str, usize))| json!({ "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": at, "dur": end - at });
    let thread = operators.iter().map(|&(_, thread)| thread).max();
    let args = json!({ "correlation": 1 });
    let launch = json!({ "cat": "cuda_runtime", "pid": 1, "tid": thread, "ts": end, "args": args });
    let kernel = json!({ "cat": "kernel", "ts": end, "dur": 1, "args": args });
    let events = operators.iter().enumerate().map(operator).chain([launch, kernel]);
    bytes(&json!({ "traceEvents": events.collect::<Value>() }))
}

fn named(node: Value, name: &str) -> Value {
    let mut node = node;
    node["name"] = json!(name);
    node
}

/// Checks that times are found by name, where each trace is of these operators.
fn grows_by_name(name: &str, operators: impl Fn(usize) -> [Vec<(&'static str, usize)>; 2]) {
    let make = |size| {
        let [traced, measured] = operators(size);
        let node = |(at, &(name, thread))| named(add(at + 1, 0, thread), name);
        (trace(traced.iter().enumerate().map(node)), kineto(&measured))
    };
    grows(name, make, |(trace, kineto)| {
        import(trace, Some(kineto), Device::Cuda, "by name").unwrap();
    });
}

#[test]
fn operators_of_one_name() {
    // Comparing names is quick: what grows as its square shows only in larger sizes.
    grows_by_name("names", |size| {
        let size = 4 * size;
        let traced = [vec![("aten::add_", 1); size], vec![("aten::mul_", 1)]].concat();
        [traced.clone(), [vec![("aten::add_", 1); size], traced].concat()]
    });
}

#[test]
fn steps_that_lack_a_thread() {
    let (first, second) = (("aten::add_", 1), ("aten::mul_", 2));
    grows_by_name("steps", |size| {
        // Of the later steps, each has the second operator on the thread of the first.
        let later = [first, ("aten::mul_", 1)].repeat(size);
        [vec![first, second], [vec![first, second], later].concat()]
    });
}
