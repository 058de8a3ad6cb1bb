//! The data that a plan holds on the device between two iterations, and its place.

#![expect(
    clippy::indexing_slicing,
    reason = "pools are those of a verified plan, and runs of equal neighbours are not empty"
)]

use super::error::SwitchError;
use crate::graph::{Kind, TensorId};
use crate::host::HostLayout;
use crate::pieces::Pieces;
use crate::placement::{self, AddressError, Run};
use crate::plan::{Part, PlanError, Resident};
use crate::scratch::{Buffer, BufferTooShort, Limits, Scratch, larger, total, words};
use crate::verify::Verified;

/// A row: consecutive bytes of a tensor that lie at consecutive bytes of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The tensor.
    pub tensor: TensorId,
    /// The first byte of the row within the tensor.
    pub first_byte: u64,
    /// Number of bytes, not zero.
    pub bytes: u64,
    /// The offset of the first byte from the start of the device's chunk 0.
    pub at: u64,
    /// Whether the host holds the same value.
    pub host_copy: bool,
}

impl Held {
    /// An entry to fill buffers with.
    pub const EMPTY: Self =
        Self { tensor: TensorId(0), first_byte: 0, bytes: 0, at: 0, host_copy: false };
}

/// Memory that is created once on a device and for the host block, for all plans that an executor
/// runs one after the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Chunks of device memory.
    pub chunks: u64,
    /// Bytes of the host block.
    pub host_bytes: u64,
}

impl Capacity {
    /// The capacity that a plan needs. Takes as much scratch as [`HostLayout::new`].
    ///
    /// # Errors
    /// Scratch that is too small.
    pub fn of(verified: &Verified<'_>, scratch: &mut Scratch<'_>) -> Result<Self, PlanError> {
        let (graph, machine, plan) = (verified.graph(), verified.machine(), verified.plan());
        let host = HostLayout::new(graph, machine, plan, &mut scratch.reborrow())?;
        Ok(Self { chunks: chunks(verified), host_bytes: host.bytes() })
    }

    /// The capacity that is enough for both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            chunks: self.chunks.max(other.chunks),
            host_bytes: self.host_bytes.max(other.host_bytes),
        }
    }
}

/// The number of chunks of a plan: of its arena, and of each pool.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "the plan is verified, so all chunks are within its budget"
)]
pub(crate) fn chunks(verified: &Verified<'_>) -> u64 {
    let (plan, chunk_bytes) = (verified.plan(), verified.machine().chunk_bytes);
    let pools =
        plan.pools.iter().map(|pool| (pool.object_bytes * pool.count).div_ceil(chunk_bytes));
    plan.arena_bytes.div_ceil(chunk_bytes) + pools.sum::<u64>()
}

/// The states that a plan holds on the device between two iterations. Made by
/// [`Executor::holding`](crate::Executor::holding), or before a run by
/// [`Holding::between_iterations`].
#[derive(Clone, Copy, Debug)]
pub struct Holding<'h> {
    pub(crate) verified: Verified<'h>,
    pub(crate) entries: &'h [Held],
    pub(crate) capacity: Capacity,
}

impl<'h> Holding<'h> {
    /// Words of scratch that [`Holding::between_iterations`] needs, by [`Limits::of_plan`].
    #[must_use]
    pub const fn scratch_words(limits: &Limits) -> usize {
        larger(
            placement::addresses_scratch_words(limits),
            total([Pieces::scratch_words(limits), words::<u64>(limits.pools).saturating_mul(2)]),
        )
    }

    /// The states that a plan holds after some iterations, for a prediction before a run. `out`
    /// needs an entry for each row of objects. For a plan without placements, the place of each
    /// object is known only while the plan runs; this function assumes the place at the start. So
    /// the figures of a switch may differ for tensors with objects smaller than a chunk.
    ///
    /// # Errors
    /// Scratch or output that is too small.
    pub fn between_iterations(
        verified: &Verified<'h>,
        iterations: u64,
        capacity: Capacity,
        out: &'h mut [Held],
        scratch: &mut Scratch<'_>,
    ) -> Result<Self, SwitchError> {
        let mut rows = Rows::new(out);
        after(verified, iterations, scratch, |held| {
            let is_state = verified.graph().tensor(held.tensor).kind == Kind::State;
            // After a host op wrote the tensor last, the value comes from the host: the device may
            // hold an older one.
            if is_state && !verified.is_last_written_on_host(held.tensor) {
                rows.push(held);
            }
        })?;
        Ok(Self { verified: *verified, entries: rows.finish()?, capacity })
    }

    /// The plan.
    #[must_use]
    pub const fn verified(&self) -> &Verified<'h> {
        &self.verified
    }

    /// The rows of states that it holds.
    #[must_use]
    pub const fn entries(&self) -> &'h [Held] {
        self.entries
    }

    /// The memory that the device and the host block have.
    #[must_use]
    pub const fn capacity(&self) -> Capacity {
        self.capacity
    }
}

/// An output buffer that goes on counting after it is full.
pub(crate) struct Rows<'h> {
    out: &'h mut [Held],
    len: usize,
}

impl<'h> Rows<'h> {
    pub(crate) const fn new(out: &'h mut [Held]) -> Self {
        Self { out, len: 0 }
    }

    pub(crate) fn push(&mut self, held: Held) {
        if let Some(slot) = self.out.get_mut(self.len) {
            *slot = held;
        }
        self.len = self.len.saturating_add(1);
    }

    pub(crate) fn finish(self) -> Result<&'h [Held], BufferTooShort> {
        let Self { out, len } = self;
        Buffer::Held.first(out, len).map(|entries| &*entries)
    }
}

/// Calls `visit` with each row that a plan holds after some iterations; for a plan without
/// placements, does the same as [`at_start`].
fn after(
    verified: &Verified<'_>,
    iterations: u64,
    scratch: &mut Scratch<'_>,
    mut visit: impl FnMut(Held),
) -> Result<(), PlanError> {
    let walked = placement::resident_after(verified, iterations, scratch, |resident, run| {
        let Resident { part: Part { tensor, .. }, host_copy } = resident;
        let Run { first_byte, bytes, offset_bytes: at, .. } = run;
        visit(Held { tensor, first_byte, bytes, at, host_copy });
    });
    match walked {
        Err(AddressError::NotPlaced) => at_start(verified, scratch, visit),
        Err(AddressError::Scratch(error)) => Err(error.into()),
        Err(AddressError::Plan(error)) => Err(error),
        Ok(()) => Ok(()),
    }
}

/// The number of rows that [`at_start`] visits.
pub(super) fn rows_at_start(
    verified: &Verified<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<usize, PlanError> {
    let mut rows = 0usize;
    at_start(verified, scratch, |_| rows = rows.saturating_add(1))?;
    Ok(rows)
}

/// Calls `visit` with each row that a plan holds at the start of its first iteration, inputs
/// included, in the order of `resident_at_start`. Offsets are offsets in the plan's own chunks;
/// `host_copy` is the plan's claim. O(entries + their object numbers).
#[expect(
    clippy::arithmetic_side_effects,
    reason = "the plan is verified, so its pools are within its budget, objects in their pool, and \
              rows in their part"
)]
pub(super) fn at_start(
    verified: &Verified<'_>,
    scratch: &mut Scratch<'_>,
    mut visit: impl FnMut(Held),
) -> Result<(), PlanError> {
    let (graph, machine, plan) = (verified.graph(), verified.machine(), verified.plan());
    let mut scratch = scratch.reborrow();
    let pieces = Pieces::new(graph, machine, plan, &mut scratch)?;
    let pool_at = scratch.take(plan.pools.len(), 0u64)?;
    let next_free = scratch.take(plan.pools.len(), 0u64)?;
    let whole = |bytes: u64| bytes.next_multiple_of(machine.chunk_bytes);
    let mut at = whole(plan.arena_bytes);
    for (pool_at, pool) in pool_at.iter_mut().zip(plan.pools) {
        *pool_at = at;
        at += whole(pool.object_bytes * pool.count);
    }
    let mut allocation = 0;
    for resident in plan.resident_at_start {
        let Part { tensor, .. } = resident.part;
        let (mut first_byte, mut bytes) =
            (pieces.offset_bytes(resident.part), pieces.part_bytes(graph, resident.part));
        let host_copy = resident.host_copy;
        if let Some(at) = pieces.arena_offset_bytes(tensor) {
            visit(Held { tensor, first_byte, bytes, at, host_copy });
            continue;
        }
        let (pool, objects) = (pieces.pool(tensor), pieces.part_objects(resident.part));
        let object_bytes = plan.pools[pool].object_bytes;
        let mut row = |first: u64, count: u64| {
            let at = pool_at[pool] + first * object_bytes;
            let row_bytes = (count * object_bytes).min(bytes);
            visit(Held { tensor, first_byte, bytes: row_bytes, at, host_copy });
            first_byte += row_bytes;
            bytes -= row_bytes;
        };
        match plan.placements {
            // The queue of free objects starts in the order of their numbers.
            None => {
                row(next_free[pool], objects);
                next_free[pool] += objects;
            }
            Some(placements) => {
                let in_a_row = |one: &u64, next: &u64| one.checked_add(1) == Some(*next);
                for run in placements.of(allocation).chunk_by(in_a_row) {
                    row(run[0], run.len() as u64);
                }
                allocation += 1;
            }
        }
    }
    Ok(())
}
