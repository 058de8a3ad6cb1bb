//! Layers as a graph, and which tensor is what of a layer.

use super::Layer;
use crate::error::Error;
use crate::graph::Graph;
use planner_core::{GraphError, Kind, TensorId};
use workloads::{OwnedGraph, Shown};

/// The tensor that is the cache of a layer, if it has one: caches follow weights and activations,
/// in the order of layers. O(layers).
#[must_use]
pub fn cache(layers: &[Layer], layer: usize) -> Option<TensorId> {
    numbered(layers, handed_on(layers).len() + layers.len(), cache_bytes).nth(layer)?
}

/// The tensor that is the output of a layer, if it has one: outputs follow caches, in the order of
/// layers. O(layers).
#[must_use]
pub fn output(layers: &[Layer], layer: usize) -> Option<TensorId> {
    let caches = layers.iter().filter(|layer| cache_bytes(layer) > 0).count();
    let first = handed_on(layers).len() + layers.len() + caches;
    numbered(layers, first, output_bytes).nth(layer)?
}

const fn cache_bytes(layer: &Layer) -> u64 {
    layer.cache_bytes
}

const fn output_bytes(layer: &Layer) -> u64 {
    layer.output_bytes
}

/// Numbers from a first one on, for the layers that have some bytes.
fn numbered(
    layers: &[Layer],
    first: usize,
    bytes_of: fn(&Layer) -> u64,
) -> impl Iterator<Item = Option<TensorId>> {
    layers.iter().scan(first as u32, move |next, layer| {
        let number = *next;
        let has_one = bytes_of(layer) > 0;
        *next += u32::from(has_one);
        Some(has_one.then_some(TensorId(number)))
    })
}

/// The layers that hand something on: all, if any has to.
fn handed_on(layers: &[Layer]) -> &[Layer] {
    if why_handed_on(layers).is_some() { layers } else { &[] }
}

/// The layer for which all layers hand something on.
fn why_handed_on(layers: &[Layer]) -> Option<usize> {
    layers.iter().position(|layer| layer.host_ns.is_some() || layer.activation_bytes > 0)
}

/// The graph of layers: each is an op that reads a state, with its number. Where layers hand something
/// on, each also reads the activation of the layer before and writes its own: a temporary, or a
/// state of the last layer. A layer also reads and writes its [`cache`], a state, and writes its
/// [`output`].
///
/// # Errors
/// [`Error::Graph`]: there is no layer, one has no bytes, or bytes or times exceed 64 bits; one hands
/// nothing on, though some layer may run on the host or others hand something on.
pub fn graph(layers: &[Layer]) -> Result<Graph, Error> {
    let mut graph = OwnedGraph::new("layers");
    let name = |number: usize| match &*layers[number].name {
        "" => format!("layer {number}"),
        name => name.to_owned(),
    };
    for (number, layer) in layers.iter().enumerate() {
        graph.push_tensor(name(number), layer.bytes, Kind::State);
    }
    let why = why_handed_on(layers);
    for (number, layer) in handed_on(layers).iter().enumerate() {
        let kind = if number + 1 == layers.len() { Kind::State } else { Kind::Temporary };
        let activation = format!("{}, activation", name(number));
        let tensor = graph.push_tensor(activation, layer.activation_bytes, kind);
        if let Some(other) = why.filter(|_| layer.activation_bytes == 0) {
            let message = hands_nothing_on(&name(number), &name(other), &layers[other]);
            return Err(Error::Graph { error: GraphError::EmptyTensor(tensor), message });
        }
    }
    let mut push = |what: &str, kind, bytes_of: fn(&Layer) -> u64| -> Vec<_> {
        let each = layers.iter().enumerate().map(|(number, layer)| {
            let name = || format!("{}, {what}", name(number));
            let bytes = bytes_of(layer);
            (bytes > 0).then(|| graph.push_tensor(name(), bytes, kind))
        });
        each.collect()
    };
    let caches = push("cache", Kind::State, cache_bytes);
    let outputs = push("output", Kind::Output, output_bytes);
    for (number, layer) in layers.iter().enumerate() {
        let count = layers.len();
        let activation = |number: usize| why.map(|_| TensorId((count + number % count) as u32));
        let (weights, before) = (TensorId(number as u32), activation(number + count - 1));
        let (cache, output) = (caches[number], outputs[number]);
        let reads: Vec<_> = [Some(weights), before, cache].into_iter().flatten().collect();
        let writes: Vec<_> = [activation(number), cache, output].into_iter().flatten().collect();
        let op = graph.push_op(name(number), layer.time_ns, 0, &reads, &writes);
        if let Some(host_ns) = layer.host_ns {
            graph.set_host_ns(op, host_ns);
        }
    }
    Graph::new(graph)
}

fn hands_nothing_on(name: &str, other: &str, layer: &Layer) -> String {
    let (name, other) = (Shown::name(name), Shown::name(other));
    let why = if layer.host_ns.is_some() { "may run on the host" } else { "hands something on" };
    format!(
        "{name:?} hands on 0 bytes, but {other:?} {why}: then each layer needs activation_bytes"
    )
}
