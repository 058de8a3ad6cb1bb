//! A packing that is built from the bottom up and whose decisions can be undone.

#![expect(
    clippy::indexing_slicing,
    reason = "items and sections are those of the spans, and the arrays have an entry for each"
)]

use super::spans::Spans;
use crate::scratch::{OutOfScratch, Scratch, words};

/// Some items are placed, the others are open. The unit of sizes and heights is so large that all
/// heights stay below 2^31.
pub(super) struct Stack<'a> {
    pub(super) spans: Spans<'a>,
    size: &'a mut [u32],
    /// The offset of a placed item; the lowest offset that an open item may still take.
    floor: &'a mut [u32],
    /// A lower bound of the floor of an open item that was postponed.
    least: &'a mut [u32],
    open: &'a mut [u32],
    open_len: usize,
    /// The top of the placed items in each section.
    skyline: &'a mut [u32],
    /// The number of open items that start in each section.
    begin: &'a mut [u32],
    /// The number of open items that are alive both in a section and in the section before it.
    cross: &'a mut [u32],
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "items and sections are positions in arrays, and heights stay below 2^31"
)]
impl<'a> Stack<'a> {
    pub(super) const fn scratch_words(items: usize) -> usize {
        words::<u32>(items).saturating_mul(7)
    }

    pub(super) fn new(
        spans: Spans<'a>,
        unit_bytes: u64,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let (items, sections) = (spans.len(), spans.sections());
        let size = scratch.take(items, 0)?;
        for (size, item) in size.iter_mut().zip(spans.ids()) {
            *size = spans.bytes(item).div_ceil(unit_bytes) as u32;
        }
        Ok(Self {
            spans,
            size,
            floor: scratch.take(items, 0)?,
            least: scratch.take(items, 0)?,
            open: scratch.take(items, 0)?,
            open_len: 0,
            skyline: scratch.take(sections, 0)?,
            begin: scratch.take(sections, 0)?,
            cross: scratch.take(sections, 0)?,
        })
    }

    /// Undoes all decisions.
    pub(super) fn clear(&mut self) {
        self.floor.fill(0);
        self.least.fill(0);
        self.skyline.fill(0);
        self.begin.fill(0);
        self.cross.fill(0);
        self.open_len = 0;
        self.spans.ids().for_each(|item| self.reopen(item));
    }

    pub(super) fn open(&self) -> &[u32] {
        &self.open[..self.open_len]
    }

    pub(super) fn size(&self, item: u32) -> u32 {
        self.size[item as usize]
    }

    /// The offset of a placed item; the lowest offset that an open item may still take.
    pub(super) fn floor(&self, item: u32) -> u32 {
        self.floor[item as usize]
    }

    pub(super) fn top(&self, item: u32) -> u32 {
        self.floor(item) + self.size(item)
    }

    /// Returns whether two items are interchangeable.
    pub(super) fn alike(&self, one: u32, other: u32) -> bool {
        self.spans.get(one) == self.spans.get(other) && self.size(one) == self.size(other)
    }

    fn reopen(&mut self, item: u32) {
        self.open[self.open_len] = item;
        self.open_len += 1;
        self.count(item, 1);
    }

    fn count(&mut self, item: u32, by: u32) {
        let [first, around] = self.spans.parts(self.spans.get(item));
        self.begin[first.start] = self.begin[first.start].wrapping_add(by);
        for part in [first.start + 1..first.end, around] {
            for count in &mut self.cross[part] {
                *count = count.wrapping_add(by);
            }
        }
    }

    /// Sorts the open items by floor; fast if few have moved.
    pub(super) fn sort(&mut self) {
        for end in 1..self.open_len {
            let item = self.open[end];
            let floor = self.floor(item);
            let mut at = end;
            while at > 0 && self.floor(self.open[at - 1]) > floor {
                self.open[at] = self.open[at - 1];
                at -= 1;
            }
            self.open[at] = item;
        }
    }

    /// Among the ranges of sections whose borders no open item crosses, the range with the fewest
    /// items.
    pub(super) fn smallest_part(&self) -> [u32; 2] {
        let sections = self.cross.len();
        if self.cross.first().is_some_and(|&count| count > 0) {
            return [0, sections as u32];
        }
        let (mut fewest, mut part) = (u32::MAX, [0, 0]);
        let mut from = 0;
        while from < sections {
            let inside = self.cross[from + 1..].iter().take_while(|&&count| count > 0).count();
            let to = from + 1 + inside;
            let items = self.begin[from..to].iter().sum();
            if 0 < items && items < fewest {
                (fewest, part) = (items, [from as u32, to as u32]);
            }
            from = to;
        }
        part
    }

    /// Places an open item at its floor.
    pub(super) fn place(&mut self, item: u32) {
        let at = self.open().iter().position(|&other| other == item).unwrap_or(0);
        self.open.copy_within(at + 1..self.open_len, at);
        self.open_len -= 1;
        self.count(item, u32::MAX);
        let (span, top) = (self.spans.get(item), self.top(item));
        for part in self.spans.parts(span) {
            self.skyline[part].fill(top);
        }
        for &other in &self.open[..self.open_len] {
            if self.spans.get(other).meets(span) {
                let floor = &mut self.floor[other as usize];
                *floor = top.max(*floor);
            }
        }
    }

    /// Reopens the item that was placed last, after the items `before`.
    pub(super) fn take_back(&mut self, item: u32, before: impl Iterator<Item = u32>) {
        let (span, top) = (self.spans.get(item), self.top(item));
        let parts = self.spans.parts(span);
        for part in &parts {
            self.skyline[part.clone()].fill(0);
        }
        for below in before {
            let top = self.top(below);
            for one in self.spans.parts(self.spans.get(below)) {
                for part in &parts {
                    let common = one.start.max(part.start)..one.end.min(part.end);
                    for height in self.skyline.get_mut(common).into_iter().flatten() {
                        *height = top.max(*height);
                    }
                }
            }
        }
        for at in 0..self.open_len {
            let other = self.open[at];
            if self.floor(other) == top && self.spans.get(other).meets(span) {
                self.update_floor(other);
            }
        }
        self.reopen(item);
    }

    /// Changes the least offset of an open item and of all items like it. Returns the old value.
    pub(super) fn postpone(&mut self, item: u32, least: u32) -> u32 {
        let before = self.least[item as usize];
        for at in 0..self.open_len {
            let other = self.open[at];
            if self.alike(item, other) {
                self.least[other as usize] = least;
                self.update_floor(other);
            }
        }
        before
    }

    /// Recomputes the floor of an open item: the top of the placed items below it.
    fn update_floor(&mut self, item: u32) {
        let mut floor = self.least[item as usize];
        for part in self.spans.parts(self.spans.get(item)) {
            floor = self.skyline[part].iter().fold(floor, |floor, &top| floor.max(top));
        }
        self.floor[item as usize] = floor;
    }
}

/// The greatest common divisor of all sizes, times the factor that keeps the sum of all heights
/// below 2^30.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "`measure` is not 0, and at most `MOST_SEARCHED` items are searched"
)]
pub(super) fn unit_bytes(spans: &Spans<'_>) -> u64 {
    let measure = spans.ids().fold(0, |measure, item| gcd(measure, spans.bytes(item))).max(1);
    let sum: u128 = spans.ids().map(|item| u128::from(spans.bytes(item) / measure)).sum();
    // Each size is rounded up by less than one.
    let coarser = sum.div_ceil((1 << 30) - spans.len() as u128).max(1);
    measure.saturating_mul(coarser as u64)
}

const fn gcd(mut one: u64, mut other: u64) -> u64 {
    while let Some(rest) = one.checked_rem(other) {
        (one, other) = (other, rest);
    }
    one
}
