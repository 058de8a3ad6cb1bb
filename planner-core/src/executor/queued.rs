//! Objects from queues of free objects, mapped when they are allocated.

#![expect(
    clippy::indexing_slicing,
    reason = "ids and pieces are those of the verified plan, and the arrays have an entry for each \
              piece and tensor"
)]

use super::Fault;
use super::layout::Layout;
use super::memory::Workspace;
use super::objects::{EMPTY, List, Objects, Shortage};
use super::ranges::{ITERATIONS_AHEAD, Owner, Ranges};
use super::spares::Mapper;
use super::unmaps::Unmaps;
use crate::backend::{DeviceAddress, Paging, Streams};
use crate::graph::TensorId;
use crate::plan::{Part, Step};
use crate::schedule::PerStream;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use core::ops::Range;

/// The objects of a plan without placements, and their mappings.
///
/// A tensor that comes to the device is mapped in a range in which nothing is mapped; a tensor that
/// leaves stays mapped until the device has finished with it. So the host maps ahead, and blocks
/// only for steps of [`ITERATIONS_AHEAD`] iterations ago. If a part of a tensor comes back while
/// other parts are resident, these are mapped in the new range too, and stay mapped in the old
/// range until the enqueued work has ended. Pieces that never leave are mapped in all ranges of
/// their tensor from the start.
#[derive(Debug)]
pub(super) struct Queued<'a> {
    /// The objects of each piece.
    held: &'a mut [List],
    /// 1 for each piece that an evict step frees, else 0.
    leaves: &'a mut [u8],
    /// The objects of the workspace of the launch that is being enqueued.
    workspace: List,
    ranges: Ranges<'a>,
    unmaps: Unmaps<'a>,
    objects: Objects<'a>,
}

/// A bound on the unmappings that are put off in [`ITERATIONS_AHEAD`] iterations: one for each
/// evict and each workspace, and one for each piece of tensors of which a part comes back once an
/// iteration. If parts come back more often, the host may block earlier.
const fn most_unmaps(steps: usize, pieces: usize) -> usize {
    steps.saturating_add(pieces).saturating_mul(ITERATIONS_AHEAD)
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "pieces with objects lie in their pool and at bytes of their tensor, and `Mapper` has \
              checked that no range of addresses ends beyond 64 bits"
)]
impl<'a> Queued<'a> {
    pub(super) const fn scratch_words(limits: &Limits, runs: usize) -> usize {
        total([
            words::<List>(limits.pieces),
            words::<u8>(limits.pieces),
            Ranges::scratch_words(limits),
            Unmaps::scratch_words(most_unmaps(limits.steps, limits.pieces)),
            Objects::scratch_words(limits.pools, runs),
        ])
    }

    /// Takes all that is left of the scratch, up to the most that it can use.
    pub(super) fn new(
        layout: &Layout<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let (plan, pieces) = (layout.plan(), layout.pieces.len());
        let counts = plan.pools.iter().map(|pool| pool.count);
        let most_runs = counts.clone().fold(0, u64::saturating_add);
        let leaves = scratch.take(pieces, 0)?;
        for step in plan.steps {
            if let Step::Evict(part) = *step {
                leaves[layout.pieces.of_part(part)].fill(1);
            }
        }
        Ok(Self {
            held: scratch.take(pieces, EMPTY)?,
            leaves,
            workspace: EMPTY,
            ranges: Ranges::new(layout, scratch)?,
            unmaps: Unmaps::new(most_unmaps(plan.steps.len(), pieces), scratch)?,
            objects: Objects::new(counts, most_runs, scratch)?,
        })
    }

    /// Reserves the virtual ranges of tensors and workspaces.
    pub(super) fn set_up<B: Paging>(
        &mut self,
        layout: &mut Layout<'_>,
        mapper: &mut Mapper<'_, '_, B>,
    ) -> Result<(), Fault<B::Error>> {
        self.ranges.set_up(layout, mapper)
    }

    /// Unmaps all ranges. Call it after all work has ended.
    pub(super) fn take_down<B: Streams + Paging>(
        &mut self,
        layout: &Layout<'_>,
        mapper: &mut Mapper<'_, '_, B>,
    ) -> Result<(), Fault<B::Error>> {
        self.unmaps.finish(mapper.device, self.unmaps.put_off_so_far())?;
        for tensor in layout.verified.graph().tensor_ids() {
            let pool = layout.pieces.pool(tensor);
            if layout.pieces.in_arena(tensor) || !layout.has_ranges(pool) {
                continue;
            }
            for piece in layout.pieces.of(tensor) {
                if self.held[piece] != EMPTY {
                    let (first, count) = layout.pieces.range(tensor, piece);
                    let chunks = count * layout.chunks_per_object(pool);
                    for range in self.mapped_in(tensor, piece) {
                        let at = range.0 + first * layout.object_bytes(pool);
                        mapper.unmap(DeviceAddress(at), chunks)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The address and the number of chunks of each range.
    pub(super) fn ranges(&self, layout: &Layout<'_>) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.all(layout)
    }

    /// Calls `visit` with each run of objects that a piece has now, as the first object and a
    /// count.
    pub(super) fn each_run(&self, piece: usize, mut visit: impl FnMut(u64, u64)) {
        for (first, count) in self.objects.runs(self.held[piece]) {
            visit(first, count);
        }
    }

    /// The ranges of a tensor in which a resident piece is mapped: the range in use, or all ranges
    /// if the piece never leaves.
    fn mapped_in(&self, tensor: TensorId, piece: usize) -> impl Iterator<Item = DeviceAddress> {
        let owner = Owner::Tensor(tensor);
        let current = self.ranges.current(owner);
        let stays = self.leaves[piece] == 0;
        self.ranges.addresses(owner).filter(move |&range| stays || range == current)
    }

    /// Allocates objects for the `pieces` that have no object; call it only if such a piece exists.
    /// `enqueued` is the last point of each stream so far.
    pub(super) fn allocate<B: Streams + Paging>(
        &mut self,
        layout: &mut Layout<'_>,
        device: &mut B,
        tensor: TensorId,
        pieces: Range<usize>,
        enqueued: PerStream<u64>,
    ) -> Result<(), Fault<B::Error>> {
        let pool = layout.pieces.pool(tensor);
        if layout.has_ranges(pool)
            && !self.unmaps.are_done(self.ranges.unmaps(Owner::Tensor(tensor)))
        {
            self.move_on(layout, device, tensor, enqueued)?;
        }
        for piece in pieces {
            if self.held[piece] == EMPTY {
                let list = self.take(pool, layout.pieces.range(tensor, piece).1)?;
                self.held[piece] = list;
                layout.resident[tensor.index()] += 1;
                if layout.has_ranges(pool) {
                    self.map(layout, device, tensor, piece)?;
                } else {
                    layout.address[tensor.index()] = self.only_address(layout, pool, list);
                }
            }
        }
        Ok(())
    }

    /// Moves a tensor and its resident pieces to the tensor's next range.
    fn move_on<B: Streams + Paging>(
        &mut self,
        layout: &mut Layout<'_>,
        device: &mut B,
        tensor: TensorId,
        enqueued: PerStream<u64>,
    ) -> Result<(), Fault<B::Error>> {
        let owner = Owner::Tensor(tensor);
        let pieces = layout.pieces.of(tensor);
        for piece in pieces.clone() {
            if self.moves_with_tensor(piece) {
                let (at, chunks) = mapping(layout, tensor, piece..piece + 1);
                self.unmaps.put_off(device, enqueued, at, chunks)?;
            }
        }
        self.ranges.note_unmap(owner, self.unmaps.put_off_so_far());
        self.ranges.advance(owner);
        self.unmaps.finish(device, self.ranges.unmaps(owner))?;
        layout.address[tensor.index()] = self.ranges.current(owner).0;
        for piece in pieces.filter(|&piece| self.moves_with_tensor(piece)) {
            self.map(layout, device, tensor, piece)?;
        }
        Ok(())
    }

    /// Whether a piece is resident and may leave, so that it moves with its tensor.
    fn moves_with_tensor(&self, piece: usize) -> bool {
        self.leaves[piece] == 1 && self.held[piece] != EMPTY
    }

    /// Maps a piece in the range in use, or in all ranges of its tensor if it never leaves.
    fn map<B: Paging>(
        &self,
        layout: &Layout<'_>,
        device: &mut B,
        tensor: TensorId,
        piece: usize,
    ) -> Result<(), Fault<B::Error>> {
        let pool = layout.pieces.pool(tensor);
        let offset_bytes = layout.pieces.range(tensor, piece).0 * layout.object_bytes(pool);
        for range in self.mapped_in(tensor, piece) {
            let at = DeviceAddress(range.0 + offset_bytes);
            layout.map(device, pool, self.objects.runs(self.held[piece]), at)?;
        }
        Ok(())
    }

    fn take<E>(&mut self, pool: usize, count: u64) -> Result<List, Fault<E>> {
        self.objects.take(pool, count).map_err(|shortage| match shortage {
            Shortage::Objects => Fault::PoolEmpty(pool as u32),
            Shortage::Runs => Fault::Fragmented,
        })
    }

    /// The address of a list's only object, in a pool that is mapped as a whole.
    fn only_address(&self, layout: &Layout<'_>, pool: usize, list: List) -> u64 {
        let object = self.objects.runs(list).next().map_or(0, |(first, _)| first);
        layout.object_address(pool, object)
    }

    /// Frees the objects of a part. They can be allocated at once, since the schedule orders their
    /// next user after `points`; the mappings go once `points` are reached.
    pub(super) fn evict<B: Streams + Paging>(
        &mut self,
        layout: &mut Layout<'_>,
        device: &mut B,
        part: Part,
        points: PerStream<u64>,
    ) -> Result<(), Fault<B::Error>> {
        let (tensor, pool) = (part.tensor, layout.pieces.pool(part.tensor));
        let pieces = layout.pieces.of_part(part);
        if layout.has_ranges(pool) {
            let (at, chunks) = mapping(layout, tensor, pieces.clone());
            self.unmaps.put_off(device, points, at, chunks)?;
            self.ranges.note_unmap(Owner::Tensor(tensor), self.unmaps.put_off_so_far());
        }
        for piece in pieces {
            let list = core::mem::replace(&mut self.held[piece], EMPTY);
            layout.resident[tensor.index()] -= 1;
            self.objects.give(pool, list);
        }
        Ok(())
    }

    /// Allocates the workspace of an op.
    pub(super) fn allocate_workspace<B: Streams + Paging>(
        &mut self,
        layout: &Layout<'_>,
        device: &mut B,
        Workspace { op, pool, objects }: Workspace,
    ) -> Result<DeviceAddress, Fault<B::Error>> {
        self.workspace = self.take(pool, objects)?;
        if !layout.has_ranges(pool) {
            return Ok(DeviceAddress(self.only_address(layout, pool, self.workspace)));
        }
        let owner = Owner::Workspace(op);
        if !self.unmaps.are_done(self.ranges.unmaps(owner)) {
            self.ranges.advance(owner);
            self.unmaps.finish(device, self.ranges.unmaps(owner))?;
        }
        let at = self.ranges.current(owner);
        layout.map(device, pool, self.objects.runs(self.workspace), at)?;
        Ok(at)
    }

    /// Frees the workspace after its launch is enqueued. `end` is the launch's point on
    /// the op's stream.
    pub(super) fn release_workspace<B: Streams + Paging>(
        &mut self,
        layout: &Layout<'_>,
        device: &mut B,
        Workspace { op, pool, objects }: Workspace,
        end: u64,
    ) -> Result<(), Fault<B::Error>> {
        if layout.has_ranges(pool) {
            let owner = Owner::Workspace(op);
            let chunks = objects * layout.chunks_per_object(pool);
            self.unmaps.put_off(
                device,
                PerStream::only(layout.verified.graph().op(op).stream(), end, 0),
                self.ranges.current(owner),
                chunks,
            )?;
            self.ranges.note_unmap(owner, self.unmaps.put_off_so_far());
        }
        self.objects.give(pool, core::mem::replace(&mut self.workspace, EMPTY));
        Ok(())
    }

    /// Unmaps ranges that the device no longer uses, without blocking.
    pub(super) fn reclaim<B: Streams + Paging>(
        &mut self,
        device: &mut B,
    ) -> Result<(), Fault<B::Error>> {
        self.unmaps.reclaim(device)
    }
}

/// The address in the range in use at which consecutive pieces are mapped, and their number of
/// chunks.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "pieces with objects lie in their pool and at bytes of their tensor"
)]
fn mapping(layout: &Layout<'_>, tensor: TensorId, pieces: Range<usize>) -> (DeviceAddress, u64) {
    let pool = layout.pieces.pool(tensor);
    let first = layout.pieces.range(tensor, pieces.start).0;
    let objects: u64 = pieces.map(|piece| layout.pieces.range(tensor, piece).1).sum();
    let at = layout.address(tensor, first * layout.object_bytes(pool));
    (at, objects * layout.chunks_per_object(pool))
}
