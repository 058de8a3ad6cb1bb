//! Device memory of one plan: mapped once, or as the plan runs.

#![expect(
    clippy::indexing_slicing,
    reason = "`resident` has an entry for each tensor of the graph"
)]

use super::Fault;
use super::layout::Layout;
use super::placed::Placed;
use super::queued::Queued;
use super::spares::{Mapper, Row};
use crate::backend::{DeviceAddress, Paging, Streams};
use crate::graph::{OpId, TensorId};
use crate::pieces::Pieces;
use crate::plan::{Part, PlanError};
use crate::schedule::PerStream;
use crate::scratch::{Limits, Scratch, larger};
use crate::switch::{ChunkMap, Held};
use crate::verify::Verified;
use core::iter;
use core::ops::Range;

/// The layout of memory, and the objects that tensors and workspaces have.
#[derive(Debug)]
pub(super) struct Memory<'a> {
    pub(super) layout: Layout<'a>,
    objects: Objects<'a>,
}

/// The workspace of an op that has one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Workspace {
    pub(super) op: OpId,
    pub(super) pool: usize,
    pub(super) objects: u64,
}

/// How objects are assigned.
#[derive(Debug)]
enum Objects<'a> {
    /// From queues: the object that has been free for longest.
    Queued(Queued<'a>),
    /// From the plan's placements.
    Placed(Placed<'a>),
}

impl<'a> Memory<'a> {
    pub(super) const fn scratch_words(limits: &Limits, runs: usize) -> usize {
        Layout::scratch_words(limits).saturating_add(larger(
            Queued::scratch_words(limits, runs),
            Placed::scratch_words(limits, runs),
        ))
    }

    /// Computes the layout, without calling the device. Takes all that is left of the scratch, up
    /// to the most that it can use.
    pub(super) fn new(
        verified: &Verified<'a>,
        chunk_map: ChunkMap<'a>,
        most_range_chunks: u64,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let layout = Layout::new(verified, chunk_map, most_range_chunks, scratch)?;
        let objects = match verified.plan().placements {
            None => Objects::Queued(Queued::new(&layout, scratch)?),
            Some(placements) => Objects::Placed(Placed::new(&layout, placements, scratch)?),
        };
        Ok(Self { layout, objects })
    }

    /// Maps the memory that stays mapped for the whole plan, and reserves the other ranges.
    pub(super) fn set_up<B: Paging>(
        &mut self,
        mapper: &mut Mapper<'_, '_, B>,
    ) -> Result<(), Fault<B::Error>> {
        self.layout.set_up(mapper)?;
        match &mut self.objects {
            Objects::Queued(queued) => queued.set_up(&mut self.layout, mapper),
            Objects::Placed(placed) => placed.set_up(&self.layout, mapper),
        }
    }

    /// Unmaps all ranges that do not stay mapped for the whole plan. Call it after all work has
    /// ended.
    pub(super) fn take_down<B: Streams + Paging>(
        &mut self,
        mapper: &mut Mapper<'_, '_, B>,
    ) -> Result<(), Fault<B::Error>> {
        match &mut self.objects {
            Objects::Queued(queued) => queued.take_down(&self.layout, mapper),
            Objects::Placed(_) => Ok(()),
        }
    }

    /// Calls `visit` with the address, the number of chunks and the permanently mapped rows of each
    /// address range.
    pub(super) fn each_range(
        &self,
        mut visit: impl FnMut(u64, u64, &mut dyn Iterator<Item = Row>),
    ) {
        for (address, chunks) in self.layout.ranges() {
            visit(address, chunks.count, &mut self.layout.rows(chunks));
        }
        match &self.objects {
            Objects::Queued(queued) => {
                for (address, chunks) in queued.ranges(&self.layout) {
                    visit(address, chunks, &mut iter::empty());
                }
            }
            Objects::Placed(placed) => placed.each_range(&self.layout, visit),
        }
    }

    /// An upper bound of the number of rows of consecutive chunks that are mapped at one time.
    pub(super) fn mappings(&self) -> u64 {
        let mut rows = 0u64;
        self.each_range(|_, _, mapped| rows = rows.saturating_add(mapped.count() as u64));
        if let Objects::Queued(queued) = &self.objects {
            let chunks = queued.ranges(&self.layout).map(|(_, chunks)| chunks);
            rows = chunks.fold(rows, u64::saturating_add);
        }
        rows
    }

    /// Calls `visit` with each row of device bytes that holds a resident part. `host_copy` is left
    /// false.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "rows lie in a pool, whose size has 64 bits, and end with the part"
    )]
    pub(super) fn each_row(&self, part: Part, mut visit: impl FnMut(Held)) {
        let (layout, pieces, tensor) = (&self.layout, self.pieces(), part.tensor);
        let mut first_byte = pieces.offset_bytes(part);
        let mut missing = pieces.part_bytes(pieces.graph(), part);
        let mut row = |at: u64, bytes: u64| {
            let bytes = bytes.min(missing);
            missing -= bytes;
            for (at, bytes) in layout.on_device(at, bytes) {
                visit(Held { tensor, first_byte, bytes, at, host_copy: false });
                first_byte += bytes;
            }
        };
        if let Some(offset_bytes) = pieces.arena_offset_bytes(tensor) {
            row(offset_bytes, u64::MAX);
            return;
        }
        let pool = pieces.pool(tensor);
        for piece in pieces.of_part(part) {
            let visit = |first: u64, count: u64| {
                row(layout.object_at(pool, first), count * layout.object_bytes(pool));
            };
            match &self.objects {
                Objects::Queued(queued) => queued.each_run(piece, visit),
                Objects::Placed(placed) => placed.each_run(layout, tensor, piece, visit),
            }
        }
    }

    pub(super) fn pieces(&self) -> &Pieces<'a> {
        &self.layout.pieces
    }

    /// The address of a tensor, or of a part of it.
    pub(super) fn address(&self, tensor: TensorId, offset_bytes: u64) -> DeviceAddress {
        self.layout.address(tensor, offset_bytes)
    }

    /// Allocates objects for the `pieces` of a tensor that have no object. `enqueued` is the last
    /// point of each stream so far.
    pub(super) fn allocate<B: Streams + Paging>(
        &mut self,
        device: &mut B,
        tensor: TensorId,
        pieces: Range<usize>,
        enqueued: PerStream<u64>,
    ) -> Result<(), Fault<B::Error>> {
        let layout = &mut self.layout;
        let resident = layout.resident[tensor.index()] as usize;
        if layout.pieces.in_arena(tensor) || resident == layout.pieces.of(tensor).len() {
            return Ok(());
        }
        match &mut self.objects {
            Objects::Queued(queued) => queued.allocate(layout, device, tensor, pieces, enqueued),
            Objects::Placed(placed) => {
                placed.allocate(layout, tensor, pieces);
                Ok(())
            }
        }
    }

    /// Frees the objects of a part. They can be allocated at once, since the schedule orders their
    /// next user after `points`.
    pub(super) fn evict<B: Streams + Paging>(
        &mut self,
        device: &mut B,
        part: Part,
        points: PerStream<u64>,
    ) -> Result<(), Fault<B::Error>> {
        match &mut self.objects {
            Objects::Queued(queued) => queued.evict(&mut self.layout, device, part, points),
            Objects::Placed(_) => {
                Placed::evict(&mut self.layout, part);
                Ok(())
            }
        }
    }

    /// Allocates the workspace of an op, if the op has one.
    pub(super) fn allocate_workspace<B: Streams + Paging>(
        &mut self,
        device: &mut B,
        op: OpId,
    ) -> Result<Option<DeviceAddress>, Fault<B::Error>> {
        let Some(workspace) = self.workspace(op) else { return Ok(None) };
        match &mut self.objects {
            Objects::Queued(queued) => {
                queued.allocate_workspace(&self.layout, device, workspace).map(Some)
            }
            Objects::Placed(placed) => Ok(Some(placed.take(&self.layout, workspace.pool))),
        }
    }

    fn workspace(&self, op: OpId) -> Option<Workspace> {
        let (pool, objects) = self.layout.pieces.workspace(self.layout.verified.graph(), op)?;
        Some(Workspace { op, pool, objects })
    }

    /// Frees the workspace of an op, if the op has one, after its launch is enqueued. `end` is the
    /// launch's point on the op's stream.
    pub(super) fn release_workspace<B: Streams + Paging>(
        &mut self,
        device: &mut B,
        op: OpId,
        end: u64,
    ) -> Result<(), Fault<B::Error>> {
        if let Some(workspace) = self.workspace(op)
            && let Objects::Queued(queued) = &mut self.objects
        {
            queued.release_workspace(&self.layout, device, workspace, end)?;
        }
        Ok(())
    }

    /// Unmaps ranges that the device no longer uses, without blocking.
    pub(super) fn reclaim<B: Streams + Paging>(
        &mut self,
        device: &mut B,
    ) -> Result<(), Fault<B::Error>> {
        match &mut self.objects {
            Objects::Queued(queued) => queued.reclaim(device),
            Objects::Placed(_) => Ok(()),
        }
    }
}
