//! Where everything lies: which objects hold which piece, and at which address.

use super::Fault;
use super::objects::{EMPTY, List, Objects, Shortage};
use super::unmaps::Unmaps;
use crate::backend::{Chunks, DeviceAddress, Paging, Streams};
use crate::graph::{OpId, TensorId};
use crate::pieces::Pieces;
use crate::plan::{Part, Plan, PlanError, Pool, Step};
use crate::scratch::{Limits, Scratch, words};
use crate::verify::Verified;
use core::ops::Range;

/// The address of a pool whose objects are mapped as they are allocated.
const MAPPED_AS_IT_GOES: u64 = u64::MAX;

/// A pool's first chunk, and the address at which all of it is mapped for good or
/// [`MAPPED_AS_IT_GOES`].
type Place = [u64; 2];

/// Device memory under one plan.
///
/// A pool in which nothing takes more than one object is mapped once. In any other each
/// tensor has virtual ranges of its own: one where it never leaves the device, and else
/// two, used in turn. So what comes in need not wait until what went out is unmapped; and
/// the next value of an input may arrive while the last is still read. Only a part that
/// comes back to where the rest stayed needs its own last place. Each workspace has
/// a range too: as a launch is enqueued long before the last one has ended, a shared range
/// would hold up the host.
#[derive(Debug)]
pub(super) struct Memory<'a> {
    verified: Verified<'a>,
    pub(super) pieces: Pieces<'a>,
    objects: Objects<'a>,
    /// The objects that hold each piece.
    held: &'a mut [List],
    /// How many pieces of each tensor have objects.
    resident: &'a mut [u32],
    places: &'a mut [Place],
    /// The address of each tensor, now.
    address: &'a mut [u64],
    /// The virtual ranges of each tensor in a pool that is mapped as it goes.
    ranges: &'a mut [[u64; 2]],
    /// The virtual range of each workspace in such a pool.
    workspaces: &'a mut [u64],
    unmaps: Unmaps<'a>,
}

/// Memory that a launch's workspace takes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workspace {
    pub(super) at: DeviceAddress,
    pool: usize,
    list: List,
    objects: u64,
}

impl<'a> Memory<'a> {
    pub(super) const fn scratch_words(limits: &Limits, runs: usize) -> usize {
        Pieces::scratch_words(limits)
            + words::<List>(limits.pieces)
            + words::<u32>(limits.tensors)
            + words::<Place>(limits.pools)
            + words::<u64>(limits.tensors)
            + words::<[u64; 2]>(limits.tensors)
            + words::<u64>(limits.ops)
            + Unmaps::scratch_words(2 * limits.pieces + limits.ops)
            + Objects::scratch_words(limits.pools, runs)
    }

    /// Lays the plan out, without calling the device. Takes all that is left of the scratch,
    /// up to what can be of use.
    pub(super) fn new(
        verified: &Verified<'a>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let (graph, plan) = (verified.graph(), verified.plan());
        let pieces = Pieces::new(graph, verified.machine(), plan, scratch)?;
        let tensors = graph.tensors().len();
        let slots = 2 * pieces.len() + graph.ops().len();
        let counts = plan.pools.iter().map(|pool| pool.count);
        let most_runs = counts.clone().fold(0, u64::saturating_add);
        Ok(Self {
            verified: *verified,
            held: scratch.take(pieces.len(), EMPTY)?,
            resident: scratch.take(tensors, 0)?,
            places: scratch.take(plan.pools.len(), [0, 0])?,
            address: scratch.take(tensors, 0)?,
            ranges: scratch.take(tensors, [0, 0])?,
            workspaces: scratch.take(graph.ops().len(), 0)?,
            unmaps: Unmaps::new(slots, scratch)?,
            objects: Objects::new(counts, most_runs, scratch)?,
            pieces,
        })
    }

    fn plan(&self) -> &Plan<'a> {
        self.verified.plan()
    }

    fn chunk_bytes(&self) -> u64 {
        self.verified.machine().chunk_bytes
    }

    /// Creates the chunks, maps what is mapped for good, and reserves the ranges of the
    /// rest. Chunks are numbered in the order of the arena, pool 0, pool 1, ….
    pub(super) fn set_up<B: Paging>(&mut self, device: &mut B) -> Result<(), Fault<B::Error>> {
        let arena = self.plan().arena_bytes.div_ceil(self.chunk_bytes());
        let pools = self.plan().pools;
        let chunk_bytes = self.chunk_bytes();
        let chunks = |pool: &Pool| (pool.object_bytes * pool.count).div_ceil(chunk_bytes);
        device.create(arena + pools.iter().map(chunks).sum::<u64>())?;
        let base = map_for_good(device, Chunks { first: 0, count: arena })?;
        for placement in self.plan().arena {
            self.address[placement.tensor.index()] = base + placement.offset_bytes;
        }
        let mut first = arena;
        for (index, pool) in pools.iter().enumerate() {
            let count = chunks(pool);
            let base = if self.takes_one_object(index) {
                map_for_good(device, Chunks { first, count })?
            } else {
                MAPPED_AS_IT_GOES
            };
            self.places[index] = [first, base];
            first += count;
        }
        self.reserve(device)
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

    fn is_mapped_as_it_goes(&self, pool: usize) -> bool {
        self.places[pool][1] == MAPPED_AS_IT_GOES
    }

    /// Reserves the virtual ranges of tensors and workspaces.
    fn reserve<B: Paging>(&mut self, device: &mut B) -> Result<(), Fault<B::Error>> {
        let graph = *self.verified.graph();
        for step in self.plan().steps {
            if let Step::Evict(part) = step {
                // A mark, until the ranges are there.
                self.ranges[part.tensor.index()][1] = 1;
            }
        }
        for tensor in graph.tensor_ids().filter(|&id| !self.pieces.in_arena(id)) {
            let pool = self.pieces.pool(tensor);
            if self.is_mapped_as_it_goes(pool) {
                let chunks = self.pieces.objects(tensor) * self.chunks_per_object(pool);
                let leaves = self.ranges[tensor.index()][1] == 1;
                let one = device.reserve(chunks)?.0;
                let other = if leaves { device.reserve(chunks)?.0 } else { one };
                self.ranges[tensor.index()] = [one, other];
                self.address[tensor.index()] = one;
            }
        }
        for op in graph.op_ids() {
            if let Some((pool, objects)) = self.pieces.workspace(&graph, op)
                && self.is_mapped_as_it_goes(pool)
            {
                let chunks = objects * self.chunks_per_object(pool);
                self.workspaces[op.index()] = device.reserve(chunks)?.0;
            }
        }
        Ok(())
    }

    fn chunks_per_object(&self, pool: usize) -> u64 {
        self.object_bytes(pool) / self.chunk_bytes()
    }

    fn object_bytes(&self, pool: usize) -> u64 {
        self.plan().pools[pool].object_bytes
    }

    /// The address of a tensor, or of a part of it.
    pub(super) fn address(&self, tensor: TensorId, offset_bytes: u64) -> DeviceAddress {
        DeviceAddress(self.address[tensor.index()] + offset_bytes)
    }

    /// Where a part begins in its tensor.
    pub(super) fn offset_bytes(&self, part: Part) -> u64 {
        if self.pieces.covers_tensor(part) {
            return 0;
        }
        part.first * self.object_bytes(self.pieces.pool(part.tensor))
    }

    /// Gives objects to those of some pieces of a tensor that have none.
    pub(super) fn allocate<B: Streams + Paging>(
        &mut self,
        device: &mut B,
        tensor: TensorId,
        pieces: Range<usize>,
    ) -> Result<(), Fault<B::Error>> {
        let resident = self.resident[tensor.index()] as usize;
        if self.pieces.in_arena(tensor) || resident == self.pieces.of(tensor).len() {
            return Ok(());
        }
        if resident == 0 {
            let [one, other] = self.ranges[tensor.index()];
            let address = &mut self.address[tensor.index()];
            *address = if *address == one { other } else { one };
        }
        let pool = self.pieces.pool(tensor);
        for piece in pieces {
            if self.held[piece] == EMPTY {
                let (first, count) = self.pieces.range(tensor, piece);
                let list = self.take(pool, count)?;
                self.held[piece] = list;
                self.resident[tensor.index()] += 1;
                if self.is_mapped_as_it_goes(pool) {
                    let at = self.address(tensor, first * self.object_bytes(pool));
                    self.unmaps.clear(device, self.slot(tensor, piece))?;
                    self.map(device, pool, list, at)?;
                } else {
                    self.address[tensor.index()] = self.object_address(pool, list);
                }
            }
        }
        Ok(())
    }

    fn take<E>(&mut self, pool: usize, count: u64) -> Result<List, Fault<E>> {
        self.objects.take(pool, count).map_err(|shortage| match shortage {
            Shortage::Objects => Fault::PoolEmpty(pool as u32),
            Shortage::Runs => Fault::Fragmented,
        })
    }

    /// The slot of the range that a piece of a tensor is mapped in now.
    fn slot(&self, tensor: TensorId, piece: usize) -> usize {
        let [one, _] = self.ranges[tensor.index()];
        2 * piece + usize::from(self.address[tensor.index()] != one)
    }

    /// The address of the one object of a list, in a pool that is mapped for good.
    fn object_address(&self, pool: usize, list: List) -> u64 {
        let object = self.objects.runs(list).next().map_or(0, |(first, _)| first);
        self.places[pool][1] + object * self.object_bytes(pool)
    }

    /// Maps the objects of a list one behind the other.
    fn map<B: Paging>(
        &self,
        device: &mut B,
        pool: usize,
        list: List,
        mut at: DeviceAddress,
    ) -> Result<(), Fault<B::Error>> {
        let chunks_per_object = self.chunks_per_object(pool);
        for (first, count) in self.objects.runs(list) {
            let first = self.places[pool][0] + first * chunks_per_object;
            let chunks = Chunks { first, count: count * chunks_per_object };
            device.map(at, chunks)?;
            at.0 += chunks.count * self.chunk_bytes();
        }
        Ok(())
    }

    /// Takes the objects of a part away. They are free at once, since the schedule orders
    /// whoever gets them next behind `points`; its mappings go when those are reached.
    pub(super) fn evict(&mut self, part: Part, points: [u64; 3]) {
        let pool = self.pieces.pool(part.tensor);
        for piece in self.pieces.of_part(part) {
            if self.is_mapped_as_it_goes(pool) {
                let (first, count) = self.pieces.range(part.tensor, piece);
                let at = self.address(part.tensor, first * self.object_bytes(pool));
                let chunks = count * self.chunks_per_object(pool);
                self.unmaps.put_off(self.slot(part.tensor, piece), points, at, chunks);
            }
            let list = core::mem::replace(&mut self.held[piece], EMPTY);
            self.resident[part.tensor.index()] -= 1;
            self.objects.give(pool, list);
        }
    }

    /// Gives an op its workspace, where it has one.
    pub(super) fn allocate_workspace<B: Streams + Paging>(
        &mut self,
        device: &mut B,
        op: OpId,
    ) -> Result<Option<Workspace>, Fault<B::Error>> {
        let Some((pool, objects)) = self.pieces.workspace(self.verified.graph(), op) else {
            return Ok(None);
        };
        let list = self.take(pool, objects)?;
        let at = if self.is_mapped_as_it_goes(pool) {
            let at = DeviceAddress(self.workspaces[op.index()]);
            self.unmaps.clear(device, self.workspace_slot(op))?;
            self.map(device, pool, list, at)?;
            at
        } else {
            DeviceAddress(self.object_address(pool, list))
        };
        Ok(Some(Workspace { at, pool, list, objects }))
    }

    fn workspace_slot(&self, op: OpId) -> usize {
        2 * self.pieces.len() + op.index()
    }

    /// Takes a workspace away once its launch, which ends at a point of the compute stream,
    /// is enqueued.
    pub(super) fn release_workspace(&mut self, op: OpId, workspace: Workspace, end: u64) {
        let Workspace { at, pool, list, objects } = workspace;
        if self.is_mapped_as_it_goes(pool) {
            let chunks = objects * self.chunks_per_object(pool);
            self.unmaps.put_off(self.workspace_slot(op), [end, 0, 0], at, chunks);
        }
        self.objects.give(pool, list);
    }

    /// Unmaps what the device no longer uses, without blocking.
    pub(super) fn reclaim<B: Streams + Paging>(
        &mut self,
        device: &mut B,
    ) -> Result<(), Fault<B::Error>> {
        self.unmaps.reclaim(device)
    }
}

/// Maps chunks at a range of their own and returns its address.
fn map_for_good<B: Paging>(device: &mut B, chunks: Chunks) -> Result<u64, Fault<B::Error>> {
    if chunks.count == 0 {
        return Ok(0);
    }
    let at = device.reserve(chunks.count)?;
    device.map(at, chunks)?;
    Ok(at.0)
}
