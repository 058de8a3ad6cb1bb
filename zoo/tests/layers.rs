//! Training steps as chains of layers.

use planner_core::planner::{Request, Strategy, Weights};
use planner_core::{Kind, Machine};
use spillway::planning;
use workloads::chain::Layer;
use workloads::{OwnedChain, OwnedGraph, OwnedMachine, machines};
use zoo::layers::{NoChain, chain};
use zoo::models;

fn machine() -> OwnedMachine {
    machines::builtin("h200-pcie5").unwrap()
}

fn view(spec: &str, recompute: bool) -> OwnedChain {
    chain(&models::generate(spec).unwrap(), &machine(), recompute).unwrap()
}

fn sum(chain: &OwnedChain, of: fn(&Layer) -> u64) -> u64 {
    chain.layers.iter().map(of).sum()
}

#[test]
fn the_graph_of_a_chain_is_that_chain() {
    let layer = |n: u64| Layer {
        forward_ns: 10 * n,
        backward_ns: 20 * n,
        weight_bytes: 1000 * n,
        activation_bytes: 7 * n,
        optimizer_bytes: 1500 * n,
    };
    let given = OwnedChain {
        name: "chain".to_owned(),
        device_bytes: 50_000,
        bandwidth_bytes_per_s: 1000,
        input_bytes: 70,
        layers: vec![layer(1), Layer { optimizer_bytes: 0, ..layer(2) }, layer(3), layer(4)],
    };
    let seen = chain(&given.graph(), &given.machine().unwrap(), false).unwrap();
    assert_eq!(seen, OwnedChain { name: "chain in layers".to_owned(), ..given });
}

/// Two layers a block, of 4 and 8 width^2 weights and a few biases and norms; a table that the
/// scores share with the embedding stays.
#[test]
fn a_transformer_falls_into_halves_of_blocks() {
    let (batch, sequence, width, vocabulary) = (2, 32, 128, 500);
    let spec = format!(
        "gpt:batch={batch},layers=3,sequence={sequence},width={width},vocabulary={vocabulary}"
    );
    let graph = models::generate(&spec).unwrap();
    let seen = view(&spec, true);
    // The embedding, the positions, and the last norm with all after it.
    assert_eq!(seen.layers.len(), 2 + 2 * 3 + 1);
    let halves = [4 * width * (width + 1) + 2 * width, 8 * width * width + 7 * width];
    for (at, layer) in seen.layers[2..8].iter().enumerate() {
        assert_eq!(layer.weight_bytes, 4 * halves[at % 2], "layer {at}");
        assert_eq!(layer.optimizer_bytes, 2 * layer.weight_bytes);
        assert_eq!(layer.activation_bytes, 4 * batch * sequence * width);
    }
    let states: u64 = graph
        .tensors
        .iter()
        .map(|tensor| match tensor.kind {
            Kind::State => tensor.bytes,
            _ => 0,
        })
        .sum();
    let table_bytes = 4 * vocabulary * width;
    let seen_bytes = sum(&seen, |layer| layer.weight_bytes + layer.optimizer_bytes);
    assert_eq!(seen_bytes + table_bytes, states);
    assert_eq!(seen.layers[0].optimizer_bytes, 2 * table_bytes);
}

/// The same of a decoder whose loss and head's gradients are one op: all its states leave.
#[test]
fn a_decoder_falls_into_halves_of_blocks() {
    let (width, hidden) = (64, 96);
    let spec = format!(
        "llama:layers=3,width={width},heads=4,kv_heads=2,hidden={hidden},vocabulary=100,sequence=32"
    );
    let seen = view(&spec, true);
    // The embedding, the last norm, and the head.
    assert_eq!(seen.layers.len(), 1 + 2 * 3 + 2);
    let halves = [3 * width * width + width, 3 * width * hidden + width];
    for (at, layer) in seen.layers[1..7].iter().enumerate() {
        assert_eq!(layer.weight_bytes, 2 * halves[at % 2], "layer {at}");
        assert_eq!(layer.activation_bytes, 2 * 32 * width);
    }
    for layer in &seen.layers {
        assert_eq!(layer.optimizer_bytes, 6 * layer.weight_bytes);
    }
    for (layer, elements) in [(0, 100 * width), (7, width), (8, 100 * width)] {
        assert_eq!(seen.layers[layer].weight_bytes, 2 * elements, "layer {layer}");
    }
}

/// All time is somewhere; that of the forward pass twice where layers run again.
#[test]
fn layers_take_the_time_of_their_ops() {
    for spec in ["gpt:batch=1,layers=2,sequence=64,width=64,vocabulary=99", "resnet50:batch=2"] {
        let compute_ns = models::generate(spec).unwrap().graph().unwrap().compute_ns();
        let [kept, again] = [false, true].map(|recompute| view(spec, recompute));
        let forward_ns = sum(&kept, |layer| layer.forward_ns);
        assert_eq!(forward_ns + sum(&kept, |layer| layer.backward_ns), compute_ns, "{spec}");
        assert_eq!(sum(&again, |layer| layer.forward_ns), forward_ns);
        assert_eq!(sum(&again, |layer| layer.backward_ns), compute_ns);
        let [kept_bytes, again_bytes] =
            [&kept, &again].map(|chain| sum(chain, |layer| layer.activation_bytes));
        assert!(2 * again_bytes < kept_bytes, "{spec}: {again_bytes} of {kept_bytes}");
        // What a layer has again takes memory for that time.
        assert!(again.device_bytes < kept.device_bytes, "{spec}");
    }
}

/// The chain does not need less than the graph, byte by byte, nor much more.
#[test]
fn a_chain_needs_about_what_its_graph_needs() {
    for spec in ["gpt:batch=2,layers=6", "bert:batch=4,layers=6", "resnet50:batch=16"] {
        let graph = models::generate(spec).unwrap();
        let by_byte = (*machine().machine).with_chunk_bytes(1);
        let by_byte = Machine::new(by_byte).unwrap();
        let graph_bytes = planning::in_core_peak_bytes(&graph.graph().unwrap(), &by_byte).unwrap();
        let seen = view(spec, false);
        let taken_bytes = by_byte.device_bytes - seen.device_bytes;
        let (owned, own) = (seen.graph(), seen.machine().unwrap().machine);
        let chain_bytes =
            planning::in_core_peak_bytes(&owned.graph().unwrap(), &own).unwrap() + taken_bytes;
        let ratio = chain_bytes as f64 / graph_bytes as f64;
        assert!((1.0..1.15).contains(&ratio), "{spec}: {chain_bytes} for {graph_bytes}");
    }
}

#[test]
fn weights_of_a_model_leave() {
    let mut seen = view("gpt:batch=2,layers=6,sequence=512", true);
    let all_bytes = sum(&seen, |layer| layer.weight_bytes + layer.optimizer_bytes);
    let kept_bytes = sum(&seen, |layer| layer.activation_bytes);
    seen.device_bytes = all_bytes / 2 + kept_bytes;
    let (owned, own) = (seen.graph(), seen.machine().unwrap().machine);
    let graph = owned.graph().unwrap();
    let request = Request { graph: &graph, machine: &own, budget_bytes: seen.device_bytes };
    let plan = planning::plan(&request, Strategy::Weights(Weights::default())).unwrap();
    assert!(plan.predicted.d2h_bytes > all_bytes / 4);
}

/// Every op of the forward pass reads what the first two have written.
fn skipping() -> OwnedGraph {
    let mut graph = OwnedGraph::new("skipping");
    let weight = graph.push_tensor("w", 10, Kind::State);
    let [one, other, last] =
        ["a", "b", "c"].map(|name| graph.push_tensor(name, 10, Kind::Temporary));
    graph.push_op("A", 1, 0, &[], &[one, other]);
    graph.push_op("B", 1, 0, &[one, other], &[last]);
    graph.push_op("C", 1, 0, &[one, other, weight], &[last]);
    graph.push_op("update", 1, 0, &[last, weight], &[weight]);
    graph
}

#[test]
fn what_is_no_chain_is_refused() {
    let refused = |spec: &str| chain(&models::generate(spec).unwrap(), &machine(), false);
    assert_eq!(refused("gpt:layers=1,mode=inference").unwrap_err(), NoChain::NoTraining);
    assert_eq!(chain(&skipping(), &machine(), false).unwrap_err(), NoChain::OneLayer);
    let small = machine().with_machine(machine().machine.with_device_bytes(1000));
    let graph = models::generate("gpt:batch=1,layers=1,sequence=8,width=64").unwrap();
    let error = chain(&graph, &small, false).unwrap_err();
    assert!(matches!(error, NoChain::Memory { device_bytes: 1000, .. }), "{error}");
    let empty = OwnedGraph::new("empty");
    assert!(matches!(chain(&empty, &small, false), Err(NoChain::Graph(_))));
}
