//! Decoders whose states are divided among devices.

use crate::by_hand::operands;
use planner_core::{Kind, Op, TensorId};
use std::collections::BTreeMap;
use workloads::OwnedGraph;

/// Divides the states of a training step among devices, as `fully_shard` of PyTorch does: a device keeps
/// 1/n of each state. A collective gathers a whole state before the first op that only reads it, and
/// another one reduces each gradient to the part that an update reads. Gathers are repeatable.
/// O(operands × log tensors).
#[must_use]
pub fn sharded(graph: &OwnedGraph, devices: u64, network_bytes_per_s: u64) -> OwnedGraph {
    let mut into = OwnedGraph::new(&graph.name);
    for (tensor, name) in graph.tensors.iter().zip(&graph.tensor_names) {
        let parts = if tensor.kind == Kind::State { devices } else { 1 };
        into.push_tensor(name.clone(), tensor.bytes.div_ceil(parts), tensor.kind);
    }
    let mut sharding =
        Sharding { graph, into, devices, network_bytes_per_s, others: BTreeMap::new() };
    for at in 0..graph.ops.len() {
        sharding.op(at);
    }
    sharding.into
}

struct Sharding<'g> {
    graph: &'g OwnedGraph,
    into: OwnedGraph,
    devices: u64,
    network_bytes_per_s: u64,
    /// The whole of each state, and the part of each gradient.
    others: BTreeMap<TensorId, TensorId>,
}

impl Sharding<'_> {
    fn op(&mut self, at: usize) {
        let Op { time_ns, workspace_bytes, repeatable, .. } = self.graph.ops[at];
        let (reads, writes) = operands(self.graph, at);
        let kind = |tensor: TensorId| self.graph.tensors[tensor.index()].kind;
        let updates = writes.iter().any(|&tensor| kind(tensor) == Kind::State);
        let wanted = if updates { Kind::Temporary } else { Kind::State };
        let exchanged: Vec<_> = reads.iter().map(|&tensor| kind(tensor) == wanted).collect();
        let reads: Vec<_> = reads
            .iter()
            .zip(exchanged)
            .map(|(&tensor, exchanged)| if exchanged { self.other(tensor) } else { tensor })
            .collect();
        let parts = if updates { self.devices } else { 1 };
        let name = &self.graph.op_names[at];
        let op = self.into.push_op(name, time_ns / parts, workspace_bytes, &reads, writes);
        self.into.ops[op.index()].repeatable = repeatable;
    }

    /// The whole of a state, or the part of a gradient. Adds its collective if there is none so far.
    fn other(&mut self, tensor: TensorId) -> TensorId {
        if let Some(&other) = self.others.get(&tensor) {
            return other;
        }
        let (name, bytes) =
            (&self.graph.tensor_names[tensor.index()], self.graph.tensors[tensor.index()].bytes);
        let is_state = self.graph.tensors[tensor.index()].kind == Kind::State;
        let (what, own_bytes) =
            if is_state { ("whole", bytes) } else { ("part of", bytes.div_ceil(self.devices)) };
        let other = self.into.push_tensor(format!("{what} {name}"), own_bytes, Kind::Temporary);
        let moved_bytes = u128::from(bytes / self.devices * (self.devices - 1));
        let time_ns = 5_000 + moved_bytes * 1_000_000_000 / u128::from(self.network_bytes_per_s);
        let op = self.into.push_op(
            format!("make {what} {name}"),
            time_ns as u64,
            0,
            &[tensor],
            &[other],
        );
        self.into.ops[op.index()].collective = true;
        self.into.ops[op.index()].repeatable = is_state;
        self.others.insert(tensor, other);
        other
    }
}
