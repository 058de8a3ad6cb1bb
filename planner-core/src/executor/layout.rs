//! Where the plan's memory lies: chunks, pools, and the address of every tensor.

use super::Fault;
use crate::backend::{Chunks, DeviceAddress, Paging};
use crate::graph::TensorId;
use crate::pieces::Pieces;
use crate::plan::{Plan, PlanError, Pool};
use crate::scratch::{Limits, Scratch, total, words};
use crate::verify::Verified;
use bytemuck::{Pod, Zeroable};

/// The address of a pool whose objects are mapped into ranges of their tensors.
const IN_RANGES: u64 = u64::MAX;

/// Where a pool lies.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct PoolMemory {
    first_chunk: u64,
    /// The address at which all of it is mapped, or [`IN_RANGES`].
    address: u64,
}

/// Device memory under one plan.
///
/// A pool in which nothing takes more than one object is mapped as a whole. In any other,
/// tensors and workspaces have virtual ranges of their own.
#[derive(Debug)]
pub(super) struct Layout<'a> {
    pub(super) verified: Verified<'a>,
    pub(super) pieces: Pieces<'a>,
    pools: &'a mut [PoolMemory],
    /// The address of each tensor, now.
    pub(super) address: &'a mut [u64],
    /// How many pieces of each tensor have objects.
    pub(super) resident: &'a mut [u32],
}

impl<'a> Layout<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            Pieces::scratch_words(limits),
            words::<PoolMemory>(limits.pools),
            words::<u64>(limits.tensors),
            words::<u32>(limits.tensors),
        ])
    }

    /// Lays the plan out, without calling the device. Chunks are numbered in the order of
    /// the arena, pool 0, pool 1, ….
    pub(super) fn new(
        verified: &Verified<'a>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let (graph, plan) = (verified.graph(), verified.plan());
        let tensors = graph.tensors().len();
        let layout = Self {
            verified: *verified,
            pieces: Pieces::new(graph, verified.machine(), plan, scratch)?,
            pools: scratch.take(plan.pools.len(), PoolMemory::zeroed())?,
            address: scratch.take(tensors, 0)?,
            resident: scratch.take(tensors, 0)?,
        };
        let mut first_chunk = layout.arena_chunks();
        for pool in 0..plan.pools.len() {
            let address = if layout.takes_one_object(pool) { 0 } else { IN_RANGES };
            layout.pools[pool] = PoolMemory { first_chunk, address };
            first_chunk += layout.chunks(pool);
        }
        Ok(layout)
    }

    pub(super) fn plan(&self) -> &Plan<'a> {
        self.verified.plan()
    }

    pub(super) fn chunk_bytes(&self) -> u64 {
        self.verified.machine().chunk_bytes
    }

    fn arena_chunks(&self) -> u64 {
        self.plan().arena_bytes.div_ceil(self.chunk_bytes())
    }

    fn chunks(&self, pool: usize) -> u64 {
        let Pool { object_bytes, count } = self.plan().pools[pool];
        (object_bytes * count).div_ceil(self.chunk_bytes())
    }

    /// Creates the chunks, and maps the arena and the pools that are mapped as a whole.
    pub(super) fn set_up<B: Paging>(&mut self, device: &mut B) -> Result<(), Fault<B::Error>> {
        let (arena, pools) = (self.arena_chunks(), self.plan().pools.len());
        device.create(arena + (0..pools).map(|pool| self.chunks(pool)).sum::<u64>())?;
        let base = map_whole(device, Chunks { first: 0, count: arena })?;
        for placement in self.plan().arena {
            self.address[placement.tensor.index()] = base.saturating_add(placement.offset_bytes);
        }
        for pool in 0..pools {
            if !self.has_ranges(pool) {
                let chunks =
                    Chunks { first: self.pools[pool].first_chunk, count: self.chunks(pool) };
                self.pools[pool].address = map_whole(device, chunks)?;
            }
        }
        Ok(())
    }

    /// Whether nothing in the pool takes more than one object.
    fn takes_one_object(&self, pool: usize) -> bool {
        let graph = self.verified.graph();
        let tensors = graph.tensor_ids().filter(|&id| !self.pieces.in_arena(id));
        let workspaces = graph.op_ids().filter_map(|op| self.pieces.workspace(graph, op));
        tensors
            .map(|id| (self.pieces.pool(id), self.pieces.objects(id)))
            .chain(workspaces)
            .all(|(its_pool, objects)| its_pool != pool || objects <= 1)
    }

    /// Whether what lies in a pool has ranges of its own.
    pub(super) fn has_ranges(&self, pool: usize) -> bool {
        self.pools[pool].address == IN_RANGES
    }

    pub(super) fn object_bytes(&self, pool: usize) -> u64 {
        self.plan().pools[pool].object_bytes
    }

    pub(super) fn chunks_per_object(&self, pool: usize) -> u64 {
        self.object_bytes(pool) / self.chunk_bytes()
    }

    /// The address of an object in a pool that is mapped as a whole.
    pub(super) fn object_address(&self, pool: usize, object: u64) -> u64 {
        // The pool ends within 64 bits, if not where the device has put it.
        self.pools[pool].address.saturating_add(object * self.object_bytes(pool))
    }

    /// The address of a tensor, or of a part of it.
    pub(super) fn address(&self, tensor: TensorId, offset_bytes: u64) -> DeviceAddress {
        DeviceAddress(self.address[tensor.index()].saturating_add(offset_bytes))
    }

    /// Maps runs of objects, each a first one and how many, one after the other.
    pub(super) fn map<B: Paging>(
        &self,
        device: &mut B,
        pool: usize,
        runs: impl Iterator<Item = (u64, u64)>,
        mut at: DeviceAddress,
    ) -> Result<(), Fault<B::Error>> {
        let chunks_per_object = self.chunks_per_object(pool);
        for (first, count) in runs {
            let first = self.pools[pool].first_chunk + first * chunks_per_object;
            let chunks = Chunks { first, count: count * chunks_per_object };
            device.map(at, chunks)?;
            at.0 = at.0.saturating_add(chunks.count * self.chunk_bytes());
        }
        Ok(())
    }
}

/// Maps chunks at a range of their own and returns its address.
fn map_whole<B: Paging>(device: &mut B, chunks: Chunks) -> Result<u64, Fault<B::Error>> {
    if chunks.count == 0 {
        return Ok(0);
    }
    let at = device.reserve(chunks.count)?;
    device.map(at, chunks)?;
    Ok(at.0)
}
