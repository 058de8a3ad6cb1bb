//! The load of the links by chosen transfers over an iteration.
//!
//! If only density counted, gaps of equal density would be taken one after the other; the link
//! would be late for a while and idle later. So the load of a window of time raises the cost of
//! more transfers in it.

#![expect(clippy::indexing_slicing, reason = "windows are below `WINDOWS`")]

use super::densities::Densities;
use super::gaps::{Gaps, Span};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::Sequence;

/// The number of windows of time in an iteration. A balance: with more, transfers are spread more
/// evenly; but each is longer than a window.
const WINDOWS: usize = 64;

/// The time for which each link is loaded, by the window in which gaps begin or end.
pub(super) struct Load<'s> {
    /// The percentage by which a full window raises the cost of one more transfer. A half-full
    /// window raises it by half of that.
    weight_percent: u64,
    /// The time at which each launch starts, and at which the last one ends.
    starts_ns: &'s [u64],
    up_ns: &'s mut [u64],
    down_ns: &'s mut [u64],
}

impl<'s> Load<'s> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([Sequence::start_words(limits), words::<u64>(WINDOWS).saturating_mul(2)])
    }

    pub(super) fn new(
        sequence: &Sequence<'_>,
        weight_percent: u64,
        scratch: &mut Scratch<'s>,
    ) -> Result<Self, OutOfScratch> {
        Ok(Self {
            weight_percent,
            up_ns: scratch.take(WINDOWS, 0)?,
            down_ns: scratch.take(WINDOWS, 0)?,
            starts_ns: sequence.starts_ns(scratch)?,
        })
    }

    fn period_ns(&self) -> u64 {
        self.starts_ns.last().copied().unwrap_or(0).max(1)
    }

    fn window(&self, op: usize) -> usize {
        let start_ns = self.starts_ns.get(op).copied().unwrap_or(0);
        let windows_ns = u128::from(start_ns).saturating_mul(WINDOWS as u128);
        let window = windows_ns.checked_div(self.period_ns().into()).unwrap_or(0);
        (window as usize).min(WINDOWS - 1)
    }

    /// Replaces the transfers of a gap: from now on, `objects` objects move in it.
    pub(super) fn set_moved(
        &mut self,
        densities: &Densities<'_>,
        gaps: &Gaps<'_>,
        (slot, span): (usize, Span),
        objects: u64,
    ) {
        let moves_ns = |objects| densities.moves_ns(gaps, slot, 0..objects);
        let (before_ns, after_ns) = (moves_ns(gaps.moved(slot)), moves_ns(objects));
        let (up, down) = (self.window(span.to), self.window(span.from));
        let change = |load_ns: &mut u64, before_ns: u64, after_ns: u64| {
            *load_ns = load_ns.saturating_add(after_ns).saturating_sub(before_ns);
        };
        change(&mut self.up_ns[up], before_ns[0], after_ns[0]);
        change(&mut self.down_ns[down], before_ns[1], after_ns[1]);
    }

    /// The factor of the cost of a gap's transfers compared with idle links.
    pub(super) fn factor(&self, gaps: &Gaps<'_>, slot: usize, span: Span) -> f64 {
        let up_ns = self.up_ns[self.window(span.to)];
        let downloads = gaps.version(slot) != u32::MAX;
        let down_ns = if downloads { self.down_ns[self.window(span.from)] } else { 0 };
        let window_ns = self.period_ns() as f64 / WINDOWS as f64;
        1.0 + up_ns.max(down_ns) as f64 / window_ns * (self.weight_percent as f64 / 100.0)
    }
}
