//! Writes the list of steps of a switch.
//!
//! Steps without a delay for prefetches come first: bytes that stay, evicts of bytes that the host
//! has, and prefetches into free memory of bytes that the host has. The offloads follow, each with
//! its evict and with the prefetches that waited for it last.

#![expect(
    clippy::indexing_slicing,
    reason = "rows are positions in the lists from which fragments and arrivals were made"
)]

use super::chunks::ChunkMap;
use super::error::SwitchError;
use super::planner::{Row, Rows, overlaps};
use super::push_list::PushList;
use super::{SwitchStep, TensorBytes};
use crate::scratch::{Buffer, BufferTooShort, OutOfScratch, Scratch, total, words};
use bytemuck::{Pod, Zeroable};
use core::ops::Range;

/// Bytes that the first plan holds and that are kept or evicted.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Fragment {
    /// The row of the first plan.
    row: u64,
    /// The row of the second plan in which the bytes stay, or [`EVICTED`].
    stays_in: u64,
    first_byte: u64,
    bytes: u64,
    /// The number of the offload, counted from 1; 0 if the bytes are not offloaded.
    offload: u64,
}

const EVICTED: u64 = u64::MAX;

/// Bytes to prefetch, and the number of offloads that must come before.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Arrival {
    after: u64,
    row: u64,
    first_byte: u64,
    bytes: u64,
}

/// Kept and evicted fragments alternate at most at the ends of rows and chunks.
const fn most_fragments(rows: usize) -> usize {
    rows.saturating_mul(8)
}

/// Words of scratch that [`write`] needs.
pub(super) const fn scratch_words(rows: usize) -> usize {
    let fragments = most_fragments(rows);
    total([
        words::<Fragment>(fragments),
        words::<u32>(fragments),
        words::<Arrival>(fragments.saturating_add(rows)),
    ])
}

/// Writes the list of steps.
pub(super) fn write<'a>(
    rows: &Rows<'_>,
    map: ChunkMap<'_>,
    chunk_bytes: u64,
    out: &'a mut [SwitchStep],
    scratch: &mut Scratch<'_>,
) -> Result<&'a [SwitchStep], SwitchError> {
    let most = most_fragments(rows.from.len().saturating_add(rows.to.len()));
    let mut fragments = PushList::new(most, scratch)?;
    cut(rows, map, chunk_bytes, &mut fragments)?;
    let fragments = fragments.into_entries();
    number_offloads(rows, fragments);
    let most = most.saturating_add(rows.to.len());
    let mut arrivals = PushList::new(most, scratch)?;
    find_arrivals(rows, fragments, &mut arrivals)?;
    let arrivals = arrivals.into_entries();
    let by_address = scratch.take(fragments.len(), 0u32)?;
    let delays = Delays::new(rows, fragments, by_address);
    for arrival in &mut *arrivals {
        arrival.after = delays.offloads_before(arrival, map, chunk_bytes);
    }
    arrivals.sort_unstable_by_key(|arrival| (arrival.after, arrival.row, arrival.first_byte));
    Ok(emit(rows, fragments, arrivals, out)?)
}

/// Cuts the rows of the first plan into fragments that are kept or evicted.
fn cut(
    rows: &Rows<'_>,
    map: ChunkMap<'_>,
    chunk_bytes: u64,
    fragments: &mut PushList<'_, Fragment>,
) -> Result<(), OutOfScratch> {
    let mut shared = overlaps(rows.from, rows.to).peekable();
    for (row, held) in (0..).zip(rows.from) {
        let mut next_byte = held.first_byte;
        while let Some(overlap) = shared.next_if(|overlap| overlap.rows[0] == row) {
            let stays_in = overlap.rows[1];
            let mut byte = overlap.first_byte;
            let to_at = rows.to[stays_in].at_byte(byte);
            let mut since = None;
            for (at, bytes) in map.bytes_on_device(to_at, overlap.bytes, chunk_bytes) {
                let stays = held.at_byte(byte) == at;
                match (stays, since) {
                    (true, None) => since = Some(byte),
                    (false, Some(first)) => {
                        keep(fragments, row, stays_in, &mut next_byte, first..byte)?;
                        since = None;
                    }
                    _ => {}
                }
                byte = byte.saturating_add(bytes);
            }
            if let Some(first) = since {
                keep(fragments, row, stays_in, &mut next_byte, first..byte)?;
            }
        }
        leave(fragments, row, next_byte..held.end_byte())?;
    }
    Ok(())
}

/// Adds a kept fragment of a row, after the fragment before it that is evicted.
fn keep(
    fragments: &mut PushList<'_, Fragment>,
    row: usize,
    stays_in: usize,
    next_byte: &mut u64,
    bytes: Range<u64>,
) -> Result<(), OutOfScratch> {
    leave(fragments, row, *next_byte..bytes.start)?;
    *next_byte = bytes.end;
    fragments.push(Fragment::new(row, stays_in as u64, &bytes))
}

/// Adds an evicted fragment of a row, if it is not empty.
fn leave(
    fragments: &mut PushList<'_, Fragment>,
    row: usize,
    bytes: Range<u64>,
) -> Result<(), OutOfScratch> {
    if bytes.is_empty() {
        return Ok(());
    }
    fragments.push(Fragment::new(row, EVICTED, &bytes))
}

impl Fragment {
    const fn new(row: usize, stays_in: u64, bytes: &Range<u64>) -> Self {
        let (first_byte, bytes) = (bytes.start, bytes.end.saturating_sub(bytes.start));
        Self { row: row as u64, stays_in, first_byte, bytes, offload: 0 }
    }
    const fn is_evicted(&self) -> bool {
        self.stays_in == EVICTED
    }

    const fn end_byte(&self) -> u64 {
        self.first_byte.saturating_add(self.bytes)
    }

    /// The offset in the device's chunks.
    const fn at(&self, rows: &Rows<'_>) -> u64 {
        rows.from[self.row as usize].at_byte(self.first_byte)
    }

    const fn named(&self, rows: &Rows<'_>) -> TensorBytes {
        named(&rows.from[self.row as usize], self.first_byte, self.bytes)
    }
}

const fn named(row: &Row, first_byte: u64, bytes: u64) -> TensorBytes {
    TensorBytes { tensor: row.tensor(), first_byte, bytes }
}

/// Numbers the offloads: first the evicted fragments that are not on the host, then the kept
/// fragments that the second plan wants on the host too.
fn number_offloads(rows: &Rows<'_>, fragments: &mut [Fragment]) {
    let mut offloads = 0u64;
    for goes in [true, false] {
        for fragment in fragments.iter_mut().filter(|fragment| fragment.is_evicted() == goes) {
            let is_wanted = goes || rows.to[fragment.stays_in as usize].has_host_copy();
            if is_wanted && !rows.from[fragment.row as usize].has_host_copy() {
                offloads = offloads.saturating_add(1);
                fragment.offload = offloads;
            }
        }
    }
}

/// Finds the bytes that the second plan holds and that do not stay in its chunks.
fn find_arrivals(
    rows: &Rows<'_>,
    fragments: &[Fragment],
    arrivals: &mut PushList<'_, Arrival>,
) -> Result<(), OutOfScratch> {
    // Both lists are sorted by tensor and byte.
    let mut kept = fragments.iter().filter(|fragment| !fragment.is_evicted()).peekable();
    for (row, wanted) in (0u64..).zip(rows.to) {
        let mut first_byte = wanted.first_byte;
        let mut push = |first_byte: u64, end_byte: u64| match end_byte.saturating_sub(first_byte) {
            0 => Ok(()),
            bytes => arrivals.push(Arrival { after: 0, row, first_byte, bytes }),
        };
        while let Some(fragment) = kept.next_if(|fragment| fragment.stays_in == row) {
            push(first_byte, fragment.first_byte)?;
            first_byte = fragment.end_byte();
        }
        push(first_byte, wanted.end_byte())?;
    }
    Ok(())
}

/// Computes the offloads that each prefetch must wait for.
struct Delays<'f> {
    rows: &'f Rows<'f>,
    fragments: &'f [Fragment],
    /// The fragments, sorted by address.
    by_address: &'f [u32],
}

impl<'f> Delays<'f> {
    fn new(rows: &'f Rows<'f>, fragments: &'f [Fragment], by_address: &'f mut [u32]) -> Self {
        for (slot, number) in by_address.iter_mut().zip(0..) {
            *slot = number;
        }
        by_address.sort_unstable_by_key(|&number| fragments[number as usize].at(rows));
        Self { rows, fragments, by_address }
    }

    /// The number of offloads that must have ended before bytes are prefetched: offloads of the
    /// same bytes, and offloads from the memory that the bytes take.
    fn offloads_before(&self, arrival: &Arrival, map: ChunkMap<'_>, chunk_bytes: u64) -> u64 {
        let row = &self.rows.to[arrival.row as usize];
        let end_byte = arrival.first_byte.saturating_add(arrival.bytes);
        let key = |fragment: &Fragment| {
            (self.rows.from[fragment.row as usize].tensor(), fragment.end_byte())
        };
        let first =
            self.fragments.partition_point(|it| key(it) <= (row.tensor(), arrival.first_byte));
        let same = self.fragments[first..].iter().take_while(|fragment| {
            key(fragment).0 == row.tensor() && fragment.first_byte < end_byte
        });
        let to_at = row.at_byte(arrival.first_byte);
        let there = map.bytes_on_device(to_at, arrival.bytes, chunk_bytes);
        let there = there.flat_map(|(at, bytes)| self.lies_in(at, bytes));
        // Kept fragments delay no prefetch, even if they are offloaded too.
        let delays = same.chain(there).filter(|fragment| fragment.is_evicted());
        delays.map(|fragment| fragment.offload).max().unwrap_or(0)
    }

    /// The fragments that lie in a range of the device's bytes.
    fn lies_in(&self, at: u64, bytes: u64) -> impl Iterator<Item = &'f Fragment> + use<'f> {
        let Self { rows, fragments, by_address } = *self;
        let fragment = move |&number: &u32| &fragments[number as usize];
        let first = by_address.partition_point(|number| {
            let fragment = fragment(number);
            fragment.at(rows).saturating_add(fragment.bytes) <= at
        });
        let end = at.saturating_add(bytes);
        by_address[first..].iter().map(fragment).take_while(move |it| it.at(rows) < end)
    }
}

/// Writes the steps in order.
fn emit<'a>(
    rows: &Rows<'_>,
    fragments: &[Fragment],
    arrivals: &[Arrival],
    out: &'a mut [SwitchStep],
) -> Result<&'a [SwitchStep], BufferTooShort> {
    let mut steps = Steps { out, len: 0 };
    for fragment in fragments.iter().filter(|fragment| !fragment.is_evicted()) {
        steps.push(SwitchStep::Keep(fragment.named(rows)));
    }
    for fragment in
        fragments.iter().filter(|fragment| fragment.is_evicted() && fragment.offload == 0)
    {
        steps.push(SwitchStep::Evict(fragment.named(rows)));
    }
    let mut arrivals = arrivals.iter().peekable();
    let mut arrive = |steps: &mut Steps<'_>, offloads| {
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.after <= offloads) {
            let row = &rows.to[arrival.row as usize];
            steps.push(SwitchStep::Prefetch(named(row, arrival.first_byte, arrival.bytes)));
        }
    };
    arrive(&mut steps, 0);
    for goes in [true, false] {
        let of_this = fragments.iter().filter(|fragment| fragment.is_evicted() == goes);
        for fragment in of_this.filter(|fragment| fragment.offload > 0) {
            steps.push(SwitchStep::Offload(fragment.named(rows)));
            if goes {
                steps.push(SwitchStep::Evict(fragment.named(rows)));
            }
            arrive(&mut steps, fragment.offload);
        }
    }
    let Steps { out, len } = steps;
    Buffer::SwitchSteps.first(out, len).map(|steps| &*steps)
}

/// An output buffer that goes on counting after it is full.
struct Steps<'a> {
    out: &'a mut [SwitchStep],
    len: usize,
}

impl Steps<'_> {
    fn push(&mut self, step: SwitchStep) {
        if let Some(slot) = self.out.get_mut(self.len) {
            *slot = step;
        }
        self.len = self.len.saturating_add(1);
    }
}
