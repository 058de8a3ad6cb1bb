//! First fit in the order of starts.

#![expect(
    clippy::indexing_slicing,
    reason = "rows are below `most_rows`, and slots lie within their rows"
)]

use super::spans::Spans;
use crate::scratch::{OutOfScratch, Scratch, total, words};

pub(super) const fn scratch_words(items: usize) -> usize {
    words::<u32>(items).saturating_mul(2).saturating_add(Gaps::scratch_words(items))
}

/// Assigns each item, in the order of their starts (and in the given order for equal starts), the
/// lowest offset that is free at that time. Items that are alive across the end of the circle come
/// first, and their bytes are never freed. Returns the height. O(n log n + n × gaps / 128).
pub(super) fn pack(
    spans: &Spans<'_>,
    offsets: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let by_start = scratch.take(spans.len(), 0u32)?;
    let by_end = scratch.take(spans.len(), 0u32)?;
    for (item, slots) in spans.ids().zip(by_start.iter_mut().zip(&mut *by_end)) {
        (*slots.0, *slots.1) = (item, item);
    }
    by_start.sort_unstable_by_key(|&item| {
        let span = spans.get(item);
        (!span.wraps(), span.from, item)
    });
    by_end.sort_unstable_by_key(|&item| (spans.get(item).to, item));
    let mut gaps = Gaps::new(spans.len(), &mut scratch)?;
    let ends = |item: u32| !spans.get(item).wraps() && spans.bytes(item) > 0;
    let mut over = by_end.iter().filter(|&&item| ends(item)).peekable();
    for &item in &*by_start {
        let span = spans.get(item);
        if !span.wraps() {
            while let Some(&gone) = over.next_if(|&&gone| spans.get(gone).to <= span.from) {
                gaps.give(offsets[gone as usize], spans.bytes(gone));
            }
        }
        offsets[item as usize] = gaps.take(spans.bytes(item));
    }
    Ok(spans.height_bytes(offsets))
}

/// The number of gaps in a row. A search passes all rows, then the gaps of one row; this is near
/// the square root of the thousands of gaps in a large packing.
const ROW: usize = 128;

/// The free ranges by offset, in rows. The last range is endless.
struct Gaps<'a> {
    /// Each row has [`ROW`] slots here; the first slots are in use.
    start: &'a mut [u64],
    end: &'a mut [u64],
    taken: &'a mut [u32],
    /// The widest gap of each row.
    widest: &'a mut [u64],
    /// The used rows by offset, then the unused rows.
    order: &'a mut [u32],
    rows: usize,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "rows and slots are positions in arrays, a row in use has a slot, and no gap ends before \
              it starts"
)]
impl<'a> Gaps<'a> {
    /// A row is split only when it is full, so many gaps must have entered each row.
    const fn most_rows(items: usize) -> usize {
        1 + items / (ROW / 2)
    }

    const fn scratch_words(items: usize) -> usize {
        let rows = Self::most_rows(items);
        total([
            words::<u64>(rows.saturating_mul(ROW)).saturating_mul(2),
            words::<u64>(rows),
            words::<u32>(rows).saturating_mul(2),
        ])
    }

    fn new(items: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let rows = Self::most_rows(items);
        let start = scratch.take(rows * ROW, 0u64)?;
        let end = scratch.take(rows * ROW, u64::MAX)?;
        let taken = scratch.take(rows, 0u32)?;
        let widest = scratch.take(rows, u64::MAX)?;
        let order = scratch.take(rows, 0u32)?;
        for (id, slot) in (0..).zip(&mut *order) {
            *slot = id;
        }
        taken[0] = 1;
        Ok(Self { start, end, taken, widest, order, rows: 1 })
    }

    /// The slots of a row.
    fn slots(&self, row: usize) -> core::ops::Range<usize> {
        row * ROW..row * ROW + self.taken[row] as usize
    }

    /// Takes `bytes` at the lowest free offset, and returns it.
    fn take(&mut self, bytes: u64) -> u64 {
        let rows = &self.order[..self.rows];
        let wide = rows.iter().position(|&row| self.widest[row as usize] >= bytes);
        // The last gap fits every item.
        let position = wide.unwrap_or(self.rows - 1);
        let row = rows[position] as usize;
        let mut slots = self.slots(row);
        let last = slots.end - 1;
        let slot = slots.find(|&slot| self.end[slot] - self.start[slot] >= bytes).unwrap_or(last);
        let offset = self.start[slot];
        self.start[slot] = offset.saturating_add(bytes);
        if self.start[slot] == self.end[slot] && self.end[slot] != u64::MAX {
            self.remove(position, slot);
        }
        self.measure(row);
        offset
    }

    /// Frees a range.
    fn give(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes);
        let first = |row: u32| self.start[row as usize * ROW];
        let rows = &self.order[..self.rows];
        let position = rows.partition_point(|&row| first(row) < start).saturating_sub(1);
        let row = rows[position] as usize;
        let slots = self.slots(row);
        let slot = slots.start + self.start[slots.clone()].partition_point(|&gap| gap < start);
        let before = (slot > slots.start && self.end[slot - 1] == start).then(|| slot - 1);
        let (next_position, next) = match rows.get(position + 1) {
            Some(&row) if slot == slots.end => (position + 1, row as usize * ROW),
            _ => (position, slot),
        };
        let joins_after = self.start[next] == end && (next != slot || slot < slots.end);
        match (before, joins_after) {
            (Some(before), true) => {
                self.end[before] = self.end[next];
                self.remove(next_position, next);
            }
            (Some(before), false) => self.end[before] = end,
            (None, true) => self.start[next] = start,
            (None, false) => return self.insert(position, slot, [start, end]),
        }
        self.measure(row);
        if next_position < self.rows {
            self.measure(self.order[next_position] as usize);
        }
    }

    fn remove(&mut self, position: usize, slot: usize) {
        let row = self.order[position] as usize;
        let end = self.slots(row).end;
        self.start.copy_within(slot + 1..end, slot);
        self.end.copy_within(slot + 1..end, slot);
        self.taken[row] -= 1;
        if self.taken[row] == 0 {
            self.order[position..self.rows].rotate_left(1);
            self.rows -= 1;
        }
    }

    fn insert(&mut self, position: usize, slot: usize, [start, end]: [u64; 2]) {
        let row = self.order[position] as usize;
        let slots = self.slots(row);
        self.start.copy_within(slot..slots.end, slot + 1);
        self.end.copy_within(slot..slots.end, slot + 1);
        (self.start[slot], self.end[slot]) = (start, end);
        self.taken[row] += 1;
        if self.taken[row] as usize == ROW {
            self.split(position);
        }
        self.measure(row);
    }

    /// Moves the upper half of a full row to a row of its own.
    fn split(&mut self, position: usize) {
        let row = self.order[position] as usize;
        self.order[position + 1..=self.rows].rotate_right(1);
        self.rows += 1;
        let new = self.order[position + 1] as usize;
        let (half, end) = (row * ROW + ROW / 2, (row + 1) * ROW);
        self.start.copy_within(half..end, new * ROW);
        self.end.copy_within(half..end, new * ROW);
        self.taken[row] = (ROW / 2) as u32;
        self.taken[new] = (ROW / 2) as u32;
        self.measure(new);
    }

    fn measure(&mut self, row: usize) {
        let slots = self.slots(row);
        let gaps = self.start[slots.clone()].iter().zip(&self.end[slots]);
        self.widest[row] = gaps.map(|(start, end)| end - start).max().unwrap_or(0);
    }
}
