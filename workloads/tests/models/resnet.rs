//! ResNets: sizes as published, and a recorded step.

use crate::{bytes_where, make, ops_where, parameters};
use planner_core::Kind;
use std::path::Path;
use workloads::OwnedGraph;
use workloads::format::{load, read_graph};

#[test]
fn resnets_have_the_published_sizes() {
    for (name, parameter_count, convolutions, statistics) in
        [("resnet50", 25_557_032, 53, 53_120), ("resnet152", 60_192_808, 155, 151_424)]
    {
        let training = make(&format!("{name}:batch=2"));
        assert_eq!(parameters(&training), parameter_count, "{name}");
        let state_bytes = bytes_where(&training, |_, kind| kind == Kind::State);
        let expected = 2 * parameter_count * 4 + statistics * 4 + convolutions as u64 * 8;
        assert_eq!(state_bytes, expected, "{name}");
        let ends = |ending: &str| ops_where(&training, |op| op.ends_with(ending));
        let blocks = (convolutions - 5) / 3;
        assert_eq!(ends(".num_batches_tracked.add_"), convolutions);
        assert_eq!(ends(".grad_input.add_"), blocks);
        assert_eq!(ends(".add"), blocks);
        assert_eq!(ends(".sgd"), 3 * convolutions + 2);
        let relus = ops_where(&training, |op| op.contains("relu") && op.ends_with(".backward"));
        assert_eq!(relus, 3 * blocks + 1);

        let inference = make(&format!("{name}:batch=2,mode=inference"));
        let state_bytes = bytes_where(&inference, |_, kind| kind == Kind::State);
        assert_eq!(state_bytes, (parameter_count + statistics) * 4, "{name}");
        assert_eq!(inference.ops.len(), 2 * convolutions + (3 * blocks + 1) + blocks + 3);
        let states_written = inference.graph().unwrap().op_ids().any(|op| {
            let writes = inference.graph().unwrap().writes(op);
            writes.iter().any(|id| inference.tensors[id.index()].kind == Kind::State)
        });
        assert!(!states_written);
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

#[test]
fn a_recorded_step_has_the_same_tensors_and_times() {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/graphs/resnet50_et.graph.json.gz");
    if !file.exists() {
        println!("skipped: {} is absent", file.display());
        return;
    }
    let recorded = read_graph(&load(file).unwrap()).unwrap();
    let generated = make("resnet50:batch=32");
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
