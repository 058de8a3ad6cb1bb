//! Generated graphs against what is published of the models.

mod arithmetic;
mod gan;
mod host;
mod llama;
mod resnet;
mod shapes;
mod sizes;

use planner_core::{Kind, OpId};
use std::collections::BTreeSet;
use workloads::OwnedGraph;
use workloads::format::{read_graph, write_graph};
use zoo::models::{SpecError, generate, list};

/// Every model, small.
const SMALL: [&str; 17] = [
    "resnet50:batch=3",
    "resnet152:batch=3,image=65",
    "densenet121:batch=2,image=64",
    "densenet169:batch=2,image=64",
    "densenet201:batch=2,image=64",
    "deeplabv3plus:batch=2,image=65",
    "pix2pixhd:batch=1",
    "gpt:batch=2,layers=3,width=128,sequence=32,vocabulary=100",
    "bert:batch=2,layers=3,width=128,sequence=32,vocabulary=100",
    "lstm:batch=4,layers=3,steps=5,width=32",
    "wresnet152:batch=2,image=65,widen=2",
    "inception4:batch=2,image=107,widen=1",
    "nasnet:batch=2,image=65,repeats=1,filters=8",
    "rnn:batch=4,layers=3,steps=5,width=32",
    "brnn:batch=4,layers=2,steps=5,width=32",
    "llama:layers=3,width=64,heads=4,kv_heads=2,hidden=96,vocabulary=100,sequence=32",
    "mixtral:layers=2,width=64,heads=4,kv_heads=2,hidden=96,experts=4,vocabulary=100,sequence=32",
];

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

/// What the optimizer keeps momentum, or a first moment, for.
fn parameters(graph: &OwnedGraph) -> u64 {
    let kept = |name: &str| name.ends_with(".momentum") || name.ends_with(".exp_avg");
    bytes_where(graph, |name, _| kept(name)) / 4
}

fn unread(graph: &OwnedGraph) -> Vec<&str> {
    let read = graph.graph().expect("generated graphs are checked");
    let mut is_read = vec![false; graph.tensors.len()];
    for op in read.op_ids() {
        for tensor in read.reads(op) {
            is_read[tensor.index()] = true;
        }
    }
    let names = graph.tensor_names.iter().zip(is_read);
    names.filter(|(_, is_read)| !is_read).map(|(name, _)| name.as_str()).collect()
}

#[test]
fn training_reads_everything_but_its_loss() {
    assert_eq!(SMALL.len(), list().len());
    for spec in SMALL {
        let expected: &[&str] = match spec.split(':').next() {
            // Positions of maxima in real images, which are not undone.
            Some("pix2pixhd") => &[
                "d.loss",
                "vgg.real.pool2.indices",
                "vgg.real.pool3.indices",
                "vgg.real.pool4.indices",
                "vgg.real.pool5.indices",
                "g.loss",
            ],
            // Their loss and its gradient are one op.
            Some("rnn" | "brnn") => &[],
            _ => &["loss"],
        };
        assert_eq!(unread(&make(spec)), expected, "{spec}");
    }
}

#[test]
fn inference_keeps_nothing_for_training() {
    for (spec, expected) in [
        ("resnet50:mode=inference,image=1", &["maxpool.indices", "fc.out"][..]),
        ("densenet121:mode=inference,image=1", &["features.pool0.indices", "classifier.out"]),
        ("deeplabv3plus:mode=inference,image=65", &["decoder.upsample2.out"]),
        ("pix2pixhd:mode=inference", &["g.tanh.out"]),
        ("gpt:mode=inference,layers=1,sequence=8", &["lm_head.out"]),
        ("bert:mode=inference,layers=1,sequence=8", &["follows.out", "scores.out"]),
        // The last cell's state.
        (
            "lstm:mode=inference,steps=2,layers=1,width=8",
            &["lstm0.0.gates", "lstm0.1.cell", "lstm0.1.gates", "fc.out"],
        ),
        ("wresnet152:mode=inference,image=1,widen=1", &["maxpool.indices", "fc.out"]),
        // The token that is sampled reads the scores, and the next token reads the cache.
        ("llama:mode=token,layers=1,sequence=8", &[]),
        ("llama:mode=prompt,layers=1,sequence=8", &["layers.0.attn.cache", "logits"]),
    ] {
        let graph = make(spec);
        assert_eq!(unread(&graph), expected, "{spec}");
        let gradients = graph.tensor_names.iter().filter(|name| name.contains("grad"));
        assert_eq!(gradients.count(), 0, "{spec}");
    }
}

/// The last part of the names of ops of which `keep` holds, each once.
fn parts(graph: &OwnedGraph, keep: impl Fn(OpId) -> bool) -> BTreeSet<&str> {
    let ids = (0..).map(OpId).zip(&graph.op_names);
    ids.filter(|&(op, _)| keep(op)).filter_map(|(_, name)| name.rsplit('.').next()).collect()
}

#[test]
fn all_ops_are_repeatable_but_those_that_write_states_alone() {
    let once = ["add_", "adam", "adamw", "sgd"];
    for spec in SMALL {
        let graph = make(spec);
        let is_repeatable = |op: OpId| graph.ops[op.index()].repeatable;
        let found = parts(&graph, |op| !is_repeatable(op));
        // Of batch norms, `add_` counts the iterations.
        assert!(found.iter().all(|part| once.contains(part)), "{spec}: {found:?}");
        assert!(!found.is_empty(), "{spec}");
        let repeatable = parts(&graph, is_repeatable);
        assert!(repeatable.contains("backward") && repeatable.len() > 3, "{spec}: {repeatable:?}");
    }
    let resnet = make(SMALL[0]);
    let batch_norm = resnet.op_names.iter().position(|name| name == "bn1").unwrap();
    assert!(resnet.ops[batch_norm].repeatable);
    let inference = make("resnet50:mode=inference,image=1");
    assert!(inference.ops.iter().all(|op| op.repeatable));
}

#[test]
fn names_are_unique_and_the_files_hold_everything() {
    for spec in SMALL {
        let graph = make(spec);
        for names in [&graph.tensor_names, &graph.op_names] {
            let mut sorted = names.clone();
            sorted.sort();
            sorted.dedup();
            assert_eq!(sorted.len(), names.len(), "{spec}");
        }
        assert_eq!(read_graph(&write_graph(&graph)).unwrap(), graph, "{spec}");
    }
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
        (
            "",
            "there is no model \"\"; known are resnet50, resnet152, densenet121, densenet169, \
             densenet201, deeplabv3plus, pix2pixhd, gpt, bert, lstm, wresnet152, inception4, \
             nasnet, rnn, brnn, llama, mixtral",
        ),
        ("resnet50:", "\"\" does not have the form name=value"),
        ("resnet50:batch", "\"batch\" does not have the form name=value"),
        (
            "resnet50:size=1",
            "resnet50 has no parameter \"size\"; it has batch, image, mode, tflops, memory_gb_s, \
             host_gb_s, host_tflops",
        ),
        ("resnet50:batch=1,batch=1", "batch is set twice"),
        ("resnet50:batch=0", "batch must be an integer from 1 to 1048576, not \"0\""),
        ("resnet50:image=65537", "image must be an integer from 1 to 65536, not \"65537\""),
        ("resnet50:mode=train", "mode must be training or inference, not \"train\""),
        (
            "resnet50:tflops=0",
            "tflops must be a number above 0 and up to 1000000, with at most 3 decimals, not \"0\"",
        ),
        ("gpt:host_tflops=2", "host_tflops needs host_gb_s, the memory speed of the host"),
        (
            "resnet50:batch=1048576,image=65536",
            "the work is too large: sizes or times add up to more than 64 bits",
        ),
        (
            "densenet201:batch=1048576,image=65536",
            "the work is too large: sizes or times add up to more than 64 bits",
        ),
        (
            "gpt:batch=1048576,sequence=1048576,width=65536,layers=1,vocabulary=16777216",
            "the work is too large: sizes or times add up to more than 64 bits",
        ),
    ] {
        assert_eq!(generate(spec).map_err(|error| error.to_string()), Err(expected.to_owned()));
    }
    assert!(
        matches!(generate("file.json"), Err(SpecError::UnknownModel(name)) if name == "file.json")
    );
}
