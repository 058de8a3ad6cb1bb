//! Plans a switch: numbers the second plan's chunks so that many bytes stay, then lists the copies
//! of the rest.

#![expect(
    clippy::indexing_slicing,
    reason = "`pair_up` has an entry for each tensor of the first graph"
)]

use super::chunks::{ChunkMap, ChunkRun};
use super::error::SwitchError;
use super::held::{self, Held, Holding};
use super::states::{self, SharedState};
use super::{Switch, SwitchPrediction, SwitchStep, list, matching};
use crate::graph::TensorId;
use crate::pieces::Pieces;
use crate::scratch::{Buffer, Limits, OutOfScratch, Scratch, larger, total, words};
use crate::verify::Verified;
use bytemuck::{Pod, Zeroable};
use core::iter;

/// How the device's memory is addressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Memory {
    /// In chunks, which are mapped at the addresses of a plan.
    Chunks,
    /// As one slab without mapping. Bytes stay only if they have the same offset in both plans.
    Slab,
}

/// The caller's buffers for a switch.
#[derive(Debug)]
pub struct SwitchOutput<'a> {
    /// Buffer for the second plan's chunks.
    pub chunks: &'a mut [ChunkRun],
    /// Buffer for the steps.
    pub steps: &'a mut [SwitchStep],
}

/// A row of bytes on the device, with the tensor's id in the second graph.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Row {
    tensor: u32,
    host_copy: u32,
    pub(super) first_byte: u64,
    pub(super) bytes: u64,
    /// The offset: in the device's chunks for the first plan, in the plan's own chunks for the
    /// second.
    pub(super) at: u64,
}

impl Row {
    fn new(tensor: u32, held: &Held) -> Self {
        let Held { first_byte, bytes, at, host_copy, .. } = *held;
        Self { tensor, host_copy: host_copy.into(), first_byte, bytes, at }
    }

    pub(super) const fn tensor(&self) -> TensorId {
        TensorId(self.tensor)
    }

    pub(super) const fn has_host_copy(&self) -> bool {
        self.host_copy != 0
    }

    pub(super) const fn end_byte(&self) -> u64 {
        self.first_byte.saturating_add(self.bytes)
    }

    /// The offset of a byte of the tensor, which must be in the row.
    pub(super) const fn at_byte(&self, byte: u64) -> u64 {
        self.at.saturating_add(byte.saturating_sub(self.first_byte))
    }
}

/// Bytes that both plans hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overlap {
    /// The rows of the first and the second plan.
    pub(super) rows: [usize; 2],
    pub(super) first_byte: u64,
    pub(super) bytes: u64,
}

/// The bytes that are in both of two sorted lists of rows. O(rows).
#[expect(
    clippy::arithmetic_side_effects,
    reason = "positions of rows stay below the length of a list, and bytes end after they begin"
)]
pub(super) fn overlaps<'r>(
    from: &'r [Row],
    to: &'r [Row],
) -> impl Iterator<Item = Overlap> + Clone + use<'r> {
    let [mut left, mut right] = [0, 0];
    iter::from_fn(move || {
        while let (Some(one), Some(other)) = (from.get(left), to.get(right)) {
            let rows = [left, right];
            let one_is_first = (one.tensor, one.end_byte()) <= (other.tensor, other.end_byte());
            if one_is_first {
                left += 1;
            } else {
                right += 1;
            }
            let first_byte = one.first_byte.max(other.first_byte);
            let end_byte = one.end_byte().min(other.end_byte());
            if one.tensor == other.tensor && first_byte < end_byte {
                return Some(Overlap { rows, first_byte, bytes: end_byte - first_byte });
            }
        }
        None
    })
}

/// The sorted rows that the two plans of a switch hold.
#[derive(Debug)]
pub(super) struct Rows<'s> {
    pub(super) from: &'s [Row],
    pub(super) to: &'s [Row],
}

impl<'s> Rows<'s> {
    const fn scratch_words(from: usize, to: usize) -> usize {
        words::<Row>(from).saturating_add(words::<Row>(to))
    }

    fn new(
        holding: &Holding<'_>,
        to: &Verified<'_>,
        states: &[SharedState],
        scratch: &mut Scratch<'s>,
    ) -> Result<Self, SwitchError> {
        let from_rows = scratch.take(holding.entries.len(), Row::zeroed())?;
        {
            let mut scratch = scratch.reborrow();
            let (from, to) = (holding.verified.graph(), to.graph());
            let to_ids = states::pair_up(from, to, states, &mut scratch)?;
            for (row, held) in from_rows.iter_mut().zip(holding.entries) {
                *row = Row::new(to_ids[held.tensor.index()], held);
            }
        }
        let count = held::rows_at_start(to, scratch)?;
        let to_rows = scratch.take(count, Row::zeroed())?;
        let mut slots = to_rows.iter_mut();
        held::at_start(to, scratch, |held| {
            if let Some(slot) = slots.next() {
                *slot = Row::new(held.tensor.0, &held);
            }
        })?;
        from_rows.sort_unstable_by_key(|row| (row.tensor, row.first_byte));
        to_rows.sort_unstable_by_key(|row| (row.tensor, row.first_byte));
        Ok(Self { from: from_rows, to: to_rows })
    }
}

/// The largest number of rows that a plan can hold at its start.
pub(super) const fn most_rows(limits: &Limits) -> usize {
    limits.pieces.saturating_add(limits.objects)
}

/// Words of scratch that [`plan`] needs, by [`Limits::of_plan`] of the first and the second plan
/// and the number of [entries](Holding::entries) that the first plan holds: about 250 for each
/// entry and for each row of the second plan.
#[must_use]
pub const fn scratch_words(from: &Limits, to: &Limits, entries: usize) -> usize {
    let rows = entries.saturating_add(most_rows(to));
    total([
        Rows::scratch_words(entries, most_rows(to)),
        Pieces::scratch_words(to),
        words::<u64>(to.pools).saturating_mul(2),
        states::scratch_words(from, to),
        larger(matching::scratch_words(rows), list::scratch_words(rows)),
    ])
}

/// Plans the switch from the rows that one plan holds between two iterations to the start of
/// another plan. O(rows log rows), where a row is a run of consecutive objects.
///
/// Chunks with the most bytes that both plans hold are assigned first. If two chunks of the second
/// plan want the same chunk of the device, the chunk with more bytes gets it.
///
/// # Errors
/// States that do not correspond, machines with different chunk sizes, a device with too few
/// chunks, and buffers that are too short.
pub fn plan<'a>(
    holding: &Holding<'_>,
    to: &Verified<'_>,
    states: &[SharedState],
    memory: Memory,
    output: SwitchOutput<'a>,
    scratch: &mut Scratch<'_>,
) -> Result<Switch<'a>, SwitchError> {
    let mut scratch = scratch.reborrow();
    let machine = to.machine();
    check_memory(holding, to)?;
    let rows = Rows::new(holding, to, states, &mut scratch)?;
    let counts = [held::chunks(to), holding.capacity.chunks];
    let SwitchOutput { chunks, steps } = output;
    let chunks = match memory {
        Memory::Chunks => {
            matching::number(&rows, machine.chunk_bytes, counts, chunks, &mut scratch.reborrow())?
        }
        Memory::Slab => {
            let [count, _] = counts;
            let all = Buffer::Chunks.first(chunks, usize::from(count > 0))?;
            all.fill(ChunkRun { first: 0, device_first: 0, count });
            all
        }
    };
    let steps = list::write(&rows, ChunkMap(chunks), machine.chunk_bytes, steps, &mut scratch)?;
    let predicted = SwitchPrediction::of(steps, machine).ok_or(SwitchError::Overflow)?;
    Ok(Switch { chunks, steps, predicted })
}

/// Checks that the device has enough chunks for the second plan.
pub(super) fn check_memory(holding: &Holding<'_>, to: &Verified<'_>) -> Result<(), SwitchError> {
    let (from_bytes, to_bytes) = (holding.verified.machine().chunk_bytes, to.machine().chunk_bytes);
    if from_bytes != to_bytes {
        return Err(SwitchError::ChunkBytes { from_bytes, to_bytes });
    }
    let (needed, created) = (held::chunks(to), holding.capacity.chunks);
    if needed > created {
        let [needed_bytes, created_bytes] =
            [needed, created].map(|chunks| chunks.saturating_mul(to_bytes));
        return Err(SwitchError::DeviceMemory { needed_bytes, created_bytes });
    }
    Ok(())
}

/// The error for a buffer that needs `count` values.
pub(super) const fn out_of_scratch<T>(count: usize) -> OutOfScratch {
    OutOfScratch { needed_words: words::<T>(count), free_words: 0 }
}
