//! Lifetimes as ranges of sections: stretches of time in which items start, but no item ends.

#![expect(
    clippy::indexing_slicing,
    reason = "items are below `count`, and sections below the length of `times`"
)]

use super::Item;
use crate::scratch::{OutOfScratch, Scratch, total, words};
use core::ops::Range;

/// The sections of a lifetime: from `from` up to `to`, exclusive. If `to` is not after `from`, the
/// lifetime crosses the end of the circle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) from: u32,
    pub(super) to: u32,
}

impl Span {
    /// Returns whether the lifetime crosses the end of the circle.
    pub(super) const fn wraps(self) -> bool {
        self.to <= self.from
    }

    pub(super) const fn covers(self, section: u32) -> bool {
        let (begun, over) = (self.from <= section, self.to <= section);
        if self.wraps() { begun || !over } else { begun && !over }
    }

    /// Returns whether two items are alive at the same time.
    pub(super) const fn meets(self, other: Self) -> bool {
        if self.wraps() || other.wraps() {
            self.covers(other.from) || other.covers(self.from)
        } else {
            self.from < other.to && other.from < self.to
        }
    }
}

/// All items, and the bytes alive in each section.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spans<'a> {
    ranges: &'a [[u32; 2]],
    bytes: &'a [u64],
    load_bytes: &'a [u64],
}

impl<'a> Spans<'a> {
    pub(super) const fn scratch_words(items: usize) -> usize {
        total([
            words::<[u32; 2]>(items),
            words::<u64>(items).saturating_mul(2),
            words::<u32>(items).saturating_mul(3),
        ])
    }

    /// Reads the first `count` items. O(n log n).
    pub(super) fn new(
        items: impl Iterator<Item = Item> + Clone,
        count: usize,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let ranges = scratch.take(count, [0u32; 2])?;
        let bytes = scratch.take(count, 0u64)?;
        let load_bytes = scratch.take(count, 0u64)?;
        let mut scratch = scratch.reborrow();
        let firsts = scratch.take(count, 0u32)?;
        let lasts = scratch.take(count, 0u32)?;
        for ((first, last), item) in firsts.iter_mut().zip(&mut *lasts).zip(items.clone()) {
            (*first, *last) = (item.first, item.last);
        }
        let times = sections(firsts, lasts, scratch.take(count, 0u32)?);
        for ((range, bytes), item) in ranges.iter_mut().zip(&mut *bytes).zip(items) {
            let from = times.partition_point(|&time| time < item.first) as u32;
            let to = times.partition_point(|&time| time <= item.last) as u32;
            (*range, *bytes) = ([from, to], item.bytes);
        }
        let load_bytes = &mut load_bytes[..times.len()];
        sum_up(ranges, bytes, load_bytes);
        Ok(Self { ranges, bytes, load_bytes })
    }

    pub(super) const fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) const fn sections(&self) -> usize {
        self.load_bytes.len()
    }

    pub(super) fn ids(&self) -> Range<u32> {
        0..self.len() as u32
    }

    pub(super) fn get(&self, item: u32) -> Span {
        let [from, to] = self.ranges[item as usize];
        Span { from, to }
    }

    pub(super) fn bytes(&self, item: u32) -> u64 {
        self.bytes[item as usize]
    }

    /// The sections of a span, in one or two ranges.
    pub(super) const fn parts(&self, span: Span) -> [Range<usize>; 2] {
        let (from, to) = (span.from as usize, span.to as usize);
        if span.wraps() { [from..self.sections(), 0..to] } else { [from..to, 0..0] }
    }

    /// The sections from the first of a span to its last; all sections if it wraps.
    pub(super) const fn hull(&self, span: Span) -> [u32; 2] {
        if span.wraps() { [0, self.sections() as u32] } else { [span.from, span.to] }
    }

    /// Returns the number of sections of a lifetime.
    pub(super) fn sections_of(&self, span: Span) -> usize {
        self.parts(span).iter().map(ExactSizeIterator::len).sum()
    }

    /// Returns the most bytes alive during a lifetime.
    pub(super) fn load_bytes(&self, span: Span) -> u64 {
        let parts = self.parts(span).into_iter();
        parts.flat_map(|part| &self.load_bytes[part]).copied().max().unwrap_or(0)
    }

    /// The most bytes alive at one time.
    pub(super) fn most_load_bytes(&self) -> u64 {
        self.load_bytes.iter().copied().max().unwrap_or(0)
    }

    /// The height of a packing.
    pub(super) fn height_bytes(&self, offsets: &[u64]) -> u64 {
        let tops = offsets.iter().zip(self.bytes).map(|(at, &bytes)| at.saturating_add(bytes));
        tops.max().unwrap_or(0)
    }
}

/// The last start of each run of starts without an end in between.
#[expect(clippy::arithmetic_side_effects, reason = "`ended`, `at` and `sections` count items")]
fn sections<'t>(firsts: &mut [u32], lasts: &mut [u32], times: &'t mut [u32]) -> &'t [u32] {
    firsts.sort_unstable();
    lasts.sort_unstable();
    let (mut ended, mut sections) = (0, 0);
    for (at, &first) in firsts.iter().enumerate() {
        ended += lasts[ended..].partition_point(|&last| last < first);
        let is_last_before = |next| lasts.get(ended).is_some_and(|&last| last < next);
        if firsts.get(at + 1).copied().is_none_or(is_last_before) {
            times[sections] = first;
            sections += 1;
        }
    }
    &times[..sections]
}

/// Adds up the changes at the start of each section.
fn sum_up(ranges: &[[u32; 2]], bytes: &[u64], load_bytes: &mut [u64]) {
    for (&[from, to], &bytes) in ranges.iter().zip(bytes) {
        let mut change = |section: u32, by: u64| {
            if let Some(load) = load_bytes.get_mut(section as usize) {
                *load = load.wrapping_add(by);
            }
        };
        change(from, bytes);
        change(to, bytes.wrapping_neg());
        if to <= from {
            change(0, bytes);
        }
    }
    let mut sum = 0u64;
    for load in load_bytes {
        sum = sum.wrapping_add(*load);
        *load = sum;
    }
}
