//! The density of a gap: the relief of the ops that it spans, per time of its transfers.

#![expect(
    clippy::indexing_slicing,
    reason = "slots and spans are those of the sequence's gaps, and each array of sums has one entry \
              more than there are positions"
)]

use super::gaps::{Gaps, Span};
use super::memory::Memory;
use super::positions::{self, Ranges};
use super::pressure::{FULL, IDLE, Pressure};
use super::request::Task;
use super::tree::MinTree;
use crate::machine::Direction;
use crate::scratch::{OutOfScratch, Scratch};
use crate::sequence::LaunchId;
use core::ops::Range;

/// The fewest objects that move on their own, as a fraction of the pool: one object, unless objects
/// are tiny.
const LEAST: u64 = 1 << 17;

/// The distance from the ends of a gap over which pressures are averaged, as a fraction of the
/// iteration. A balance: a shorter distance follows each change; a longer distance allows for
/// transfers that are early or late.
const NEAR: usize = 32;

/// Computes the densities of gaps.
#[derive(Clone, Copy)]
pub(super) struct Densities<'s> {
    pub(super) task: &'s Task<'s>,
    pub(super) memory: &'s Memory<'s>,
    /// Prefix sums over the ops of all pools: the weight of the ops that exceed their pool if
    /// nothing moves.
    pub(super) relief: &'s [u64],
    /// Prefix sums of the pressure on each link at the ops.
    up: &'s [u64],
    down: &'s [u64],
}

impl<'s> Densities<'s> {
    pub(super) fn new(
        task: &'s Task<'s>,
        memory: &'s Memory<'s>,
        used: &Pressure<'_>,
        slack: &MinTree<'_>,
        scratch: &mut Scratch<'s>,
    ) -> Result<Self, OutOfScratch> {
        let sequence = task.sequence;
        let ops = sequence.len();
        // An op without a time still counts.
        let tight = |at: usize| match slack.at(at) {
            ..0 => {
                let op = at.checked_rem(ops).unwrap_or(0);
                let time_ns = sequence.time_ns(LaunchId(op as u32));
                (time_ns.max(1) as f64 * f64::from(used.memory[at])).max(1.0) as u64
            }
            0.. => 0,
        };
        let relief = sums((0..positions::count(memory, ops)).map(tight), scratch)?;
        let up = sums(used.up.iter().copied().map(u64::from), scratch)?;
        let down = sums(used.down.iter().copied().map(u64::from), scratch)?;
        Ok(Self { task, memory, relief, up, down })
    }

    /// The best density at which a gap can move more objects, after the `more.start` that move
    /// already: all of `more`, or only a few. The last object of a tensor may be half empty, and
    /// then it is best to move it on its own. Also returns the number of objects to move.
    pub(super) fn best_part(
        &self,
        gaps: &Gaps<'_>,
        slot: usize,
        span: Span,
        relief: u64,
        more: Range<u64>,
    ) -> (f64, u64) {
        let Self { task, memory, .. } = *self;
        let objects = more.end.saturating_sub(more.start);
        let density = |objects| {
            let first = more.start..more.start.saturating_add(objects);
            self.density(gaps, slot, span, relief, first)
        };
        let tensor = task.sequence.operands()[slot];
        let pool_objects = memory.pool_objects(memory.pool(task, tensor));
        let few = (pool_objects / LEAST).clamp(1, objects.max(1));
        let all = (density(objects), objects);
        if few == objects {
            return all;
        }
        let part = (density(few), few);
        if part.0 > all.0 { part } else { all }
    }

    /// The relief of moving these objects, per cost. The first object is the object that leaves
    /// first.
    pub(super) fn density(
        &self,
        gaps: &Gaps<'_>,
        slot: usize,
        span: Span,
        relief: u64,
        objects: Range<u64>,
    ) -> f64 {
        let count = objects.end.saturating_sub(objects.start) as f64;
        let cost_ns = self.cost_ns(gaps, slot, span, objects);
        relief as f64 * count / cost_ns.max(1) as f64
    }

    /// The link time of moving these objects, times the pressure on the uplink at the end of the
    /// gap and on the downlink at its start. The first object is the object that leaves first.
    pub(super) fn cost_ns(
        &self,
        gaps: &Gaps<'_>,
        slot: usize,
        span: Span,
        objects: Range<u64>,
    ) -> u64 {
        let Self { task, up, down, .. } = *self;
        let [up_ns, down_ns] = self.moves_ns(gaps, slot, objects);
        let ops = task.sequence.len();
        let near = (ops / NEAR).saturating_add(1);
        let at_end = mean(up, span.to, span.to.saturating_add(1).min(ops));
        let up = at_end.max(mean(up, span.to.saturating_sub(near), span.to.min(ops)));
        let last = ops.saturating_sub(1);
        let down = mean(down, span.from.min(last), span.from.saturating_add(near).min(ops));
        let (up, down) = (up.saturating_add(IDLE), down.saturating_add(IDLE));
        up_ns.saturating_mul(up).saturating_add(down_ns.saturating_mul(down))
    }

    /// The time of uploading these objects, and of downloading the objects that the host does not
    /// hold.
    pub(super) fn moves_ns(
        &self,
        gaps: &Gaps<'_>,
        slot: usize,
        Range { start: from, end: to }: Range<u64>,
    ) -> [u64; 2] {
        let Self { task, memory, .. } = *self;
        let tensor = task.sequence.operands()[slot];
        let all = memory.objects(tensor);
        // Objects leave from the end.
        let time_ns = |direction, from: u64, to: u64| match memory.bytes(
            task,
            tensor,
            all.saturating_sub(to),
            all.saturating_sub(from),
        ) {
            0 => 0,
            bytes => task.machine.transfer_ns(direction, bytes).unwrap_or(0),
        };
        let on_host = gaps.on_host(slot, all, from).clamp(from, to);
        [time_ns(Direction::HostToDevice, from, to), time_ns(Direction::DeviceToHost, on_host, to)]
    }
}

/// The prefix sums of values: the sum of the first `n` values at position `n`.
fn sums<'s>(
    values: impl ExactSizeIterator<Item = u64>,
    scratch: &mut Scratch<'s>,
) -> Result<&'s [u64], OutOfScratch> {
    let sums = scratch.take(values.len().saturating_add(1), 0u64)?;
    let mut sum = 0u64;
    for (slot, value) in sums.iter_mut().skip(1).zip(values) {
        sum = sum.saturating_add(value);
        *slot = sum;
    }
    Ok(sums)
}

/// The sum over ranges, from prefix sums.
pub(super) fn sum(sums: &[u64], ranges: Ranges) -> u64 {
    ranges.iter().map(|&(from, to)| sums[to].saturating_sub(sums[from])).sum()
}

/// The mean over a range, from prefix sums; the highest pressure if the range is empty.
fn mean(sums: &[u64], from: usize, to: usize) -> u64 {
    let len = to.saturating_sub(from) as u64;
    sums[to.max(from)].saturating_sub(sums[from]).checked_div(len).unwrap_or(u64::from(FULL))
}
