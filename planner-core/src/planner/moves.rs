//! The moves that a choice of gaps has made so far, and the key of one more.

#![expect(clippy::indexing_slicing, reason = "slots are those of the sequence")]

use super::densities::{Densities, sum};
use super::gaps::{Gaps, Span};
use super::host_memory::HostMemory;
use super::load::Load;
use super::positions::Ranges;
use super::tree::MinTree;

/// The moves in gaps so far.
pub(super) struct Moves<'c, 'g> {
    pub(super) densities: Densities<'c>,
    pub(super) gaps: &'c mut Gaps<'g>,
    /// The objects that stay free at each op of each pool.
    pub(super) slack: MinTree<'c>,
    /// The load of the links by the moves, if it counts.
    pub(super) load: Option<Load<'c>>,
    /// The host memory that the moves leave free, if it is limited.
    pub(super) host: Option<HostMemory<'c>>,
}

impl Moves<'_, '_> {
    /// The number of objects of an operand's tensor.
    pub(super) fn objects(&self, slot: usize) -> u64 {
        let Densities { task, memory, .. } = self.densities;
        memory.objects(task.sequence.operands()[slot])
    }

    /// The span of the gap after an operand.
    pub(super) fn span(&self, slot: usize) -> Option<Span> {
        self.gaps.span(self.densities.task.sequence, slot)
    }

    /// A span as ranges of the ops of an operand's pool.
    pub(super) fn ranges(&self, slot: usize, span: Span) -> Ranges {
        let Densities { task, memory, .. } = self.densities;
        span.positions(task, memory, slot)
    }

    /// The fewest objects that stay free at an op in these ranges; negative if an op does not fit.
    pub(super) fn least_slack(&self, ranges: Ranges) -> i64 {
        let [one, other] = ranges.map(|(from, to)| self.slack.min(from, to));
        one.min(other)
    }

    /// The most objects that are missing at an op in these ranges; `None` if every op has some
    /// left.
    pub(super) fn missing(&self, ranges: Ranges) -> Option<u64> {
        u64::try_from(self.least_slack(ranges).saturating_neg()).ok()
    }

    /// Frees this many objects at the ops in these ranges, or takes them if the number is negative.
    pub(super) fn add_slack(&mut self, ranges: Ranges, objects: i64) {
        for (from, to) in ranges {
            self.slack.add(from, to, objects);
        }
    }

    /// Changes the number of objects that move in a gap with this span.
    pub(super) fn set_moved(&mut self, slot: usize, span: Option<Span>, objects: u64) {
        let change = (objects as i64).saturating_sub(self.gaps.moved(slot) as i64);
        if let (Some(load), Some(span)) = (&mut self.load, span) {
            load.set_moved(&self.densities, self.gaps, (slot, span), objects);
        }
        self.gaps.set_moved(slot, objects);
        if let Some(host) = &mut self.host {
            host.update(self.gaps, slot);
        }
        if let Some(span) = span {
            self.add_slack(self.ranges(slot, span), change);
        }
    }

    /// The key of a gap with this span (the least is taken first) and the number of further objects
    /// that should move; `None` if the gap is of no use.
    pub(super) fn weigh(&self, slot: usize, span: Span) -> Option<(u64, u64)> {
        let ranges = self.ranges(slot, span);
        let moved = self.gaps.moved(slot);
        let most = match &self.host {
            Some(host) => host.most_objects(self.gaps, slot),
            None => self.objects(slot),
        };
        let relief = sum(self.densities.relief, ranges);
        if moved >= most || relief == 0 {
            return None;
        }
        let objects = most.saturating_sub(moved).min(self.missing(ranges)?);
        if objects == 0 {
            return None;
        }
        let more = moved..moved.saturating_add(objects);
        let (density, objects) = self.densities.best_part(self.gaps, slot, span, relief, more);
        let gain = density / self.load_factor(slot, span);
        // The order of positive numbers is the order of their bits.
        Some((!gain.to_bits(), objects))
    }

    /// The factor of the cost of a gap's transfers, compared with idle links.
    pub(super) fn load_factor(&self, slot: usize, span: Span) -> f64 {
        self.load.as_ref().map_or(1.0, |load| load.factor(self.gaps, slot, span))
    }
}
