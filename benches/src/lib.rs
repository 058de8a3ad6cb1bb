//! Work of any size for the benches and the experiments.

pub mod fragmentation;
pub mod problems;

use planner_core::{Kind, TensorId};
use workloads::OwnedGraph;

/// Returns a training step of about `ops` ops: layers of a matrix product, a bias, a normalisation
/// and an activation, forward, backward, and an update of each parameter.
///
/// Sizes vary from layer to layer between a few hundred bytes and some tens of megabytes.
#[must_use]
pub fn training_step(ops: usize) -> OwnedGraph {
    const OPS_PER_LAYER: usize = 10;
    let layers = (ops / OPS_PER_LAYER).max(1);
    let mut graph = OwnedGraph::new(format!("training-step-{ops}"));
    let mut values = vec![graph.push_tensor("input", 8 << 20, Kind::Input)];
    let mut parameters = Vec::new();
    for layer in 0..layers {
        let width_bytes = (layer as u64 * 7 % 13 + 1) << 19;
        let mut add =
            |name: &str, bytes, kind| graph.push_tensor(format!("{name}.{layer}"), bytes, kind);
        let weight = add("weight", 2 * width_bytes, Kind::State);
        let momentum = add("momentum", 2 * width_bytes, Kind::State);
        let bias = add("bias", 1 << 10, Kind::State);
        let scale = add("scale", 2 << 10, Kind::State);
        parameters.push((weight, momentum, bias, scale));
        let [product, normal, statistics] =
            [("product", width_bytes), ("normal", width_bytes), ("statistics", 4 << 10)]
                .map(|(name, bytes)| add(name, bytes, Kind::Temporary));
        let last = *values.last().unwrap_or(&weight);
        let time_ns = 50_000 + width_bytes / 100;
        graph.push_op("product", time_ns, 1 << 20, &[last, weight], &[product]);
        graph.push_op("bias", 10_000, 0, &[product, bias], &[product]);
        graph.push_op("normal", 20_000, 0, &[product, scale], &[normal, statistics]);
        graph.push_op("activation", 10_000, 0, &[normal], &[normal]);
        values.extend([product, statistics, normal]);
    }
    backward(&mut graph, &values, &parameters);
    graph
}

fn backward(
    graph: &mut OwnedGraph,
    values: &[TensorId],
    parameters: &[(TensorId, TensorId, TensorId, TensorId)],
) {
    let Some(&result) = values.last() else { return };
    let result_bytes = graph.tensors[result.index()].bytes;
    let mut gradient = graph.push_tensor("d.result", result_bytes, Kind::Temporary);
    graph.push_op("loss", 10_000, 0, &[result], &[gradient]);
    for (layer, &(weight, momentum, bias, scale)) in parameters.iter().enumerate().rev() {
        let &[input, product, statistics, normal] = &values[3 * layer..3 * layer + 4] else {
            continue;
        };
        let bytes_of = |graph: &OwnedGraph, tensor: TensorId| graph.tensors[tensor.index()].bytes;
        let bytes = bytes_of(graph, product);
        let mut add = |name: &str, bytes: u64| {
            graph.push_tensor(format!("d.{name}.{layer}"), bytes, Kind::Temporary)
        };
        let d_product = add("product", bytes);
        let d_scale = add("scale", 2 << 10);
        let d_weight = add("weight", 2 * bytes);
        let d_input = add("input", bytes);
        let d_normal = gradient;
        let time_ns = 50_000 + bytes / 100;
        graph.push_op("d.activation", 10_000, 0, &[normal, d_normal], &[d_normal]);
        graph.push_op(
            "d.normal",
            30_000,
            0,
            &[product, statistics, scale, d_normal],
            &[d_product, d_scale],
        );
        graph.push_op("d.weight", time_ns, 1 << 20, &[input, d_product], &[d_weight]);
        graph.push_op("d.input", time_ns, 1 << 20, &[weight, d_product], &[d_input]);
        graph.push_op("update", 10_000, 0, &[d_weight, momentum, weight], &[momentum, weight]);
        graph.push_op("update.small", 5_000, 0, &[d_scale, scale, bias], &[scale, bias]);
        gradient = d_input;
    }
}
