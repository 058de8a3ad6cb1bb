//! Generated graphs against what is published of the models.

use planner_core::Kind;
use std::path::Path;
use workloads::OwnedGraph;
use workloads::format::{load, read_graph, write_graph};
use workloads::models::{SpecError, generate, list};

fn make(spec: &str) -> OwnedGraph {
    match generate(spec) {
        Ok(graph) => graph,
        Err(error) => panic!("{spec}: {error}"),
    }
}

fn bytes_where(graph: &OwnedGraph, keep: impl Fn(&str, Kind) -> bool) -> u64 {
    let tensors = graph.tensors.iter().zip(&graph.tensor_names);
    tensors.filter(|(tensor, name)| keep(name, tensor.kind)).map(|(tensor, _)| tensor.bytes).sum()
}

fn ops_where(graph: &OwnedGraph, keep: impl Fn(&str) -> bool) -> usize {
    graph.op_names.iter().filter(|name| keep(name)).count()
}

/// All states, and inputs and temporaries from first to last touch, in exact bytes.
fn in_core_peak_bytes(owned: &OwnedGraph) -> u64 {
    let graph = owned.graph().map_err(|error| error.to_string()).ok();
    let graph = graph.expect("generated graphs are checked");
    let mut change = vec![0i64; graph.ops().len() + 1];
    let mut span = vec![None; graph.tensors().len()];
    for op in graph.op_ids() {
        for tensor in graph.touches(op) {
            let (_, last) = span[tensor.index()].get_or_insert((op.index(), op.index()));
            *last = op.index();
        }
    }
    let mut peak_bytes = bytes_where(owned, |_, kind| kind == Kind::State) as i64;
    for (tensor, span) in graph.tensors().iter().zip(&span) {
        if let (Some((first, last)), false) = (span, tensor.kind == Kind::State) {
            change[*first] += tensor.bytes as i64;
            change[last + 1] -= tensor.bytes as i64;
        }
    }
    let states_bytes = peak_bytes;
    let mut live_bytes = 0;
    for change_bytes in change {
        live_bytes += change_bytes;
        peak_bytes = peak_bytes.max(states_bytes + live_bytes);
    }
    peak_bytes as u64
}

/// Parameters are what momentum is kept for.
fn parameters(graph: &OwnedGraph) -> u64 {
    bytes_where(graph, |name, _| name.ends_with(".momentum")) / 4
}

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

/// A memory so fast, and a processor so slow, that every op shows its arithmetic: 1000
/// operations a nanosecond at 1 TFLOP/s.
#[test]
fn forward_passes_take_the_published_arithmetic() {
    // torchvision publishes 4.09 and 11.51 billion multiplications for 224 x 224.
    for (name, low, high) in [("resnet50", 4.08e9, 4.10e9), ("resnet152", 11.50e9, 11.53e9)] {
        let spec = |mode| format!("{name}:batch=1,mode={mode},tflops=1,memory_gb_s=1000000");
        let arithmetic_ns = |mode| {
            let graph = make(&spec(mode));
            graph.ops.iter().map(|op| op.time_ns - 5_000).sum::<u64>() as f64
        };
        let forward_ns = arithmetic_ns("inference");
        let products = forward_ns * 1_000.0 / 2.0;
        assert!((low..high).contains(&products), "{name}: {products}");
        // Twice as much backward, but for the gradient of the images.
        let ratio = arithmetic_ns("training") / forward_ns;
        assert!((2.9..3.0).contains(&ratio), "{name}: {ratio}");
    }
}

#[test]
fn peaks_are_those_of_independent_traces() {
    // The same models, traced by others, need 3031 MB (a recorded PyTorch step, 102 MB of
    // it for the exchange of gradients between devices), 6189 MB and 396 MB.
    for (spec, peak_bytes) in [
        ("resnet50:batch=32", 2_987_609_736),
        ("resnet50:batch=512", 44_605_591_176),
        ("resnet152:batch=32", 6_194_155_960),
        ("resnet152:batch=16,mode=inference", 395_517_600),
    ] {
        assert_eq!(in_core_peak_bytes(&make(spec)), peak_bytes, "{spec}");
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

#[test]
fn every_temporary_is_used() {
    for spec in ["resnet50", "resnet152:batch=3,image=65", "resnet50:mode=inference,image=1"] {
        let owned = make(spec);
        let graph = owned.graph().unwrap();
        let mut unread: Vec<_> = graph.tensor_ids().collect();
        for op in graph.op_ids() {
            unread.retain(|tensor| !graph.reads(op).contains(tensor));
        }
        let names: Vec<_> =
            unread.iter().map(|id| owned.tensor_names[id.index()].as_str()).collect();
        let expected =
            if spec.contains("inference") { &["maxpool.indices", "fc.out"] } else { &["loss"][..] };
        assert_eq!(names, expected, "{spec}");
    }
}

#[test]
fn names_are_unique_and_the_files_hold_everything() {
    let graph = make("resnet50:batch=3");
    for names in [&graph.tensor_names, &graph.op_names] {
        let mut sorted = names.clone();
        sorted.sort();
        sorted.dedup();
        assert_eq!(sorted.len(), names.len());
    }
    assert_eq!(read_graph(&write_graph(&graph)).unwrap(), graph);
}

#[test]
fn the_name_is_a_spec_of_the_same_graph() {
    let graph = make("resnet50:tflops=15.70,batch=8");
    assert_eq!(graph.name, "resnet50:batch=8,image=224,mode=training,tflops=15.7,memory_gb_s=800");
    assert_eq!(make(&graph.name), graph);
    for model in list() {
        assert!(make(model.name).name.starts_with(model.name));
        for parameter in model.parameters {
            let spec = format!("{}:{}={}", model.name, parameter.name, parameter.default);
            assert_eq!(make(&spec), make(model.name), "{spec}");
        }
    }
}

#[test]
fn wrong_specs_say_what_is_right() {
    for (spec, expected) in [
        ("", "there is no model \"\"; known are resnet50, resnet152"),
        ("resnet5", "there is no model \"resnet5\"; known are resnet50, resnet152"),
        ("resnet50:", "\"\" is not of the form name=value"),
        ("resnet50:batch", "\"batch\" is not of the form name=value"),
        (
            "resnet50:size=1",
            "resnet50 has no parameter \"size\"; it has batch, image, mode, tflops, memory_gb_s",
        ),
        ("resnet50:batch=1,batch=1", "batch is set twice"),
        ("resnet50:batch=0", "batch must be an integer from 1 to 1048576, not \"0\""),
        ("resnet50:image=65537", "image must be an integer from 1 to 65536, not \"65537\""),
        ("resnet50:mode=train", "mode must be training or inference, not \"train\""),
        (
            "resnet50:tflops=0",
            "tflops must be a number above 0 and up to 1000000, with at most 3 decimals, not \"0\"",
        ),
        (
            "resnet50:batch=1048576,image=65536",
            "the work is too large: sizes or times add up to more than 64 bits",
        ),
    ] {
        assert_eq!(generate(spec).map_err(|error| error.to_string()), Err(expected.to_owned()));
    }
    assert!(
        matches!(generate("file.json"), Err(SpecError::UnknownModel(name)) if name == "file.json")
    );
}
