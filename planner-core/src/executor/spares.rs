//! Address ranges of plans that have ended. They stay mapped, so that a plan that runs again finds
//! its ranges mapped. A backend takes no addresses back.

#![expect(
    clippy::indexing_slicing,
    reason = "`len` and `rows_len` never exceed the lengths of their arrays, and ranges name rows \
              below `rows_len`"
)]

use super::Fault;
use crate::backend::{Chunks, DeviceAddress, Paging};
use crate::machine::Machine;
use crate::scratch::{OutOfScratch, Scratch, total, words};
use bytemuck::{Pod, Zeroable};
use core::iter;

/// A range that no plan has used for this many switches is given to any plan that needs addresses.
/// So the ranges of five plans that take turns stay mapped, and the number of ranges is bounded.
const SWITCHES_KEPT: u64 = 4;

/// Stands for the absence of a chunk.
const NOTHING: u64 = u64::MAX;

/// A part of a range: consecutive chunks of the device, or addresses with nothing mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Row {
    /// The first of the device's chunks, or [`NOTHING`].
    first: u64,
    count: u64,
}

impl Row {
    pub(super) const fn nothing(count: u64) -> Self {
        Self { first: NOTHING, count }
    }

    fn chunks(self) -> Option<Chunks> {
        let Self { first, count } = self;
        (first != NOTHING && count > 0).then_some(Chunks { first, count })
    }
}

impl From<Chunks> for Row {
    fn from(Chunks { first, count }: Chunks) -> Self {
        Self { first, count }
    }
}

/// A range of a plan that has ended.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Range {
    address: u64,
    chunks: u64,
    /// The first of its rows in the list of all rows. Without rows, nothing is mapped.
    first_row: u64,
    rows: u64,
    /// The number of switches since it was in use.
    unused: u64,
}

/// All ranges of plans that have ended.
#[derive(Debug)]
pub(super) struct Spares<'a> {
    ranges: &'a mut [Range],
    len: usize,
    rows: &'a mut [Row],
    rows_len: usize,
}

/// The number of address ranges, and of the rows of chunks mapped in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AddressRanges {
    /// Ranges.
    pub count: usize,
    /// Rows of consecutive chunks, or of addresses with nothing mapped between two such rows.
    pub rows: usize,
}

/// The chunks that an executor maps and unmaps before the first iteration of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SetUp {
    /// Chunks mapped. A chunk counts once for each address.
    pub mapped_chunks: u64,
    /// Chunks unmapped.
    pub unmapped_chunks: u64,
}

impl SetUp {
    /// The time of the calls on a machine, in nanoseconds.
    #[must_use]
    pub fn time_ns(self, machine: &Machine) -> u64 {
        let mapped_ns = self.mapped_chunks.saturating_mul(machine.map_ns_per_chunk);
        mapped_ns.saturating_add(self.unmapped_chunks.saturating_mul(machine.unmap_ns_per_chunk))
    }
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "`len` and `rows_len` count entries of arrays, and only an entry below `len` is removed"
)]
impl Spares<'_> {
    pub(super) const fn scratch_words(ranges: AddressRanges) -> usize {
        total([words::<Range>(ranges.count), words::<Row>(ranges.rows)])
    }

    /// The empty list.
    pub(super) const fn none() -> Self {
        Self { ranges: &mut [], len: 0, rows: &mut [], rows_len: 0 }
    }

    /// Copies the ranges at a switch, with capacity for more.
    pub(super) fn with_more<'b>(
        &self,
        more: AddressRanges,
        scratch: &mut Scratch<'b>,
    ) -> Result<Spares<'b>, OutOfScratch> {
        let AddressRanges { count, rows } = self.count();
        let mut next = Spares {
            ranges: scratch.take(count.saturating_add(more.count), Range::zeroed())?,
            len: 0,
            rows: scratch.take(rows.saturating_add(more.rows), Row::zeroed())?,
            rows_len: 0,
        };
        for range in &self.ranges[..self.len] {
            next.push(range.address, range.chunks, self.rows_of(range).iter().copied());
            next.ranges[next.len - 1].unused = range.unused.saturating_add(1);
        }
        Ok(next)
    }

    pub(super) fn count(&self) -> AddressRanges {
        let rows = self.ranges[..self.len].iter().map(|range| range.rows as usize);
        AddressRanges { count: self.len, rows: rows.sum() }
    }

    fn rows_of(&self, range: &Range) -> &[Row] {
        &self.rows[range.first_row as usize..][..range.rows as usize]
    }

    /// Adds a range and the rows that are mapped in it. There must be capacity for both.
    pub(super) fn push(&mut self, address: u64, chunks: u64, rows: impl Iterator<Item = Row>) {
        let first_row = self.rows_len;
        for (slot, row) in self.rows[first_row..].iter_mut().zip(rows) {
            *slot = row;
            self.rows_len += 1;
        }
        let rows = (self.rows_len - first_row) as u64;
        if let Some(slot) = self.ranges.get_mut(self.len) {
            let first_row = first_row as u64;
            *slot = Range { address, chunks, first_row, rows, unused: 0 };
            self.len += 1;
        }
    }

    /// Takes the range in which exactly these rows are mapped. O(ranges + rows).
    fn take_alike(
        &mut self,
        chunks: u64,
        rows: &(impl Iterator<Item = Row> + Clone),
    ) -> Option<u64> {
        let is_alike = |range: &Range| {
            range.chunks == chunks && self.rows_of(range).iter().copied().eq(rows.clone())
        };
        let at = self.ranges[..self.len].iter().position(is_alike)?;
        Some(self.remove(at).address)
    }

    /// Takes the smallest range of at least `chunks` chunks in which nothing is mapped, or that no
    /// plan has used for [`SWITCHES_KEPT`] switches. O(ranges).
    fn take_any(&mut self, chunks: u64) -> Option<Range> {
        let is_free = |range: &Range| range.rows == 0 || range.unused >= SWITCHES_KEPT;
        let ranges = self.ranges[..self.len].iter().enumerate();
        let fitting = ranges.filter(|(_, range)| range.chunks >= chunks && is_free(range));
        let (at, _) = fitting.min_by_key(|(_, range)| (range.chunks, range.rows))?;
        Some(self.remove(at))
    }

    /// Removes a range. Its rows stay in the list until the next switch.
    fn remove(&mut self, at: usize) -> Range {
        self.len -= 1;
        self.ranges.swap(at, self.len);
        self.ranges[self.len]
    }
}

/// Maps a plan's ranges on a device, and reuses ranges of earlier plans.
#[derive(Debug)]
pub(super) struct Mapper<'m, 'a, B> {
    pub(super) device: &'m mut B,
    pub(super) spares: &'m mut Spares<'a>,
    /// The chunks mapped and unmapped so far.
    pub(super) done: SetUp,
}

impl<'m, 'a, B: Paging> Mapper<'m, 'a, B> {
    pub(super) const fn new(device: &'m mut B, spares: &'m mut Spares<'a>) -> Self {
        Self { device, spares, done: SetUp { mapped_chunks: 0, unmapped_chunks: 0 } }
    }

    /// Reserves addresses at which nothing is mapped. The last address must fit into 64 bits.
    pub(super) fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, Fault<B::Error>> {
        let at = match self.spares.take_any(chunks) {
            Some(range) => {
                self.clear(&range)?;
                DeviceAddress(range.address)
            }
            None => self.device.reserve(chunks)?,
        };
        let bytes = chunks.checked_mul(self.device.chunk_bytes());
        let last = bytes.and_then(|bytes| at.0.checked_add(bytes.saturating_sub(1)));
        last.map(|_| at).ok_or(Fault::Addresses)
    }

    /// Reserves addresses and maps rows there, one after the other.
    pub(super) fn map(
        &mut self,
        rows: impl Iterator<Item = Row> + Clone,
    ) -> Result<DeviceAddress, Fault<B::Error>> {
        let chunks = rows.clone().fold(0u64, |sum, row| sum.saturating_add(row.count));
        if let Some(address) = self.spares.take_alike(chunks, &rows) {
            return Ok(DeviceAddress(address));
        }
        let first = self.reserve(chunks)?;
        let mut at = first;
        for row in rows {
            if let Some(chunks) = row.chunks() {
                self.device.map(at, chunks)?;
                self.done.mapped_chunks = self.done.mapped_chunks.saturating_add(chunks.count);
            }
            at.0 = at.0.saturating_add(row.count.saturating_mul(self.device.chunk_bytes()));
        }
        Ok(first)
    }

    /// Unmaps chunks at an address.
    pub(super) fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), Fault<B::Error>> {
        self.done.unmapped_chunks = self.done.unmapped_chunks.saturating_add(chunks);
        Ok(self.device.unmap(at, chunks)?)
    }

    /// Unmaps everything in a range.
    fn clear(&mut self, range: &Range) -> Result<(), Fault<B::Error>> {
        let mut at = DeviceAddress(range.address);
        for number in range.first_row..range.first_row.saturating_add(range.rows) {
            let row = self.spares.rows[number as usize];
            if let Some(chunks) = row.chunks() {
                self.unmap(at, chunks.count)?;
            }
            at.0 = at.0.saturating_add(row.count.saturating_mul(self.device.chunk_bytes()));
        }
        Ok(())
    }
}

/// Joins consecutive rows, so that equal mappings have equal lists.
pub(super) fn joined(rows: impl Iterator<Item = Row> + Clone) -> impl Iterator<Item = Row> + Clone {
    let mut rows = rows.peekable();
    iter::from_fn(move || {
        let mut joined = rows.next()?;
        let follows = |joined: Row, next: &Row| match (joined.chunks(), next.chunks()) {
            (Some(chunks), Some(next)) => {
                chunks.first.checked_add(chunks.count) == Some(next.first)
            }
            (None, None) => true,
            _ => false,
        };
        while let Some(next) = rows.next_if(|next| follows(joined, next)) {
            joined.count = joined.count.saturating_add(next.count);
        }
        Some(joined)
    })
}
