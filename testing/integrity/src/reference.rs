//! The values that every run of a graph must reproduce.

use crate::FoldOrder;
use crate::value::{self, Reading, Value, digest};
use planner_core::{Graph, Kind};

/// The values of all tensors after `iterations` of a graph, computed from the graph alone: each op
/// in the given order, on whole values. Every plan must reproduce them on every schedule and
/// device. O(operands) per iteration, whatever the size of the tensors.
#[must_use]
pub fn reference_values(graph: &Graph<'_>, iterations: u64) -> Vec<Value> {
    let bytes = |tensor| graph.tensor(tensor).bytes;
    let initial = |tensor| value::initial_state(tensor, bytes(tensor));
    let mut values: Vec<Value> = graph.tensor_ids().map(initial).collect();
    for iteration in 1..=iterations {
        for tensor in graph.tensor_ids() {
            if graph.tensor(tensor).kind == Kind::Input {
                values[tensor.index()] = value::input(tensor, iteration, bytes(tensor));
            }
        }
        for op in graph.op_ids() {
            let FoldOrder { reads, repeated } = FoldOrder::new(graph, op);
            let tensors = reads.iter().map(|&position| graph.reads(op)[position]);
            let reads = tensors.map(|tensor| Reading::exact(values[tensor.index()]));
            let results = value::op_results(op, repeated, reads);
            for (position, &tensor) in (0..).zip(graph.writes(op)) {
                let result = results.of(graph.tensor(tensor).kind);
                values[tensor.index()] = value::written(result, position, bytes(tensor));
            }
        }
    }
    values
}

/// The [`digest`] of the states among [`reference_values`].
#[must_use]
pub fn reference_digest(graph: &Graph<'_>, iterations: u64) -> u64 {
    let values = reference_values(graph, iterations);
    let states = graph.tensor_ids().filter(|&tensor| graph.tensor(tensor).kind == Kind::State);
    digest(states.map(|tensor| Reading::exact(values[tensor.index()])))
}
