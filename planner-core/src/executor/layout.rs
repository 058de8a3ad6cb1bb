//! Where the plan's memory lies: chunks, pools, and the address of every tensor.

#![expect(
    clippy::indexing_slicing,
    reason = "pool numbers and tensor ids are those of the verified plan, and the arrays have an \
              entry for each pool and tensor"
)]

use super::Fault;
use super::spares::{Mapper, Row, joined};
use crate::backend::{Chunks, DeviceAddress, Paging};
use crate::graph::TensorId;
use crate::pieces::Pieces;
use crate::plan::{Plan, PlanError, Pool};
use crate::scratch::{Limits, Scratch, total, words};
use crate::switch::ChunkMap;
use crate::verify::Verified;
use bytemuck::{Pod, Zeroable};
use core::iter;

/// Where a pool lies.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct PoolMemory {
    first_chunk: u64,
    /// The address at which the whole pool is mapped, unless its tensors have ranges of their own.
    address: u64,
    /// 1 if tensors have ranges of their own, else 0. No address could stand for this: a device may
    /// return any.
    has_ranges: u64,
}

/// Device memory under one plan.
///
/// A pool in which no tensor or workspace takes more than one object is mapped as a whole, if a range
/// of the device can be so large. In any other pool, each tensor and workspace has virtual ranges of
/// its own.
#[derive(Debug)]
pub(super) struct Layout<'a> {
    pub(super) verified: Verified<'a>,
    pub(super) pieces: Pieces<'a>,
    /// The device's chunks that the plan uses.
    chunk_map: ChunkMap<'a>,
    /// The most chunks of a range.
    most_range_chunks: u64,
    arena_address: u64,
    pools: &'a mut [PoolMemory],
    /// The current address of each tensor.
    pub(super) address: &'a mut [u64],
    /// The number of pieces of each tensor that have objects.
    pub(super) resident: &'a mut [u32],
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "the plan is verified: its arena and pools fit into a device of 64-bit size, and no \
              chunk and no object has 0 bytes"
)]
impl<'a> Layout<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            Pieces::scratch_words(limits),
            words::<PoolMemory>(limits.pools),
            words::<u64>(limits.tensors),
            words::<u32>(limits.tensors),
        ])
    }

    /// Computes the layout, without calling the device. The plan's chunks are numbered in the order
    /// of the arena, pool 0, pool 1, ….
    pub(super) fn new(
        verified: &Verified<'a>,
        chunk_map: ChunkMap<'a>,
        most_range_chunks: u64,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let (graph, plan) = (verified.graph(), verified.plan());
        let tensors = graph.tensors().len();
        let layout = Self {
            verified: *verified,
            pieces: Pieces::new(graph, verified.machine(), plan, scratch)?,
            chunk_map,
            most_range_chunks,
            arena_address: 0,
            pools: scratch.take(plan.pools.len(), PoolMemory::zeroed())?,
            address: scratch.take(tensors, 0)?,
            resident: scratch.take(tensors, 0)?,
        };
        let mut first_chunk = layout.arena().count;
        for pool in 0..plan.pools.len() {
            // Objects that share chunks cannot be mapped by themselves.
            let has_chunks = layout.object_bytes(pool).is_multiple_of(layout.chunk_bytes());
            let is_too_large = has_chunks && !layout.fits_range(pool);
            let has_ranges = u64::from(is_too_large || !layout.takes_one_object(pool));
            layout.pools[pool] = PoolMemory { first_chunk, address: 0, has_ranges };
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

    /// The chunks of the arena.
    fn arena(&self) -> Chunks {
        Chunks { first: 0, count: self.plan().arena_bytes.div_ceil(self.chunk_bytes()) }
    }

    pub(super) fn chunks(&self, pool: usize) -> u64 {
        let Pool { object_bytes, count } = self.plan().pools[pool];
        (object_bytes * count).div_ceil(self.chunk_bytes())
    }

    /// Maps the arena and the pools that are mapped as a whole.
    pub(super) fn set_up<B: Paging>(
        &mut self,
        mapper: &mut Mapper<'_, '_, B>,
    ) -> Result<(), Fault<B::Error>> {
        self.arena_address = self.map_whole(mapper, self.arena())?;
        for placement in self.plan().arena {
            self.address[placement.tensor.index()] =
                self.arena_address.saturating_add(placement.offset_bytes);
        }
        for pool in 0..self.pools.len() {
            if !self.has_ranges(pool) {
                self.pools[pool].address = self.map_pool(mapper, pool)?;
            }
        }
        Ok(())
    }

    /// The address and the plan's chunks of the arena and of each pool that is mapped as a whole.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (u64, Chunks)> {
        let arena = (self.arena_address, self.arena());
        let pools = (0..self.pools.len()).filter(|&pool| !self.has_ranges(pool));
        let pools = pools.map(|pool| (self.pools[pool].address, self.chunks_of(pool)));
        iter::once(arena).chain(pools).filter(|(_, chunks)| chunks.count > 0)
    }

    /// The chunks of a pool.
    pub(super) fn chunks_of(&self, pool: usize) -> Chunks {
        Chunks { first: self.pools[pool].first_chunk, count: self.chunks(pool) }
    }

    /// The device's chunks that back chunks of the plan, as rows.
    pub(super) fn rows(
        &self,
        Chunks { first, count }: Chunks,
    ) -> impl Iterator<Item = Row> + Clone + use<'a> {
        joined(self.chunk_map.on_device(first, count).map(Row::from))
    }

    /// The offset of an object in the plan's chunks, in bytes.
    pub(super) fn object_at(&self, pool: usize, object: u64) -> u64 {
        self.pools[pool].first_chunk * self.chunk_bytes() + object * self.object_bytes(pool)
    }

    /// The object at an address of a pool that is mapped as a whole.
    pub(super) fn object_of_address(&self, pool: usize, address: u64) -> u64 {
        address.saturating_sub(self.pools[pool].address) / self.object_bytes(pool)
    }

    /// The rows of device memory that back a range of the plan's bytes, each as an offset and a
    /// size in bytes.
    pub(super) fn on_device(
        &self,
        at: u64,
        bytes: u64,
    ) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        self.chunk_map.bytes_on_device(at, bytes, self.chunk_bytes())
    }

    /// Maps a whole pool at a range of its own and returns the address.
    pub(super) fn map_pool<B: Paging>(
        &self,
        mapper: &mut Mapper<'_, '_, B>,
        pool: usize,
    ) -> Result<u64, Fault<B::Error>> {
        self.map_whole(mapper, self.chunks_of(pool))
    }

    /// Maps chunks at a range of their own and returns the address.
    fn map_whole<B: Paging>(
        &self,
        mapper: &mut Mapper<'_, '_, B>,
        chunks: Chunks,
    ) -> Result<u64, Fault<B::Error>> {
        match chunks.count {
            0 => Ok(0),
            _ => mapper.map(self.rows(chunks)).map(|at| at.0),
        }
    }

    /// The chunks of consecutive objects.
    fn chunks_of_objects(&self, pool: usize, first: u64, count: u64) -> Chunks {
        let chunks_per_object = self.chunks_per_object(pool);
        let first = self.pools[pool].first_chunk + first * chunks_per_object;
        Chunks { first, count: count * chunks_per_object }
    }

    /// The device's chunks that back runs of objects, as rows. A run is a count and the number of
    /// its first object, or `None` if nothing is mapped there.
    pub(super) fn rows_of_objects(
        &self,
        pool: usize,
        runs: impl Iterator<Item = (Option<u64>, u64)> + Clone,
    ) -> impl Iterator<Item = Row> + Clone {
        joined(runs.flat_map(move |(first, count)| {
            let unmapped_chunks = count.saturating_mul(self.chunks_per_object(pool));
            let nothing = first.is_none().then_some(Row::nothing(unmapped_chunks));
            let chunks = first.map(|first| self.chunks_of_objects(pool, first, count));
            let mapped = chunks.into_iter().flat_map(|chunks| self.rows(chunks));
            nothing.into_iter().chain(mapped)
        }))
    }

    /// Whether no tensor and no workspace in the pool takes more than one object.
    fn takes_one_object(&self, pool: usize) -> bool {
        let graph = self.verified.graph();
        let tensors = graph.tensor_ids().filter(|&id| !self.pieces.in_arena(id));
        let workspaces = graph.op_ids().filter_map(|op| self.pieces.workspace(graph, op));
        tensors
            .map(|id| (self.pieces.pool(id), self.pieces.objects(id)))
            .chain(workspaces)
            .all(|(its_pool, objects)| its_pool != pool || objects <= 1)
    }

    /// Whether the whole pool can be mapped in one range.
    pub(super) fn fits_range(&self, pool: usize) -> bool {
        self.chunks(pool) <= self.most_range_chunks
    }

    /// Whether tensors and workspaces of a pool have ranges of their own.
    pub(super) fn has_ranges(&self, pool: usize) -> bool {
        self.pools[pool].has_ranges != 0
    }

    pub(super) fn object_bytes(&self, pool: usize) -> u64 {
        self.plan().pools[pool].object_bytes
    }

    pub(super) fn chunks_per_object(&self, pool: usize) -> u64 {
        self.object_bytes(pool) / self.chunk_bytes()
    }

    /// The address of an object in a pool that is mapped as a whole.
    pub(super) fn object_address(&self, pool: usize, object: u64) -> u64 {
        // The pool's size fits into 64 bits, but its end address on the device might not.
        self.pools[pool].address.saturating_add(object * self.object_bytes(pool))
    }

    /// The address of a byte of a tensor.
    pub(super) fn address(&self, tensor: TensorId, offset_bytes: u64) -> DeviceAddress {
        DeviceAddress(self.address[tensor.index()].saturating_add(offset_bytes))
    }

    /// Maps runs of objects, each a first object and a count, one after the other.
    pub(super) fn map<B: Paging>(
        &self,
        device: &mut B,
        pool: usize,
        runs: impl Iterator<Item = (u64, u64)>,
        mut at: DeviceAddress,
    ) -> Result<(), Fault<B::Error>> {
        for (first, count) in runs {
            let Chunks { first, count } = self.chunks_of_objects(pool, first, count);
            for chunks in self.chunk_map.on_device(first, count) {
                device.map(at, chunks)?;
                at.0 = at.0.saturating_add(chunks.count * self.chunk_bytes());
            }
        }
        Ok(())
    }
}
