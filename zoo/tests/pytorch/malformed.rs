//! Files that make no sense are refused, with a reason, and never with a panic.

use crate::recording::{Layout, Trace, args, t};
use serde_json::{Value, json};
use zoo::pytorch::{Device, ImportError, import};

const LAYOUTS: [Layout; 2] = [Layout::Flat, Layout::Nested];

/// A trace with something of everything.
fn sample() -> Trace {
    let mut trace = Trace::new();
    for step in 1..4 {
        trace.note(&format!("ProfilerStep#{step}"), |trace| {
            let mm = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
            let inputs = args![t(1, [4, 5]).strides(&[5, 1]), t(2, [5, 6])];
            trace.calling(mm, inputs, args![t(3, [4, 6])], |trace| {
                let empty = "aten::empty(SymInt[] size) -> Tensor";
                trace.call(empty, args![json!([8])], args![t(4, [8])]);
            });
            let copy = "aten::copy_(Tensor(a!) self, Tensor src) -> Tensor(a!)";
            trace.call(copy, args![t(5, [6]).at(2), t(3, [6])], args![t(5, [6]).at(2)]);
            let back = "aten::convolution_backward(Tensor grad_output, Tensor weight, \
                bool[3] output_mask) -> (Tensor, Tensor)";
            let inputs = args![t(5, [1, 8]), t(2, [5, 6]), json!([true, true, false])];
            trace.call(back, inputs, args![t(6, [10]), t(7, [30])]);
            let add = "aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other) -> ()";
            trace.call(add, args![[t(2, [30]), t(1, [20])], [t(7, [30]), t(6, [20])]], args![]);
            let reduce = "c10d::allreduce_(Tensor[] tensors) -> Tensor[]";
            trace.call(reduce, args![[t(7, [30])]], args![[t(7, [30])]]);
        });
    }
    trace
}

fn kineto(names: bool) -> Vec<u8> {
    let record = |id: u64| if names { 0 } else { id + 500 };
    let operators =
        [("aten::mm", 10), ("aten::empty", 11), ("aten::copy_", 12)].map(|(name, id)| {
            json!({ "ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10 * id,
                    "dur": 9, "args": { "Record function id": record(id) } })
        });
    let device = json!({ "cat": "kernel", "ts": 99.5, "dur": 1.25, "args": { "correlation": 5 } });
    let launch = json!({ "cat": "cuda_runtime", "pid": 1, "tid": 1, "ts": 101, "dur": 1,
                         "args": { "correlation": 5 } });
    let mut events = operators.to_vec();
    events.extend([device, launch]);
    serde_json::to_vec(&json!({ "traceEvents": events })).unwrap()
}

fn error_of(trace: &Value) -> String {
    let trace = serde_json::to_vec(trace).unwrap();
    import(&trace, None, Device::Cuda, "malformed").unwrap_err().to_string()
}

/// The sample with one of its nodes changed.
fn changed(layout: Layout, node: usize, change: impl FnOnce(&mut Value)) -> Value {
    let mut trace: Value = serde_json::from_slice(&sample().json(layout)).unwrap();
    change(&mut trace["nodes"][node]);
    trace
}

#[test]
fn the_sample_is_sound() {
    for layout in LAYOUTS {
        let trace = sample().json(layout);
        for kineto in [None, Some(kineto(false)), Some(kineto(true))] {
            let graph = import(&trace, kineto.as_deref(), Device::Cuda, "sample").unwrap();
            assert_eq!(graph.ops.len(), 6);
            assert_eq!(graph.ops[0].time_ns == 1250, kineto.is_some());
        }
    }
}

#[test]
fn errors_name_the_place() {
    let none: &[u8] = b"{ \"nodes\": [\n  { \"id\": -3 } ] }";
    let error = import(none, None, Device::Cuda, "malformed").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the execution trace is malformed: invalid value: integer `-3`, expected u64 \
         at line 2 column 12"
    );
    let trace = sample().json(Layout::Flat);
    let error = import(&trace, Some(b"{}"), Device::Cuda, "malformed").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the Kineto trace is malformed: missing field `traceEvents` at line 1 column 2"
    );
}

#[test]
fn errors_name_the_node() {
    for (layout, parent) in [(Layout::Flat, "parent"), (Layout::Nested, "ctrl_deps")] {
        let orphan = changed(layout, 1, |node| {
            node.as_object_mut().unwrap().remove(parent);
        });
        let expected = "node 4 (aten::empty) has neither `ctrl_deps` nor `parent`";
        assert_eq!(error_of(&orphan), expected);
        let twin = changed(layout, 1, |node| node["id"] = json!(3));
        assert_eq!(error_of(&twin), "node 3 (aten::mm) has the id of another node");
    }
    let outputs = |value| changed(Layout::Flat, 1, |node| node["outputs"][0][3] = value);
    let expected = "node 4 (aten::empty) has a tensor with a negative size";
    assert_eq!(error_of(&outputs(json!(-8))), expected);
    let expected = "node 4 (aten::empty) has a tensor of more than 2^64 bytes";
    assert_eq!(error_of(&outputs(json!(i64::MAX))), expected);
}

#[test]
fn a_trace_without_ops_is_no_graph() {
    let error = import(b"{ \"nodes\": [] }", None, Device::Cuda, "empty").unwrap_err();
    assert_eq!(error.to_string(), "the trace gives no valid graph: the graph has no ops");
    let trace = sample().json(Layout::Nested);
    assert!(matches!(
        import(&trace, None, Device::Cpu, "elsewhere"),
        Err(ImportError::Graph(planner_core::GraphError::NoOps))
    ));
}

#[test]
fn parents_that_come_later_are_none() {
    let trace = changed(Layout::Flat, 2, |node| node["parent"] = json!(1_000));
    let trace = serde_json::to_vec(&trace).unwrap();
    assert!(import(&trace, None, Device::Cuda, "loop").is_ok());
}

#[test]
fn nodes_inside_themselves_are_refused() {
    let own = changed(Layout::Flat, 1, |node| node["parent"] = node["id"].clone());
    assert_eq!(error_of(&own), "node 4 (aten::empty) is its own parent");
    // Node 3 is around node 4.
    let mut cycle = changed(Layout::Flat, 0, |_| ());
    let nodes = cycle["nodes"].as_array_mut().unwrap();
    nodes.iter_mut().find(|node| node["id"] == 3).unwrap()["parent"] = json!(4);
    assert_eq!(error_of(&cycle), "node 3 (aten::mm) lies inside a node that starts after it");
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let mut trace = sample().json(Layout::Flat);
    let at = trace.windows(7).position(|bytes| bytes == b"by hand").unwrap();
    trace[at] = 0xff;
    let error = import(&trace, None, Device::Cuda, "text").unwrap_err().to_string();
    assert!(error.starts_with("the execution trace cannot be used: line "), "{error}");
    assert!(error.ends_with(": invalid UTF-8"), "{error}");
    let trace = sample().json(Layout::Flat);
    let error = import(&trace, Some(b"\"\xff\""), Device::Cuda, "text").unwrap_err();
    let expected = "the Kineto trace cannot be used: line 1 column 2: invalid UTF-8";
    assert_eq!(error.to_string(), expected);
}
