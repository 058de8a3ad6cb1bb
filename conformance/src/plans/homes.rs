//! Random pools and a random arena.

use super::sequence::Sequence;
use crate::choices::Choices;
use crate::graphs::is_exchanged;
use planner_core::plan::ArenaPlacement;
use planner_core::{Graph, Kind, Machine, OpId, TensorId};

/// The places of all tensors and workspaces. The number of objects of each pool is decided later.
pub(super) struct Homes {
    pub(super) arena_bytes: u64,
    pub(super) arena: Vec<ArenaPlacement>,
    pub(super) pools_object_bytes: Vec<u64>,
    pub(super) tensor_pool: Vec<u32>,
    pub(super) workspace_pool: Vec<u32>,
}

impl Homes {
    /// One to three pools, of chunks or of slabs, and an arena in half of the cases.
    pub(super) fn choose(
        graph: &Graph<'_>,
        machine: &Machine,
        sequence: &Sequence<'_>,
        choices: &mut Choices,
    ) -> Self {
        let chunk_bytes = machine.chunk_bytes;
        let mut pools_object_bytes = vec![chunk_bytes * (1 + choices.below(2) as u64)];
        if choices.one_in(2) {
            pools_object_bytes.push(1 + choices.below(700) as u64);
        }
        if choices.one_in(3) {
            pools_object_bytes.push(chunk_bytes * (1 + choices.below(3) as u64));
        }
        let mut homes = Self {
            arena_bytes: 0,
            arena: Vec::new(),
            tensor_pool: Vec::new(),
            workspace_pool: Vec::new(),
            pools_object_bytes,
        };
        let tensors_bytes = graph.tensors().iter().map(|tensor| tensor.bytes);
        homes.tensor_pool = homes.pools_for(machine, tensors_bytes, &mut choices.fork(25));
        let workspaces_bytes = graph.ops().iter().map(|op| op.workspace_bytes);
        homes.workspace_pool = homes.pools_for(machine, workspaces_bytes, &mut choices.fork(15));
        if choices.one_in(2) {
            homes.fill_arena(graph, machine, sequence, choices);
            homes.arena_bytes += choices.below(3) as u64 * 100;
        }
        homes
    }

    /// A pool for each size. An empty table if all are in pool 0.
    fn pools_for(
        &self,
        machine: &Machine,
        sizes_bytes: impl Iterator<Item = u64>,
        choices: &mut Choices,
    ) -> Vec<u32> {
        let table: Vec<u32> =
            sizes_bytes.map(|bytes| self.pool_for(machine, bytes, choices)).collect();
        if table.iter().all(|&pool| pool == 0) { Vec::new() } else { table }
    }

    /// A pool of chunks, or a pool of slabs that are large enough.
    fn pool_for(&self, machine: &Machine, bytes: u64, choices: &mut Choices) -> u32 {
        let suits = |&pool: &u32| {
            let object_bytes = self.pools_object_bytes[pool as usize];
            bytes <= object_bytes || object_bytes.is_multiple_of(machine.chunk_bytes)
        };
        let suitable: Vec<u32> = (0..self.pools_object_bytes.len() as u32).filter(suits).collect();
        choices.pick(&suitable).unwrap_or(0)
    }

    pub(super) fn in_arena(&self, tensor: TensorId) -> bool {
        self.arena.iter().any(|placement| placement.tensor == tensor)
    }

    /// The pool of a tensor. `None` in the arena.
    pub(super) fn pool_of(&self, tensor: TensorId) -> Option<usize> {
        let pool = self.tensor_pool.get(tensor.index()).map_or(0, |&pool| pool as usize);
        (!self.in_arena(tensor)).then_some(pool)
    }

    /// The number of objects of a tensor. 1 in the arena.
    pub(super) fn objects(&self, graph: &Graph<'_>, tensor: TensorId) -> usize {
        let bytes = graph.tensor(tensor).bytes;
        self.pool_of(tensor)
            .map_or(1, |pool| bytes.div_ceil(self.pools_object_bytes[pool]) as usize)
    }

    /// The pool of an op's workspace, and its number of objects.
    pub(super) fn workspace(&self, graph: &Graph<'_>, op: OpId) -> (usize, u64) {
        let pool = self.workspace_pool.get(op.index()).map_or(0, |&pool| pool as usize);
        (pool, graph.op(op).workspace_bytes.div_ceil(self.pools_object_bytes[pool]))
    }

    /// Puts some of the tensors that may lie in the arena at the first free offset.
    fn fill_arena(
        &mut self,
        graph: &Graph<'_>,
        machine: &Machine,
        sequence: &Sequence<'_>,
        choices: &mut Choices,
    ) {
        for tensor in graph.tensor_ids() {
            let bytes = graph.tensor(tensor).bytes;
            if bytes > 2048 || choices.one_in(2) || !may_lie_in_arena(graph, sequence, tensor) {
                continue;
            }
            let step_bytes = machine.chunk_bytes.min(256);
            let mut offset_bytes = 0;
            while !self.is_free(graph, sequence, tensor, offset_bytes) {
                offset_bytes += step_bytes;
            }
            self.arena.push(ArenaPlacement { tensor, offset_bytes });
            self.arena_bytes = self.arena_bytes.max(offset_bytes + bytes);
        }
    }

    fn is_free(
        &self,
        graph: &Graph<'_>,
        sequence: &Sequence<'_>,
        tensor: TensorId,
        offset_bytes: u64,
    ) -> bool {
        let end_bytes = offset_bytes + graph.tensor(tensor).bytes;
        self.arena.iter().all(|other| {
            let other_end_bytes = other.offset_bytes + graph.tensor(other.tensor).bytes;
            end_bytes <= other.offset_bytes
                || other_end_bytes <= offset_bytes
                || live_apart(graph, sequence, tensor, other.tensor)
        })
    }
}

/// Whether both are temporaries that no collective touches, and no span of one meets a span of the
/// other.
fn live_apart(graph: &Graph<'_>, sequence: &Sequence<'_>, one: TensorId, other: TensorId) -> bool {
    let may_share =
        |tensor| graph.tensor(tensor).kind == Kind::Temporary && !is_exchanged(graph, tensor);
    let spans = sequence.spans(other);
    let is_apart = |(first, last)| spans.iter().all(|&(begin, end)| last < begin || end < first);
    may_share(one) && may_share(other) && sequence.spans(one).into_iter().all(is_apart)
}

/// An input may not lie in the arena if it is never read, or is written after its last read. No
/// tensor may if the host has to keep its values or an op on the host touches it.
fn may_lie_in_arena(graph: &Graph<'_>, sequence: &Sequence<'_>, tensor: TensorId) -> bool {
    let last_read = sequence.last_read(tensor);
    let is_lasting = last_read.is_some() && sequence.last_write(tensor) <= last_read;
    let is_input = graph.tensor(tensor).kind == Kind::Input;
    (!is_input || is_lasting) && !sequence.needs_host(tensor) && !sequence.touches_on_host(tensor)
}
