//! Activation checkpointing that is written into a decoder by hand, as people write it into their
//! models.

use planner_core::{Kind, Op, TensorId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use workloads::OwnedGraph;

/// Writes activation checkpointing into a graph. A tensor that a layer's forward pass makes only
/// for its backward pass is not kept, but made a second time before the backward pass. The inputs
/// of a layer are kept. No op of the result is repeatable, so a planner decides only what moves.
///
/// The forward pass of a layer is all repeatable ops that are named `layers.N.…`, perhaps after the
/// name of a micro-batch, except ops named `….backward…`. Only ops whose results the backward pass
/// needs run a second time. O(layers × operands).
///
/// # Panics
/// If a tensor that a layer reads is overwritten before it is read again.
#[must_use]
pub fn checkpointed(graph: &OwnedGraph) -> OwnedGraph {
    let mut written = Rewriting { graph, into: bare(graph), copies: BTreeMap::new() };
    let repeats: BTreeMap<_, _> = layers(graph)
        .into_iter()
        .filter_map(|layer| Repeat::of(graph, layer))
        .map(|repeat| (repeat.before, repeat))
        .collect();
    for at in 0..graph.ops.len() {
        if let Some(repeat) = repeats.get(&at) {
            written.write_again(repeat);
        }
        written.write(at, &graph.op_names[at]);
    }
    written.into
}

/// The ops of each layer's forward pass.
fn layers(graph: &OwnedGraph) -> Vec<Range<usize>> {
    let mut layers: Vec<(&str, Range<usize>)> = Vec::new();
    for (at, op) in graph.ops.iter().enumerate() {
        let Some(name) = layer(&graph.op_names[at]).filter(|_| op.repeatable) else { continue };
        match layers.last_mut() {
            Some((last, ops)) if *last == name && ops.end == at => ops.end += 1,
            _ => layers.push((name, at..at + 1)),
        }
    }
    layers.into_iter().map(|(_, ops)| ops).collect()
}

/// The start of a forward op's name, which names its layer and its micro-batch.
fn layer(op: &str) -> Option<&str> {
    let (_, rest) = op.split_once("layers.").filter(|_| !is_backward(op))?;
    Some(&op[..op.len() - rest.len() + rest.find('.')?])
}

fn is_backward(op: &str) -> bool {
    op.contains(".backward")
}

/// The reads and the writes of an op.
pub(crate) fn operands(graph: &OwnedGraph, at: usize) -> (&[TensorId], &[TensorId]) {
    let Op { first_operand, reads, writes, .. } = graph.ops[at];
    let operands = &graph.operands[first_operand as usize..][..(reads + writes) as usize];
    operands.split_at(reads as usize)
}

/// The tensors of the graph, without ops.
fn bare(graph: &OwnedGraph) -> OwnedGraph {
    let mut bare = OwnedGraph::new(format!("{},checkpointed", graph.name));
    bare.tensors.clone_from(&graph.tensors);
    bare.tensor_names.clone_from(&graph.tensor_names);
    bare
}

/// The ops of a layer that run a second time.
struct Repeat {
    /// The ops, in their order.
    ops: Vec<usize>,
    /// The op before which they run.
    before: usize,
}

impl Repeat {
    fn of(graph: &OwnedGraph, layer: Range<usize>) -> Option<Self> {
        let is_temporary =
            |tensor: &TensorId| graph.tensors[tensor.index()].kind == Kind::Temporary;
        let written = |at| operands(graph, at).1.iter().copied().filter(is_temporary);
        let made: BTreeSet<_> = layer.clone().flat_map(written).collect();
        let (mut kept, mut needed) = (BTreeSet::<TensorId>::new(), BTreeSet::<TensorId>::new());
        for at in layer.end..graph.ops.len() {
            let read = operands(graph, at).0.iter().filter(|tensor| made.contains(tensor));
            match is_backward(&graph.op_names[at]) {
                // A tensor that the next layer, the last norm or the loss reads is kept.
                false => kept.extend(read),
                true => needed.extend(read.filter(|tensor| !kept.contains(tensor))),
            }
        }
        let mut ops = Vec::new();
        for at in layer.clone().rev() {
            let (reads, writes) = operands(graph, at);
            if writes.iter().any(|tensor| needed.contains(tensor)) {
                needed.extend(reads.iter().filter(|tensor| made.contains(tensor)));
                ops.push(at);
            }
        }
        ops.reverse();
        let name = self::layer(&graph.op_names[layer.start])?;
        let of_layer = |op: &String| {
            is_backward(op) && op.strip_prefix(name).is_some_and(|part| part.starts_with('.'))
        };
        let before = layer.end + graph.op_names[layer.end..].iter().position(of_layer)?;
        let repeat = Self { ops, before };
        repeat.check(graph, &made);
        Some(repeat)
    }

    /// Checks that tensors from outside of the layer still hold the values that were read first.
    fn check(&self, graph: &OwnedGraph, made: &BTreeSet<TensorId>) {
        for &at in &self.ops {
            let mut taken = operands(graph, at).0.iter().filter(|tensor| !made.contains(tensor));
            let overwritten = |tensor: &TensorId| {
                (at..self.before).any(|later| operands(graph, later).1.contains(tensor))
            };
            let name = &graph.op_names[at];
            assert!(
                !taken.any(overwritten),
                "a tensor that {name} reads is overwritten before it runs again"
            );
        }
    }
}

/// A graph that is being written, and the new tensors that stand for the tensors that are made
/// again.
struct Rewriting<'g> {
    graph: &'g OwnedGraph,
    into: OwnedGraph,
    copies: BTreeMap<TensorId, TensorId>,
}

impl Rewriting<'_> {
    /// Writes the ops again. From here on, new tensors stand for the tensors that they write.
    fn write_again(&mut self, repeat: &Repeat) {
        for &at in &repeat.ops {
            for &tensor in operands(self.graph, at).1 {
                if self.copies.contains_key(&tensor) {
                    continue;
                }
                let name = format!("{} again", self.graph.tensor_names[tensor.index()]);
                let bytes = self.graph.tensors[tensor.index()].bytes;
                let copy = self.into.push_tensor(name, bytes, Kind::Temporary);
                self.copies.insert(tensor, copy);
            }
            self.write(at, &format!("{} again", self.graph.op_names[at]));
        }
    }

    fn write(&mut self, at: usize, name: &str) {
        let now = |tensors: &[TensorId]| -> Vec<_> {
            tensors.iter().map(|tensor| *self.copies.get(tensor).unwrap_or(tensor)).collect()
        };
        let (reads, writes) = operands(self.graph, at);
        let (reads, writes) = (now(reads), now(writes));
        let Op { time_ns, workspace_bytes, host_ns, collective, .. } = self.graph.ops[at];
        let op = self.into.push_op(name, time_ns, workspace_bytes, &reads, &writes);
        self.into.ops[op.index()].host_ns = host_ns;
        self.into.ops[op.index()].collective = collective;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{DefaultHasher, Hash, Hasher};
    use zoo::models;

    /// The last value of each state and output. The values that an op writes follow from its name
    /// and from the values that it reads.
    fn results(graph: &OwnedGraph) -> Vec<(String, u64)> {
        let hash = |value: &dyn Fn(&mut DefaultHasher)| {
            let mut hasher = DefaultHasher::new();
            value(&mut hasher);
            hasher.finish()
        };
        let mut held: Vec<u64> = (0..graph.tensors.len() as u64).collect();
        for at in 0..graph.ops.len() {
            let (reads, writes) = operands(graph, at);
            let name = graph.op_names[at].trim_end_matches(" again");
            let read: Vec<_> = reads.iter().map(|tensor| held[tensor.index()]).collect();
            for (number, tensor) in writes.iter().enumerate() {
                held[tensor.index()] = hash(&|hasher| (name, &read, number).hash(hasher));
            }
        }
        let results = graph.tensors.iter().zip(&graph.tensor_names).zip(held);
        results
            .filter(|((tensor, _), _)| matches!(tensor.kind, Kind::State | Kind::Output))
            .map(|((_, name), held)| (name.clone(), held))
            .collect()
    }

    const SMALL: &str = "layers=3,width=64,heads=2,kv_heads=1,hidden=128,vocabulary=99,sequence=16";

    #[test]
    fn every_result_is_the_same() {
        for spec in ["llama:micro=2", "llama:rank=8", "llama:optimizer=sgd", "mixtral:experts=3"] {
            let graph = models::generate(&format!("{spec},{SMALL}")).unwrap();
            let again = checkpointed(&graph);
            assert!(again.graph().is_ok(), "{spec}");
            assert!(again.ops.len() > graph.ops.len(), "{spec}");
            assert!(again.ops.iter().all(|op| !op.repeatable), "{spec}");
            assert_eq!(results(&again), results(&graph), "{spec}");
        }
    }

    #[test]
    fn a_layer_runs_again_in_front_of_its_backward_pass() {
        let graph = models::generate(&format!("llama:{SMALL}")).unwrap();
        let again = checkpointed(&graph);
        let names: Vec<_> = again.op_names.iter().map(String::as_str).collect();
        let start = names.iter().position(|name| name.ends_with(" again")).unwrap();
        assert_eq!(names[..start].last(), Some(&"norm.backward"));
        let layer: Vec<_> =
            names[start..].iter().take_while(|name| name.ends_with(" again")).collect();
        let parts = ["attn_norm", "attn.qkv", "attn.rotary", "attn", "attn.o", "attn.add"];
        let parts = parts.into_iter().chain(["mlp_norm", "mlp.gate_up", "mlp.swiglu"]);
        let expected: Vec<_> = parts.map(|part| format!("layers.2.{part} again")).collect();
        assert_eq!(layer, expected.iter().collect::<Vec<_>>());
        assert!(names[start + expected.len()].starts_with("layers.2.mlp.down.backward"));
        assert_eq!(
            names.iter().filter(|name| name.ends_with(" again")).count(),
            3 * expected.len()
        );
        let name = |tensor: &TensorId| &again.tensor_names[tensor.index()];
        let has_copy = |tensor| again.tensor_names.contains(&format!("{} again", name(tensor)));
        let old = (start..names.len()).flat_map(|at| operands(&again, at).0);
        assert_eq!(old.filter(|tensor| has_copy(tensor)).map(name).next(), None::<&String>);
    }

    #[test]
    #[should_panic(expected = "a tensor that layers.0.f reads is overwritten before it runs again")]
    fn what_a_layer_reads_stays_until_it_runs_again() {
        let mut graph = OwnedGraph::new("updated between the passes");
        let weight = graph.push_tensor("weight", 8, Kind::State);
        let [y, gradient] =
            ["y", "gradient"].map(|name| graph.push_tensor(name, 8, Kind::Temporary));
        let forward = graph.push_op("layers.0.f", 1, 0, &[weight], &[y]);
        graph.set_repeatable(forward);
        graph.push_op("update", 1, 0, &[], &[weight]);
        graph.push_op("layers.0.f.backward", 1, 0, &[y], &[gradient]);
        let _ = checkpointed(&graph);
    }

    #[test]
    fn a_graph_without_a_backward_pass_is_as_it_was() {
        let graph = models::generate(&format!("llama:mode=prompt,{SMALL}")).unwrap();
        let again = checkpointed(&graph);
        assert_eq!((&again.op_names, &again.operands), (&graph.op_names, &graph.operands));
    }
}
