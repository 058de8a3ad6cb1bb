//! Traces that others recorded.

use flate2::read::GzDecoder;
use planner_core::{Kind, OpId, TensorId};
use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use test_harness::shared;
use workloads::OwnedGraph;
use zoo::pytorch::{Device, KinetoReport, Report, import_with_report};

/// A file of the folder of recorded data, inflated.
fn inflated(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(shared(path)).unwrap()).read_to_end(&mut bytes).unwrap();
    bytes
}

fn import(trace: &[u8], kineto: Option<&[u8]>) -> (OwnedGraph, Report) {
    import_with_report(trace, kineto, Device::Cuda, "recorded").unwrap()
}

/// Number and bytes of the tensors of a kind.
fn of_kind(graph: &OwnedGraph, kind: Kind) -> (usize, u64) {
    let of_kind = graph.tensors.iter().filter(|tensor| tensor.kind == kind);
    (of_kind.clone().count(), of_kind.map(|tensor| tensor.bytes).sum())
}

/// State, and inputs and temporaries from first to last touch, and workspace; and the most
/// that one op needs.
fn peak_and_largest_op(owned: &OwnedGraph) -> (u64, u64) {
    let graph = owned.graph().unwrap();
    let mut spans: HashMap<TensorId, (OpId, OpId)> = HashMap::new();
    for op in graph.op_ids() {
        for tensor in graph.touches(op) {
            spans.entry(tensor).or_insert((op, op)).1 = op;
        }
    }
    let (mut peak, mut largest) = (0, 0);
    for op in graph.op_ids() {
        let workspace = graph.op(op).workspace_bytes;
        let held = |tensor: &TensorId| {
            graph.tensor(*tensor).kind == Kind::State
                || spans.get(tensor).is_some_and(|(first, last)| *first <= op && op <= *last)
        };
        let bytes = |tensor| graph.tensor(tensor).bytes;
        peak = peak.max(workspace + graph.tensor_ids().filter(held).map(bytes).sum::<u64>());
        largest = largest.max(workspace + graph.touches(op).map(bytes).sum::<u64>());
    }
    (peak, largest)
}

/// Compares with a graph file in everything but names.
fn assert_equals_file(graph: &OwnedGraph, file: &[u8]) {
    let file: serde_json::Value = serde_json::from_slice(file).unwrap();
    let checked = graph.graph().unwrap();
    let tensors = file["tensors"].as_array().unwrap();
    assert_eq!(graph.tensors.len(), tensors.len());
    for (ours, theirs) in graph.tensors.iter().zip(tensors) {
        let kind = match ours.kind {
            Kind::State => "state",
            Kind::Input => "input",
            Kind::Temporary => "temporary",
            Kind::Output => "output",
        };
        let expected = (theirs["bytes"].as_u64().unwrap(), theirs["kind"].as_str().unwrap());
        assert_eq!((ours.bytes, kind), expected, "{}", theirs["name"]);
    }
    let ops = file["ops"].as_array().unwrap();
    assert_eq!(graph.ops.len(), ops.len());
    for (op, theirs) in checked.op_ids().zip(ops) {
        let ids = |field: &str| -> Vec<TensorId> {
            let ids = theirs[field].as_array().unwrap().iter();
            ids.map(|id| TensorId(id.as_u64().unwrap() as u32)).collect()
        };
        let name = &theirs["name"];
        assert_eq!(checked.reads(op), ids("reads"), "reads of {name}");
        assert_eq!(checked.writes(op), ids("writes"), "writes of {name}");
        let ours = checked.op(op);
        assert_eq!(ours.time_ns, theirs["time_ns"].as_u64().unwrap(), "time of {name}");
        let workspace = theirs["workspace_bytes"].as_u64().unwrap_or(0);
        assert_eq!(ours.workspace_bytes, workspace, "workspace of {name}");
        let repeatable = theirs["repeatable"].as_bool().unwrap_or(false);
        assert_eq!(ours.repeatable, repeatable, "whether {name} is repeatable");
    }
}

pub(crate) fn resnet50() {
    let trace = inflated("data/resnet50_1gpu_et.json.gz");
    let (graph, report) = import(&trace, None);
    let step = Some("ProfilerStep#7".to_owned());
    assert_eq!(report, Report { step, ..Report::default() });
    assert_eq!(graph.ops.len(), 1387);
    assert_eq!(of_kind(&graph, Kind::State), (481, 204_669_160));
    assert_eq!(of_kind(&graph, Kind::Input), (2, 19_395_584));
    assert_eq!(of_kind(&graph, Kind::Temporary), (551, 7_241_925_376));
    assert_eq!(peak_and_largest_op(&graph), (3_030_699_560, 308_288_512));
    assert_eq!(graph.graph().unwrap().compute_ns(), 84_559_781);
    let mut count: HashMap<&str, usize> = HashMap::new();
    for name in &graph.op_names {
        *count.entry(name.split(['@', '.']).next().unwrap()).or_default() += 1;
    }
    for (name, ops) in [
        ("cudnn_convolution", 53),
        ("cudnn_batch_norm", 53),
        ("convolution_backward", 53),
        ("cudnn_batch_norm_backward", 53),
        ("clamp_min_", 49),
        ("threshold_backward", 49),
        ("copy_", 320),
        ("mul", 163),
        ("add_", 85),
        ("_foreach_mul_", 161),
        ("_foreach_add_", 322),
        ("broadcast_", 2),
        ("allreduce_", 5),
    ] {
        assert_eq!(count[name], ops, "{name}");
    }
    assert_equals_file(&graph, &inflated("graphs/resnet50_et.graph.json.gz"));
}

/// A trace without the step annotations that `keep` refuses, and with one more after all.
fn with_steps(trace: &[u8], keep: impl Fn(&str) -> bool) -> Vec<u8> {
    let mut trace: serde_json::Value = serde_json::from_slice(trace).unwrap();
    let nodes = trace["nodes"].as_array_mut().unwrap();
    let mut end = nodes.iter().find(|node| node["name"] == "ProfilerStep#8").unwrap().clone();
    end["name"] = "ProfilerStep#9".into();
    end["id"] = 1_000_000.into();
    nodes.push(end);
    nodes.retain(|node| {
        let name = node["name"].as_str().unwrap();
        !name.starts_with("ProfilerStep#") || keep(name)
    });
    serde_json::to_vec(&trace).unwrap()
}

pub(crate) fn steps_of_resnet50_are_the_same_graph() {
    let trace = inflated("data/resnet50_1gpu_et.json.gz");
    let (middle, _) = import(&trace, None);
    for (last, other) in
        [("ProfilerStep#7", "ProfilerStep#6"), ("ProfilerStep#9", "ProfilerStep#8")]
    {
        let (graph, report) = import(&with_steps(&trace, |name| name <= last), None);
        assert_eq!(report.step.as_deref(), Some(other));
        assert_eq!(graph.tensors, middle.tensors);
        assert_eq!(graph.ops, middle.ops);
        assert_eq!(graph.operands, middle.operands);
    }
}

pub(crate) fn linear_layers() {
    let trace = inflated("data/linear_et.json.gz");
    let kineto = inflated("data/linear_kineto.json.gz");
    let (graph, report) = import(&trace, Some(&kineto));
    let fit = KinetoReport { kernels: 261, kernels_with_op: 261, ops_with_kernel: 260 };
    assert_eq!(report, Report { kineto: Some(fit), ..Report::default() });
    assert_eq!(graph.ops.len(), 260);
    assert_eq!(of_kind(&graph, Kind::State), (42, 88_166_400));
    assert_eq!(of_kind(&graph, Kind::Input), (2, 2_101_248));
    assert_eq!(of_kind(&graph, Kind::Temporary), (176, 364_023_820));
    assert_eq!(peak_and_largest_op(&graph), (230_858_752, 9_441_280));
    assert_eq!(graph.graph().unwrap().compute_ns(), 8_848_977);
    let (estimated, _) = import(&trace, None);
    assert_eq!(estimated.graph().unwrap().compute_ns(), 6_996_468);
    assert_equals_file(&graph, &inflated("graphs/linear_et.graph.json.gz"));
}
