//! Graphs that others recorded: they are read, and a generated one has the same tensors and times.

use planner_core::Kind;
use test_harness::shared;
use workloads::OwnedGraph;
use workloads::format::{load, read_graph, write_graph};
use zoo::models::generate;

/// Ops, tensors and tenths of megabytes of state of each graph, as the folder's own table has them.
const SHARED: [(&str, usize, usize, u64); 7] = [
    ("densenet121-b64", 3228, 2750, 642),
    ("inception-v3-b64", 2246, 1930, 1_907),
    ("linear_et", 260, 220, 882),
    ("lstm-2x64-h2048-b128", 2580, 1822, 5_370),
    ("resnet152-b32", 4415, 3893, 4_828),
    ("resnet152-infer-b16", 315, 1248, 2_417),
    ("resnet50_et", 1387, 1034, 2_047),
];

pub(crate) fn graphs_of_others_are_read() {
    for (name, ops, tensors, state_tenth_mb) in SHARED {
        let bytes = load(shared(&format!("graphs/{name}.graph.json.gz"))).unwrap();
        let graph = read_graph(&bytes).unwrap();
        assert_eq!((graph.ops.len(), graph.tensors.len()), (ops, tensors), "{name}");
        let states = graph.tensors.iter().filter(|tensor| tensor.kind == Kind::State);
        let state_bytes: u64 = states.map(|tensor| tensor.bytes).sum();
        assert_eq!((state_bytes + 50_000) / 100_000, state_tenth_mb, "{name}");
        assert_eq!(read_graph(&write_graph(&graph)).unwrap(), graph);
    }
}

/// Time of all ops of some kind in a recorded step, where names are `kind@number`.
fn recorded_ns(graph: &OwnedGraph, kind: &str) -> u64 {
    let ops = graph.ops.iter().zip(&graph.op_names);
    let ops = ops.filter(|(_, name)| name.split('@').next() == Some(kind));
    ops.map(|(op, _)| op.time_ns).sum()
}

/// The same of a generated graph, where names are `layer1.0.conv2` or `conv1.backward`.
fn generated_ns(graph: &OwnedGraph, module: &str, backward: bool) -> u64 {
    let ops = graph.ops.iter().zip(&graph.op_names).filter(|(_, name)| {
        let name = name.replace("downsample.0", "conv").replace("downsample.1", "bn");
        let layer = name.strip_suffix(".backward").unwrap_or(&name);
        let last = layer.rsplit('.').next().unwrap_or(layer);
        (layer != name) == backward && last.trim_end_matches(char::is_numeric) == module
    });
    ops.map(|(op, _)| op.time_ns).sum()
}

pub(crate) fn a_recorded_step_has_the_same_tensors_and_times() {
    let file = load(shared("graphs/resnet50_et.graph.json.gz")).unwrap();
    let recorded = read_graph(&file).unwrap();
    let generated = generate("resnet50:batch=32").unwrap();
    for (kind, module, backward) in [
        ("cudnn_convolution", "conv", false),
        ("convolution_backward", "conv", true),
        ("cudnn_batch_norm", "bn", false),
        ("clamp_min_", "relu", false),
        ("threshold_backward", "relu", true),
        ("max_pool2d_with_indices", "maxpool", false),
        ("max_pool2d_with_indices_backward", "maxpool", true),
        ("addmm", "fc", false),
    ] {
        let ns = generated_ns(&generated, module, backward);
        assert_eq!(ns, recorded_ns(&recorded, kind), "{kind}");
    }
    // The recorded step has more: another loss, and an exchange of gradients.
    let mut left = recorded.tensors.clone();
    for (tensor, name) in generated.tensors.iter().zip(&generated.tensor_names) {
        let found = left.iter().position(|other| other == tensor);
        assert!(found.is_some() || name == "labels", "{name}");
        found.map(|at| left.swap_remove(at));
    }
    assert_eq!(left.len(), 12);
}
