//! Objects from the queues of free ones, mapped as they are allocated.

use super::Fault;
use super::layout::Layout;
use super::objects::{EMPTY, List, Objects, Shortage};
use super::unmaps::Unmaps;
use crate::backend::{DeviceAddress, Paging, Streams};
use crate::graph::{OpId, TensorId};
use crate::plan::{Part, Step};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use core::ops::Range;

/// What is mapped as it goes.
///
/// Each tensor has virtual ranges of its own: one where it never leaves the device, and else
/// two, used in turn. So what comes in need not wait until what went out is unmapped; and
/// the next value of an input may arrive while the last is still read. Only a part that
/// comes back to where the rest stayed needs its own last place. Each workspace has
/// a range too: as a launch is enqueued long before the last one has ended, a shared range
/// would hold up the host.
#[derive(Debug)]
pub(super) struct Queued<'a> {
    /// The objects that hold each piece.
    held: &'a mut [List],
    /// The virtual ranges of each tensor.
    ranges: &'a mut [[u64; 2]],
    /// The virtual range of each workspace.
    workspaces: &'a mut [u64],
    /// The objects of the workspace of the launch that is being enqueued.
    workspace: List,
    unmaps: Unmaps<'a>,
    objects: Objects<'a>,
}

impl<'a> Queued<'a> {
    pub(super) const fn scratch_words(limits: &Limits, runs: usize) -> usize {
        total([
            words::<List>(limits.pieces),
            words::<[u64; 2]>(limits.tensors),
            words::<u64>(limits.ops),
            Unmaps::scratch_words(limits.pieces.saturating_mul(2).saturating_add(limits.ops)),
            Objects::scratch_words(limits.pools, runs),
        ])
    }

    /// Takes all that is left of the scratch, up to what can be of use.
    pub(super) fn new(
        layout: &Layout<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let (graph, pieces) = (layout.verified.graph(), layout.pieces.len());
        let slots = 2 * pieces + graph.ops().len();
        let counts = layout.plan().pools.iter().map(|pool| pool.count);
        let most_runs = counts.clone().fold(0, u64::saturating_add);
        Ok(Self {
            held: scratch.take(pieces, EMPTY)?,
            ranges: scratch.take(graph.tensors().len(), [0, 0])?,
            workspaces: scratch.take(graph.ops().len(), 0)?,
            workspace: EMPTY,
            unmaps: Unmaps::new(slots, scratch)?,
            objects: Objects::new(counts, most_runs, scratch)?,
        })
    }

    /// Reserves the virtual ranges of tensors and workspaces.
    pub(super) fn set_up<B: Paging>(
        &mut self,
        layout: &mut Layout<'_>,
        device: &mut B,
    ) -> Result<(), Fault<B::Error>> {
        let graph = *layout.verified.graph();
        for step in layout.plan().steps {
            if let Step::Evict(part) = step {
                // A mark, until the ranges are there.
                self.ranges[part.tensor.index()][1] = 1;
            }
        }
        for tensor in graph.tensor_ids().filter(|&id| !layout.pieces.in_arena(id)) {
            let pool = layout.pieces.pool(tensor);
            if layout.has_ranges(pool) {
                // Of a tensor that never comes, the chunks may exceed all numbers.
                let chunks_per_object = layout.chunks_per_object(pool);
                let chunks = layout.pieces.objects(tensor).saturating_mul(chunks_per_object);
                let leaves = self.ranges[tensor.index()][1] == 1;
                let one = device.reserve(chunks)?.0;
                let other = if leaves { device.reserve(chunks)?.0 } else { one };
                self.ranges[tensor.index()] = [one, other];
                layout.address[tensor.index()] = one;
            }
        }
        for op in graph.op_ids() {
            if let Some((pool, objects)) = layout.pieces.workspace(&graph, op)
                && layout.has_ranges(pool)
            {
                let chunks = objects * layout.chunks_per_object(pool);
                self.workspaces[op.index()] = device.reserve(chunks)?.0;
            }
        }
        Ok(())
    }

    /// Gives objects to those of some pieces of a tensor that have none.
    pub(super) fn allocate<B: Streams + Paging>(
        &mut self,
        layout: &mut Layout<'_>,
        device: &mut B,
        tensor: TensorId,
        pieces: Range<usize>,
    ) -> Result<(), Fault<B::Error>> {
        if layout.resident[tensor.index()] == 0 {
            let [one, other] = self.ranges[tensor.index()];
            let address = &mut layout.address[tensor.index()];
            *address = if *address == one { other } else { one };
        }
        let pool = layout.pieces.pool(tensor);
        for piece in pieces {
            if self.held[piece] == EMPTY {
                let (first, count) = layout.pieces.range(tensor, piece);
                let list = self.take(pool, count)?;
                self.held[piece] = list;
                layout.resident[tensor.index()] += 1;
                if layout.has_ranges(pool) {
                    let at = layout.address(tensor, first * layout.object_bytes(pool));
                    self.unmaps.clear(device, self.slot(layout, tensor, piece))?;
                    layout.map(device, pool, self.objects.runs(list), at)?;
                } else {
                    layout.address[tensor.index()] = self.only_address(layout, pool, list);
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
    fn slot(&self, layout: &Layout<'_>, tensor: TensorId, piece: usize) -> usize {
        let [one, _] = self.ranges[tensor.index()];
        2 * piece + usize::from(layout.address[tensor.index()] != one)
    }

    /// The address of the one object of a list, in a pool that is mapped as a whole.
    fn only_address(&self, layout: &Layout<'_>, pool: usize, list: List) -> u64 {
        let object = self.objects.runs(list).next().map_or(0, |(first, _)| first);
        layout.object_address(pool, object)
    }

    /// Takes the objects of a part away. They are free at once, since the schedule orders
    /// whoever gets them next behind `points`; its mappings go when those are reached.
    pub(super) fn evict(&mut self, layout: &mut Layout<'_>, part: Part, points: [u64; 3]) {
        let pool = layout.pieces.pool(part.tensor);
        for piece in layout.pieces.of_part(part) {
            if layout.has_ranges(pool) {
                let (first, count) = layout.pieces.range(part.tensor, piece);
                let at = layout.address(part.tensor, first * layout.object_bytes(pool));
                let chunks = count * layout.chunks_per_object(pool);
                self.unmaps.put_off(self.slot(layout, part.tensor, piece), points, at, chunks);
            }
            let list = core::mem::replace(&mut self.held[piece], EMPTY);
            layout.resident[part.tensor.index()] -= 1;
            self.objects.give(pool, list);
        }
    }

    /// Gives an op its workspace of some objects.
    pub(super) fn allocate_workspace<B: Streams + Paging>(
        &mut self,
        layout: &Layout<'_>,
        device: &mut B,
        op: OpId,
        (pool, objects): (usize, u64),
    ) -> Result<DeviceAddress, Fault<B::Error>> {
        self.workspace = self.take(pool, objects)?;
        if !layout.has_ranges(pool) {
            return Ok(DeviceAddress(self.only_address(layout, pool, self.workspace)));
        }
        let at = DeviceAddress(self.workspaces[op.index()]);
        self.unmaps.clear(device, workspace_slot(layout, op))?;
        layout.map(device, pool, self.objects.runs(self.workspace), at)?;
        Ok(at)
    }

    /// Takes the workspace away once its launch, which ends at a point of the compute stream,
    /// is enqueued.
    pub(super) fn release_workspace(
        &mut self,
        layout: &Layout<'_>,
        op: OpId,
        (pool, objects): (usize, u64),
        end: u64,
    ) {
        if layout.has_ranges(pool) {
            let chunks = objects * layout.chunks_per_object(pool);
            let at = DeviceAddress(self.workspaces[op.index()]);
            self.unmaps.put_off(workspace_slot(layout, op), [end, 0, 0], at, chunks);
        }
        self.objects.give(pool, core::mem::replace(&mut self.workspace, EMPTY));
    }

    /// Unmaps what the device no longer uses, without blocking.
    pub(super) fn reclaim<B: Streams + Paging>(
        &mut self,
        device: &mut B,
    ) -> Result<(), Fault<B::Error>> {
        self.unmaps.reclaim(device)
    }
}

fn workspace_slot(layout: &Layout<'_>, op: OpId) -> usize {
    2 * layout.pieces.len() + op.index()
}
