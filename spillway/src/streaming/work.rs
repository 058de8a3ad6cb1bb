//! The graph of layers, and the tensors of each layer.

use super::Layer;
use crate::error::Error;
use crate::graph::Graph;
use planner_core::{GraphError, Kind, TensorId};
use workloads::{OwnedGraph, Shown};

/// Returns the tensor of the cache of a layer, if it has a cache. Caches follow weights and activations, in
/// the order of layers. O(layers).
#[must_use]
pub fn cache(layers: &[Layer], layer: usize) -> Option<TensorId> {
    numbered(layers, handed_on(layers).len() + layers.len(), cache_bytes).nth(layer)?
}

/// Returns the tensor of the output of a layer, if it has an output. Outputs follow caches, in the order of
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

/// Numbers the layers with some bytes, from a first number on.
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

/// Returns the layers with activations: all layers, if any layer needs one.
fn handed_on(layers: &[Layer]) -> &[Layer] {
    if why_handed_on(layers).is_some() { layers } else { &[] }
}

/// Returns a layer that makes all layers need an activation.
fn why_handed_on(layers: &[Layer]) -> Option<usize> {
    layers.iter().position(|layer| layer.host_ns.is_some() || layer.activation_bytes > 0)
}

/// Builds the graph of layers. Each layer is an op that reads a state with the same number. If layers have
/// activations, each op also reads the activation of the layer before and writes its own. Activations are
/// temporaries; the last layer's is a state. An op also reads and writes its [`cache`], a state, and writes
/// its [`output`].
///
/// # Errors
/// [`Error::Graph`] if there is no layer, a layer has no bytes, or bytes or times exceed 64 bits; or if a
/// layer has no activation although some layer may run on the host or other layers have activations.
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
