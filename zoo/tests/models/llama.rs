//! The decoder of today.

use super::{bytes_where, make, ops_where};
use planner_core::{Kind, OpId};
use workloads::OwnedGraph;
use zoo::models::generate;

/// A small one with every feature but adapters.
const SMALL: &str = "llama:layers=3,width=64,heads=8,kv_heads=2,hidden=96,vocabulary=101,bias=qkv,\
                     slices=3,sequence=16,batch=2";

fn weights_bytes(graph: &OwnedGraph) -> u64 {
    let is_weight = |name: &str| name.ends_with(".bias") || name.contains(".weight");
    bytes_where(graph, |name, kind| {
        let is_state = [".master", ".exp_avg", ".exp_avg_sq"].iter().any(|end| name.ends_with(end));
        kind == Kind::State && is_weight(name) && !is_state
    })
}

/// The published counts are those of the files with the weights.
#[test]
fn presets_have_the_published_parameters() {
    for (billions, count) in [
        (1, 1_235_814_400),
        (3, 3_212_749_824),
        (8, 8_030_261_248),
        (14, 14_659_507_200),
        (32, 32_763_876_352),
        (70, 70_553_706_496),
        (47, 46_702_792_704),
        (141, 140_620_634_112),
        // Without 256 parameters of each layer, which normalize queries and keys.
        (30, 30_532_122_624 - 48 * 256),
        (235, 235_093_634_560 - 94 * 256),
    ] {
        let model = if [30, 47, 141, 235].contains(&billions) { "mixtral" } else { "llama" };
        for spec in ["mode=prompt,sequence=2", "sequence=2,slices=7,micro=2"] {
            let graph = make(&format!("{model}:billions={billions},{spec}"));
            assert_eq!(weights_bytes(&graph), 2 * count, "{billions}: {spec}");
        }
    }
}

/// A parameter: 2 bytes, with AdamW 12 more. An update reads the gradient and 12 bytes, and writes
/// 14.
#[test]
fn adamw_keeps_14_bytes_a_parameter_and_moves_28() {
    let count = 8_030_261_248;
    for (optimizer, op, kept, moved) in [
        ("adamw", "adamw", 14, 28),
        ("autocast", "adamw", 12, 28),
        ("adamw16", "adamw16", 6, 14),
        ("sgd", "sgd", 2, 6),
        ("none", "none", 2, 0),
    ] {
        let graph =
            make(&format!("llama:sequence=2,optimizer={optimizer},tflops=1000000,memory_gb_s=1"));
        assert_eq!(bytes_where(&graph, |_, kind| kind == Kind::State), kept * count);
        let ops = graph.ops.iter().zip(&graph.op_names);
        let updates = ops.filter(|(_, name)| name.ends_with(&format!(".{op}")));
        assert_eq!(updates.map(|(op, _)| op.time_ns - 5_000).sum::<u64>(), moved * count);
        let gradients =
            |name: &str, _| name.ends_with("weight.grad") || name.contains("weight.0.grad");
        assert!(bytes_where(&graph, gradients) > count, "{optimizer}");
    }
}

/// Autocast keeps the copy of a weight until the pass ends, and makes it anew in the next pass.
#[test]
fn each_pass_copies_float32_matrices_and_adds_to_float32_gradients() {
    let graph = make("llama:billions=1,layers=2,optimizer=autocast,micro=2,sequence=16");
    // Four matrices in each layer, and four parts of the table, which is the head.
    assert_eq!(ops_where(&graph, |name| name.ends_with(".copy")), 2 * (2 * 4 + 4));
    assert_eq!(ops_where(&graph, |name| name.ends_with(".copy.backward")), 2 * (2 * 4 + 4));
    let states = bytes_where(&graph, |_, kind| kind == Kind::State);
    let gradients = |name: &str, _| {
        name.contains(".weight") && name.ends_with(".grad") && !name.contains(".copy")
    };
    assert_eq!(weights_bytes(&graph) * 3, states);
    assert_eq!(bytes_where(&graph, gradients) * 3, states);
    // The embedding reads the table itself.
    let of = |name: &str| graph.op_names.iter().position(|other| other == name).unwrap() as u32;
    let table = graph.tensor_names.iter().position(|name| name == "embed.weight.0").unwrap();
    let read = graph.graph().unwrap();
    assert!(read.reads(OpId(of("micro1.embed"))).iter().any(|tensor| tensor.index() == table));
}

/// PEFT prints `trainable params: 41,943,040` for rank 16 on all matrices of Llama 3 8B.
#[test]
fn adapters_alone_are_trained() {
    let graph = make("llama:rank=16,sequence=4");
    assert_eq!(bytes_where(&graph, |name, _| name.ends_with(".master")) / 4, 41_943_040);
    assert_eq!(bytes_where(&graph, |name, _| name.ends_with(".weight.grad")), 0);
    assert_eq!(ops_where(&graph, |name| name.ends_with(".adamw")), 32);
    assert_eq!(ops_where(&graph, |name| name == "layers.0.attn.qkv.backward.input"), 0);
    assert_eq!(ops_where(&graph, |name| name == "layers.1.attn.qkv.backward.input"), 1);
    let quantized = make("llama:rank=16,sequence=4,bits=4.5");
    let [full, small] = [&graph, &quantized].map(|graph| {
        bytes_where(graph, |name, kind| kind == Kind::State && !name.contains("lora"))
    });
    assert!((3.5..3.56).contains(&(full as f64 / small as f64)), "{full} {small}");
}

#[test]
fn a_layer_is_eleven_ops_forward_thirteen_back_and_four_updates() {
    let graph = make(SMALL);
    let of_layer = |part: &str| {
        let is_part = |name: &str| match part {
            "forward" => !name.contains("backward") && !name.ends_with("adamw"),
            part => name.contains(part),
        };
        ops_where(&graph, |name| name.starts_with("layers.1.") && is_part(name))
    };
    assert_eq!(["forward", "backward", "adamw"].map(of_layer), [11, 13, 4]);
}

/// A memory so fast, and a processor so slow, that every op shows its arithmetic.
fn flops(spec: &str) -> f64 {
    let graph = make(&format!("{spec},tflops=1,memory_gb_s=1000000"));
    graph.ops.iter().map(|op| op.time_ns - 5_000).sum::<u64>() as f64 * 1_000.0
}

#[test]
fn every_weight_is_multiplied_by_and_half_of_the_pairs_attend() {
    let (layers, width, kv_width, hidden, vocabulary) = (3u64, 256, 64, 512, 1000);
    let (batch, sequence) = (2, 512);
    let spec = format!(
        "llama:layers={layers},width={width},heads=8,kv_heads=2,hidden={hidden},\
         vocabulary={vocabulary},batch={batch},sequence={sequence}"
    );
    let matrices = layers * width * (2 * width + 2 * kv_width + 3 * hidden);
    let head = width * vocabulary;
    let pairs = batch * sequence * (sequence + 1) / 2;
    let attention = 4 * layers * pairs * width;
    let rows = batch * sequence;
    for (mode, expected) in [
        ("training", 6 * rows * (matrices + head) + attention * 7 / 2),
        ("prompt", 2 * rows * matrices + 2 * batch * head + attention),
        ("token", 2 * batch * (matrices + head) + 4 * layers * batch * sequence * width),
    ] {
        let error = flops(&format!("{spec},mode={mode}")) / expected as f64 - 1.0;
        assert!(error.abs() < 5e-3, "{mode}: {error}");
    }
    // With adapters, the gradients of matrices are not computed.
    let rank = 8;
    let adapters = layers * rank * (width * 7 + (2 * width + 2 * kv_width) + 3 * hidden + width);
    let expected = rows * (4 * (matrices + head) + 6 * adapters) + attention * 7 / 2;
    let error = flops(&format!("{spec},rank={rank}")) / expected as f64 - 1.0;
    // The first layer's input has no gradient.
    assert!((-0.04..0.0).contains(&error), "{error}");
}

/// Of the matrices of experts, each token multiplies by those of the active ones.
#[test]
fn experts_have_a_fraction_of_the_tokens_each() {
    let (width, hidden, rows) = (256, 512, 1024);
    let spec = |experts, active| {
        format!(
            "mixtral:layers=1,width={width},heads=8,kv_heads=2,hidden={hidden},vocabulary=100,\
             sequence={rows},experts={experts},active={active}"
        )
    };
    let perceptron = 2.0 * (rows * 3 * width * hidden) as f64;
    let router = 2.0 * (rows * width * 4) as f64;
    for (mode, passes) in [("prompt", 1.0), ("training", 3.0)] {
        let [two, eight] = [[4, 2], [8, 8]]
            .map(|[experts, active]| flops(&format!("{},mode={mode}", spec(experts, active))));
        let error = (eight - two) / (passes * (6.0 * perceptron + router)) - 1.0;
        assert!(error.abs() < 1e-2, "{mode}: {error}");
    }
    let graph = make(&format!(
        "{},experts=8,active=3",
        spec(1, 1).replace("experts=1,active=1", "micro=2")
    ));
    let inputs =
        bytes_where(&graph, |name, _| name.starts_with("micro1.") && name.ends_with(".in"));
    assert_eq!(inputs, rows * 3 * width * 2);
}

/// One token chooses 8 of 128 experts, and many tokens choose all. Without adapters, an op reads its input and
/// the weights, and writes its output.
#[test]
fn ops_of_stacked_experts_move_the_weights_that_tokens_choose() {
    let moved_bytes = |spec: &str, name: &str| {
        let graph = make(&format!(
            "mixtral:billions=30,layers=1,mode=token,bits=4,tflops=1000000,memory_gb_s=1,{spec}"
        ));
        let op = graph.op_names.iter().position(|op| op == name).unwrap();
        graph.ops[op].time_ns as f64 - 5_000.0
    };
    let weights = 128.0 * 2048.0 * 1536.0 / 2.0;
    for (batch, chosen) in [(1, 8.0 / 128.0), (2, 1.0 - 0.9375 * 0.9375), (1024, 1.0)] {
        let rest = f64::from(batch * 8 * (2048 + 1536) * 2);
        let bytes = moved_bytes(&format!("batch={batch}"), "layers.0.experts.gate_up");
        let error = bytes / (weights * chosen + rest) - 1.0;
        assert!(error.abs() < 1e-6, "{batch}: {error}");
    }
    // An adapter has matrices of each expert, too.
    let adapter = 128.0 * 4.0 * (2.0 * 2048.0 + 1536.0) * 2.0;
    let rest = f64::from(8 * (2048 + 2 * 1536 + 2 * 4) * 2);
    let bytes = moved_bytes("rank=4", "layers.0.experts.gate_up.lora");
    assert!((bytes / (adapter * 8.0 / 128.0 + rest) - 1.0).abs() < 1e-6, "{bytes}");
}

#[test]
fn memory_grows_with_the_tokens_and_not_with_their_square() {
    let temporaries = |tokens: u64| {
        let spec = format!("llama:billions=1,sequence={tokens},head=own");
        bytes_where(&make(&spec), |_, kind| kind == Kind::Temporary)
    };
    let [one, two, four] = [1024, 2048, 4096].map(temporaries);
    assert_eq!(four - two, 2 * (two - one));
}

#[test]
fn micro_batches_add_to_the_same_gradients_and_update_once() {
    let [one, four] = ["", ",micro=4"].map(|micro| make(&format!("{SMALL}{micro}")));
    let of_gradients = |graph: &OwnedGraph| {
        bytes_where(graph, |name, _| name.ends_with(".grad") && name.contains("weight"))
    };
    assert_eq!(of_gradients(&one), of_gradients(&four));
    let updates = ops_where(&one, |name| name.ends_with(".adamw"));
    assert_eq!(four.ops.len(), 4 * (one.ops.len() - updates) + updates);
    assert!(four.op_names[four.ops.len() - updates..].iter().all(|name| name.ends_with(".adamw")));
    // The first writes a gradient, and the others read it too.
    let graph = four.graph().unwrap();
    for number in 0..4 {
        let op = |part: &str| {
            let name = format!("micro{number}.{part}");
            OpId(four.op_names.iter().position(|other| *other == name).unwrap() as u32)
        };
        for part in ["layers.2.mlp.down.backward.weight", "head.loss", "embed.backward"] {
            let sums = graph.writes(op(part)).iter().filter(|tensor| {
                four.tensor_names[tensor.index()].contains(".grad")
                    && !four.tensor_names[tensor.index()].contains("input")
            });
            let read = sums.clone().filter(|tensor| graph.reads(op(part)).contains(tensor)).count();
            let expected = if number == 0 { 0 } else { sums.count() };
            assert_eq!(read, expected, "{number}: {part}");
        }
    }
}

#[test]
fn a_tied_head_has_one_gradient_with_its_table() {
    let tied = make(&format!("{SMALL},head=tied"));
    let op = OpId(tied.op_names.iter().position(|name| name == "embed.backward").unwrap() as u32);
    let graph = tied.graph().unwrap();
    assert!(graph.writes(op).iter().all(|tensor| graph.reads(op).contains(tensor)));
    assert_eq!(ops_where(&tied, |name| name.starts_with("head.weight")), 0);
}

/// So that iterations follow one another as tokens do.
#[test]
fn a_token_is_sampled_for_the_next_one() {
    let graph = make("llama:billions=1,mode=token");
    let token = graph.tensor_names.iter().position(|name| name == "token").unwrap();
    assert_eq!(graph.tensors[token].kind, Kind::State);
    assert_eq!(graph.op_names.first().map(String::as_str), Some("embed"));
    assert_eq!(graph.op_names.last().map(String::as_str), Some("sample"));
}

/// 70 billion weights of 4.5 bits, and 8192 tokens in the cache of 80 layers.
#[test]
fn a_token_reads_all_weights_and_the_cache() {
    let graph = make("llama:billions=70,mode=token,bits=4.5");
    let norms = 2 * 161 * 8192;
    let weights = (70_553_706_496 - norms / 2) * 9 / 16 + norms;
    assert_eq!(weights_bytes(&graph), weights);
    let cache = bytes_where(&graph, |name, _| name.ends_with(".cache"));
    assert_eq!(cache, 80 * 8192 * 2 * 1024 * 2);
    let time_ns: u64 = graph.ops.iter().map(|op| op.time_ns - 5_000).sum();
    // All but the table of embeddings; the rest is what passes between ops.
    let expected = (weights - 128_256 * 8192 * 9 / 16 + cache) as f64 / 900.0;
    assert!((time_ns as f64 / expected - 1.0).abs() < 2e-3, "{time_ns} {expected}");
    let read = graph.graph().unwrap();
    let op =
        OpId(graph.op_names.iter().position(|name| name == "layers.7.attn.rotary").unwrap() as u32);
    let cache = graph.tensor_names.iter().position(|name| name == "layers.7.attn.cache").unwrap();
    for operands in [read.reads(op), read.writes(op)] {
        assert!(operands.iter().any(|tensor| tensor.index() == cache));
    }
}

#[test]
fn presets_give_way_to_what_is_set() {
    let graph = make("llama:billions=1,layers=2,sequence=8");
    assert_eq!(
        graph.name,
        "llama:billions=1,layers=2,slices=4,batch=1,sequence=8,micro=1,mode=training,\
         optimizer=adamw,bits=16,tflops=165,memory_gb_s=900"
    );
    assert_eq!(make(&graph.name), graph);
    assert_eq!(make("llama:billions=1,width=2048,layers=2,rank=0,sequence=8"), graph);
    assert_eq!(make("llama:layers=preset,sequence=8"), make("llama:sequence=8"));
}

#[test]
fn contradictions_are_named() {
    for (spec, expected) in [
        ("heads=5", "width=4096 is not a multiple of heads=5"),
        ("kv_heads=3", "heads=32 is not a multiple of kv_heads=3"),
        ("mode=token,micro=2", "micro is for mode=training; in other modes, set batch"),
        (
            "bits=4.5",
            "bits is for weights that are not trained: set mode=prompt, mode=token, or rank to \
             train adapters alone",
        ),
        (
            "optimizer=autocast,rank=8",
            "optimizer=autocast trains all weights, and rank adapters alone: set one of the two",
        ),
        (
            "bits=16.5,mode=token",
            "bits must be a number above 0 and up to 16, with at most 3 decimals, not \"16.5\"",
        ),
        ("layers=0", "layers must be preset or an integer from 1 to 4096, not \"0\""),
        ("rank=x", "rank must be 0 or an integer from 1 to 4096, not \"x\""),
        (
            "batch=1048576,sequence=1048576,width=65536,vocabulary=16777216,hidden=1048576",
            "the work is too large: sizes or times add up to more than 64 bits",
        ),
    ] {
        let error = generate(&format!("llama:{spec}")).map_err(|error| error.to_string());
        assert_eq!(error.map(|_| ()), Err(expected.to_owned()), "{spec}");
    }
    let error = generate("mixtral:active=9").map_err(|error| error.to_string());
    assert_eq!(error, Err("active=9 is more than experts=8".to_owned()));
}
