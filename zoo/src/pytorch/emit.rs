//! Builds a graph from traced ops.

use super::ImportError;
use super::ops::{Access, Touch, TracedOp};
use super::repeats::Repeats;
use super::storage::{Origin, Tensor, TensorIndex};
use super::window::Window;
use hashbrown::{HashMap, HashSet};
use planner_core::{Kind, TensorId};
use workloads::OwnedGraph;

/// Builds the graph. Tensors are in the order of their first use in an op.
///
/// # Errors
/// The graph breaks a rule of the format.
pub(super) fn emit(
    name: &str,
    window: &Window,
    ops: &[TracedOp],
    op_ns: &[u64],
    tensors: &[Tensor],
    kinds: &[Kind],
) -> Result<OwnedGraph, ImportError> {
    let workspaces = workspaces(window, ops, tensors);
    let mut emitted = Emitted {
        graph: OwnedGraph::new(name),
        tensors,
        kinds,
        ids: vec![None; tensors.len()],
        uses_of_storage: HashMap::new(),
        has_value: kinds.iter().map(|kind| *kind != Kind::Temporary).collect(),
    };
    let mut repeats = Repeats::Never;
    for (at, op) in ops.iter().enumerate() {
        let node = &window.nodes[op.node];
        let name = match op.position {
            None => format!("{}@{}", node.base_name(), node.id),
            Some(position) => format!("{}.{position}@{}", node.base_name(), node.id),
        };
        let first = at == 0 || ops[at - 1].node != op.node;
        if first {
            repeats = Repeats::of(node);
        }
        let workspace_bytes =
            workspaces.get(&op.node).copied().filter(|_| first).unwrap_or_default();
        let (reads, writes) = emitted.operands(&op.touches);
        if !reads.is_empty() || !writes.is_empty() {
            let id = emitted.graph.push_op(name, op_ns[at], workspace_bytes, &reads, &writes);
            if repeats.allow(!reads.is_empty(), emitted.updates(&reads, &writes)) {
                emitted.graph.promise_repeats(id);
            }
        }
    }
    emitted.graph.graph().map_err(ImportError::Graph)?;
    Ok(emitted.graph)
}

/// Returns the memory that an op allocates inside and no op touches, by the op's node.
fn workspaces(window: &Window, ops: &[TracedOp], tensors: &[Tensor]) -> HashMap<usize, u64> {
    let is_op: HashSet<usize> = ops.iter().map(|op| op.node).collect();
    let touched: HashSet<TensorIndex> =
        ops.iter().flat_map(|op| &op.touches).map(|touch| touch.tensor).collect();
    let around = window.innermost(|node| is_op.contains(&node));
    let mut bytes: HashMap<usize, u64> = HashMap::new();
    for (at, tensor) in tensors.iter().enumerate() {
        let unused = tensor.origin == Origin::Allocated && !touched.contains(&at);
        if let Some(op) = around[tensor.node].filter(|_| unused) {
            let sum = bytes.entry(op).or_default();
            *sum = sum.saturating_add(tensor.bytes);
        }
    }
    bytes
}

struct Emitted<'a> {
    graph: OwnedGraph,
    tensors: &'a [Tensor],
    kinds: &'a [Kind],
    ids: Vec<Option<TensorId>>,
    uses_of_storage: HashMap<i64, u32>,
    /// For each tensor, whether it holds a defined value.
    has_value: Vec<bool>,
}

impl Emitted<'_> {
    /// Returns the reads and writes of an op. A write to a part of a tensor also reads the tensor, since it
    /// keeps the rest. Before the first write there is no rest, so the first touch does not read.
    fn operands(&mut self, touches: &[Touch]) -> (Vec<TensorId>, Vec<TensorId>) {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for touch in touches {
            let whole = touch
                .bytes
                .is_some_and(|(first, end)| first == 0 && self.tensors[touch.tensor].bytes <= end);
            let reading = touch.access != Access::Overwrite || !whole;
            if reading && self.has_value[touch.tensor] {
                reads.push(touch.tensor);
            }
            if touch.access != Access::Read {
                writes.push(touch.tensor);
            }
        }
        writes.iter().for_each(|&tensor| self.has_value[tensor] = true);
        (self.ids(&reads), self.ids(&writes))
    }

    /// Returns whether an op reads and writes a state or an input.
    fn updates(&self, reads: &[TensorId], writes: &[TensorId]) -> bool {
        let lasts = |tensor: TensorId| self.graph.tensors[tensor.index()].kind != Kind::Temporary;
        let written: HashSet<_> = writes.iter().collect();
        reads.iter().any(|tensor| lasts(*tensor) && written.contains(tensor))
    }

    fn ids(&mut self, tensors: &[TensorIndex]) -> Vec<TensorId> {
        let mut ids = Vec::with_capacity(tensors.len());
        let mut seen = HashSet::new();
        for &tensor in tensors {
            if seen.insert(tensor) {
                ids.push(self.id(tensor));
            }
        }
        ids
    }

    fn id(&mut self, tensor: TensorIndex) -> TensorId {
        if let Some(id) = self.ids[tensor] {
            return id;
        }
        let Tensor { storage, bytes, .. } = self.tensors[tensor];
        let uses = self.uses_of_storage.entry(storage).or_default();
        *uses += 1;
        let name = if *uses == 1 { format!("s{storage}") } else { format!("s{storage}#{uses}") };
        let id = self.graph.push_tensor(name, bytes, self.kinds[tensor]);
        self.ids[tensor] = Some(id);
        id
    }
}
