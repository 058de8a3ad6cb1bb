//! How much of each tensor moves in each gap, so that every op fits.
//!
//! A covering problem: at each op, what is away must make up for what exceeds the pool.
//! Gaps are taken by density (weight of the ops that they relieve, per time of transfer)
//! until no op exceeds the pool, the last one only in part; then what later gaps have made
//! needless is given back, the least dense first. Each pool has ops of its own, one pool after the
//! other. The weights start as the times of the ops
//! and are lowered where memory turned out to be left over, so that from one choice to the
//! next they approach the prices of memory in the linear program (multiplicative weights:
//! Plotkin, Shmoys and Tardos, "Fast approximation algorithms for fractional packing and
//! covering problems", 1995).

use super::gaps::{Gaps, Span};
use super::heap::Heap;
use super::host_memory::HostMemory;
use super::list::Stuck;
use super::load::Load;
use super::memory::Memory;
use super::pressure::{FULL, IDLE, Pressure, Pressures};
use super::request::{POOLS, Task};
use super::tree::MinTree;
use crate::machine::Direction;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::LaunchId;
use core::ops::Range;

/// How gaps are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choosing {
    /// The share of each pool that is kept free for transfers under way.
    pub(super) spare_permille: u64,
    pub(super) weight: Weight,
    /// What may be taken of the host's memory.
    pub(super) host_bytes: u64,
}

/// How gaps are weighed against each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// Weight of the ops relieved, per time of transfer.
    Density,
    /// The same; where a link carries much already, its time counts for more.
    Spread,
    /// The longest first: what is used again last leaves first.
    Length,
}

impl Weight {
    /// How gaps are weighed once pressures are known.
    pub(super) const fn with_pressures(self) -> Self {
        match self {
            Self::Density | Self::Length => Self::Density,
            Self::Spread => Self::Spread,
        }
    }
}

/// Left over memory, as a fraction of the pool, that halves the weight of an op. A balance: weights that
/// fall faster swing from list to list, slower ones take more lists to settle.
const HALVES: u64 = 50;

/// The least to move on its own, as a fraction of the pool: an object, unless it is tiny.
const LEAST: u64 = 1 << 17;

/// The part of an iteration, as a fraction, over which the pressure at a gap's ends is taken. A balance: a
/// shorter one follows each change, a longer one allows for transfers that are early or late.
const NEAR: usize = 32;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Gaps::working_words(limits),
        Heap::scratch_words(limits.operands),
        words::<u64>(limits.ops.saturating_mul(POOLS).saturating_add(1)),
        words::<u64>(limits.ops.saturating_add(1)).saturating_mul(3),
        Load::scratch_words(limits),
        HostMemory::scratch_words(limits),
    ])
}

/// Chooses what moves so that every op fits, with a share of each pool left free where the op
/// itself allows that, by the pressures in use; notes how much memory is left over.
/// O(gaps × log) for each time a gap is weighed.
pub(super) fn choose(
    task: &Task<'_>,
    memory: &Memory<'_>,
    gaps: &mut Gaps<'_>,
    Choosing { spare_permille, weight, host_bytes }: Choosing,
    pressures: &mut Pressures<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), Stuck> {
    let sequence = task.sequence;
    let ops = sequence.len();
    let mut scratch = scratch.reborrow();
    gaps.clear();
    let slack = gaps.slack(task, memory, spare_permille, &mut scratch)?;
    let used = &pressures.used;
    let positions = memory.pools() * ops;
    let scale = Scale::new(task, memory, weight, used, &slack, &mut scratch)?;
    let heap = Heap::new(gaps.len(), &mut scratch)?;
    let load = match weight {
        Weight::Spread => Some(Load::new(sequence, 100, &mut scratch)?),
        Weight::Density | Weight::Length => None,
    };
    let host = HostMemory::within(host_bytes, task, memory, &mut scratch)?;
    let mut choice = Choice { scale, gaps, slack, heap, load, host };
    choice.cover()?;
    choice.give_back();
    for at in 0..positions {
        let halves = (memory.pool_objects(at / ops) / HALVES).max(1);
        let left = choice.slack.min(at, at + 1).max(0);
        pressures.seen.memory[at] = used.memory[at] / (1.0 + left as f32 / halves as f32);
    }
    Ok(())
}

/// What gaps are weighed with.
#[derive(Clone, Copy)]
pub(super) struct Scale<'s> {
    pub(super) task: &'s Task<'s>,
    pub(super) memory: &'s Memory<'s>,
    weight: Weight,
    /// Weight of the ops so far that exceed their pool if nothing moves.
    pub(super) relief: &'s [u64],
    /// Time of all ops so far.
    length_ns: &'s [u64],
    /// Pressure on each link, summed over the ops so far.
    up: &'s [u64],
    down: &'s [u64],
}

impl<'s> Scale<'s> {
    pub(super) fn new(
        task: &'s Task<'s>,
        memory: &'s Memory<'s>,
        weight: Weight,
        used: &Pressure<'_>,
        slack: &MinTree<'_>,
        scratch: &mut Scratch<'s>,
    ) -> Result<Self, OutOfScratch> {
        let sequence = task.sequence;
        let ops = sequence.len();
        // An op without a time still counts.
        let tight = |at: usize| match slack.min(at, at + 1) {
            ..0 => {
                let time_ns = sequence.time_ns(LaunchId((at % ops) as u32));
                (time_ns.max(1) as f64 * f64::from(used.memory[at])).max(1.0) as u64
            }
            0.. => 0,
        };
        let relief = sums((0..memory.pools() * ops).map(tight), scratch)?;
        let length_ns = sums(sequence.launches().map(|op| sequence.time_ns(op)), scratch)?;
        let up = sums(used.up.iter().copied().map(u64::from), scratch)?;
        let down = sums(used.down.iter().copied().map(u64::from), scratch)?;
        Ok(Self { task, memory, weight, relief, length_ns, up, down })
    }

    /// The least memory left over in ranges.
    pub(super) fn least_slack(&self, slack: &MinTree<'_>, ranges: [(usize, usize); 2]) -> i64 {
        let [one, other] = ranges.map(|(from, to)| slack.min(from, to));
        one.min(other)
    }

    /// How dense a gap is where the objects `more` move, after those that do already, and how many of
    /// them should: the last object may be half empty, and so the best to move on its own.
    pub(super) fn denser(
        &self,
        gaps: &Gaps<'_>,
        slot: usize,
        span: Span,
        relief: u64,
        more: Range<u64>,
    ) -> (f64, u64) {
        let Self { task, memory, .. } = *self;
        let objects = more.end - more.start;
        let density =
            |objects| self.density(gaps, slot, span, relief, more.start..more.start + objects);
        let tensor = task.sequence.operands()[slot];
        let pool_objects = memory.pool_objects(memory.pool(task, tensor));
        let few = (pool_objects / LEAST).clamp(1, objects.max(1));
        match (density(objects), density(few)) {
            (all, one) if one > all => (one, few),
            (all, _) => (all, objects),
        }
    }
}

/// A choice in the making.
struct Choice<'c, 'g> {
    scale: Scale<'c>,
    gaps: &'c mut Gaps<'g>,
    /// Objects left at each op.
    slack: MinTree<'c>,
    heap: Heap<'c>,
    /// What the chosen gaps load the links with, if that counts.
    load: Option<Load<'c>>,
    /// What they leave of the host's memory, if that is short.
    host: Option<HostMemory<'c>>,
}

impl Choice<'_, '_> {
    /// Takes gaps, the densest first, until every op fits.
    fn cover(&mut self) -> Result<(), Stuck> {
        for slot in 0..self.gaps.len() {
            self.queue(slot);
        }
        while self.slack.least() < 0 {
            let Some((_, slot)) = self.heap.pop() else { return Err(Stuck::NoMemory) };
            let slot = slot as usize;
            let Some((key, objects)) = self.weigh(slot) else { continue };
            if self.heap.top().is_some_and(|(top, _)| top < key) {
                self.heap.push(key, slot as u32);
                continue;
            }
            self.set_moved(slot, self.gaps.moved(slot) + objects);
            self.queue(slot);
        }
        Ok(())
    }

    fn queue(&mut self, slot: usize) {
        if let Some((key, _)) = self.weigh(slot) {
            self.heap.push(key, slot as u32);
        }
    }

    /// Gives back what need not move, the least dense first.
    fn give_back(&mut self) {
        while self.heap.pop().is_some() {}
        for slot in 0..self.gaps.len() {
            self.queue_needless(slot);
        }
        while let Some((_, slot)) = self.heap.pop() {
            let slot = slot as usize;
            let Some((_, objects)) = self.needless(slot) else { continue };
            self.set_moved(slot, self.gaps.moved(slot) - objects);
            self.queue_needless(slot);
        }
    }

    fn queue_needless(&mut self, slot: usize) {
        if let Some((key, _)) = self.needless(slot) {
            self.heap.push(key, slot as u32);
        }
    }

    fn set_moved(&mut self, slot: usize, objects: u64) {
        let change = objects as i64 - self.gaps.moved(slot) as i64;
        let Scale { task, memory, .. } = self.scale;
        let span = self.gaps.span(task.sequence, slot);
        if let (Some(load), Some(span)) = (&mut self.load, span) {
            load.set_moved(&self.scale, self.gaps, (slot, span), objects);
        }
        self.gaps.set_moved(slot, objects);
        if let Some(host) = &mut self.host {
            host.update(self.gaps, slot);
        }
        if let Some(ranges) = self.gaps.ranges(task, memory, slot) {
            for (from, to) in ranges {
                self.slack.add(from, to, change);
            }
        }
    }

    /// A gap's key (the least is taken first) and how many objects it should still move;
    /// none where it is of no use.
    fn weigh(&self, slot: usize) -> Option<(u64, u64)> {
        let Scale { task, memory, .. } = self.scale;
        let sequence = task.sequence;
        let span = self.gaps.span(sequence, slot)?;
        let ranges = self.gaps.ranges(task, memory, slot)?;
        let moved = self.gaps.moved(slot);
        let tensor = sequence.operands()[slot];
        let most = self.host.as_ref().map(|host| host.most_objects(self.gaps, slot));
        let left = most.unwrap_or(memory.objects(tensor)) - moved;
        let objects = left.min(u64::try_from(-self.least_slack(ranges)).ok()?);
        let relief = sum(self.scale.relief, ranges);
        if objects == 0 || relief == 0 {
            return None;
        }
        let (gain, objects) = match self.scale.weight {
            Weight::Density | Weight::Spread => {
                let objects = moved..moved + objects;
                let (density, objects) = self.scale.denser(self.gaps, slot, span, relief, objects);
                (density / self.loaded(slot, span), objects)
            }
            Weight::Length => {
                let ranges = span.ranges(sequence.len());
                (sum(self.scale.length_ns, ranges) as f64, objects)
            }
        };
        // Positive numbers compare as their bits do.
        Some((!gain.to_bits(), objects))
    }

    /// How many objects of a gap need not move, and its key (the least is given back first).
    fn needless(&self, slot: usize) -> Option<(u64, u64)> {
        let moved = self.gaps.moved(slot);
        if moved == 0 {
            return None;
        }
        let Scale { task, memory, .. } = self.scale;
        let span = self.gaps.span(task.sequence, slot)?;
        let ranges = self.gaps.ranges(task, memory, slot)?;
        let objects = match moved.min(u64::try_from(self.least_slack(ranges)).ok()?) {
            0 => return None,
            // The first to move is half empty, and goes on its own.
            objects if objects == moved && moved > 1 => objects - 1,
            objects => objects,
        };
        let relief = sum(self.scale.relief, ranges);
        let density = self.scale.density(self.gaps, slot, span, relief, moved - objects..moved);
        Some(((density / self.loaded(slot, span)).to_bits(), objects))
    }

    /// How many times as much the transfers of a gap cost as they would on idle links.
    fn loaded(&self, slot: usize, span: Span) -> f64 {
        self.load.as_ref().map_or(1.0, |load| load.factor(self.gaps, slot, span))
    }

    fn least_slack(&self, ranges: [(usize, usize); 2]) -> i64 {
        self.scale.least_slack(&self.slack, ranges)
    }
}

impl Scale<'_> {
    /// Relief per cost, when these objects move, counted from the one that leaves first.
    fn density(
        &self,
        gaps: &Gaps<'_>,
        slot: usize,
        span: Span,
        relief: u64,
        objects: Range<u64>,
    ) -> f64 {
        let count = (objects.end - objects.start) as f64;
        let cost_ns = self.cost_ns(gaps, slot, span, objects);
        relief as f64 * count / cost_ns.max(1) as f64
    }

    /// Link time of moving these objects, counted from the one that leaves first, weighed by the pressure on the
    /// link where the gap ends (uploads) and begins (downloads).
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
        let near = ops / NEAR + 1;
        let at_end = mean(up, span.to, (span.to + 1).min(ops));
        let up = at_end.max(mean(up, span.to.saturating_sub(near), span.to.min(ops)));
        let down = mean(down, span.from.min(ops - 1), (span.from + near).min(ops));
        up_ns.saturating_mul(up + IDLE).saturating_add(down_ns.saturating_mul(down + IDLE))
    }

    /// Link time of moving these objects up, and down unless the host holds them already.
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
            all - to,
            all - from,
        ) {
            0 => 0,
            bytes => task.machine.transfer_ns(direction, bytes).unwrap_or(0),
        };
        let on_host = gaps.on_host(slot, all, from).clamp(from, to);
        [time_ns(Direction::HostToDevice, from, to), time_ns(Direction::DeviceToHost, on_host, to)]
    }
}

/// Sums up to each op.
fn sums<'s>(
    values: impl ExactSizeIterator<Item = u64>,
    scratch: &mut Scratch<'s>,
) -> Result<&'s [u64], OutOfScratch> {
    let sums = scratch.take(values.len() + 1, 0u64)?;
    for (at, value) in values.enumerate() {
        sums[at + 1] = sums[at].saturating_add(value);
    }
    Ok(sums)
}

/// What lies in ranges, from sums.
pub(super) fn sum(sums: &[u64], ranges: [(usize, usize); 2]) -> u64 {
    ranges.iter().map(|&(from, to)| sums[to] - sums[from]).sum()
}

/// The mean over a range, from sums; over an empty one, the highest pressure.
fn mean(sums: &[u64], from: usize, to: usize) -> u64 {
    let len = to.saturating_sub(from) as u64;
    (sums[to.max(from)] - sums[from]).checked_div(len).unwrap_or(u64::from(FULL))
}
