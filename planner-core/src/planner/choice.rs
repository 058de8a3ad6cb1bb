//! Chooses the number of objects that move in each gap so that every op fits.
//!
//! This is a covering problem: at each op, the objects that are away must make up for the objects
//! that exceed the pool. Gaps are taken by density (the weight of the ops that they relieve, per
//! time of transfer) until no op exceeds the pool; the last gap only in part. Then the moves that
//! later gaps have made needless are given back, the least dense first. Each pool has its own
//! positions of ops, one pool after the other.
//!
//! The weights start as the times of the ops. Where memory is left over, they are lowered, so that
//! from one choice to the next they approach the prices of memory in the linear program
//! (multiplicative weights: Plotkin, Shmoys and Tardos, "Fast approximation algorithms for
//! fractional packing and covering problems", 1995).

#![expect(
    clippy::indexing_slicing,
    reason = "the pressures have an entry for each pool and op, and the sums one more"
)]

use super::densities::{Densities, sum};
use super::gaps::Gaps;
use super::heap::Heap;
use super::host_memory::HostMemory;
use super::list::Stuck;
use super::load::Load;
use super::memory::Memory;
use super::moves::Moves;
use super::positions;
use super::pressure::Pressures;
use super::request::{POOLS, Task};
use crate::scratch::{Limits, Scratch, total, words};

/// How gaps are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choosing {
    /// The share of each pool that is kept free for transfers in flight.
    pub(super) spare_permille: u64,
    pub(super) weight: Weight,
    /// The most host memory that moved values may take.
    pub(super) host_bytes: u64,
}

/// The order in which gaps are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// The densest first: by the weight of the ops that a gap relieves, per time of transfer.
    Density,
    /// The same, but the time of a link that already carries much counts for more.
    Spread,
}

/// The memory left over, as a fraction of the pool, that halves the weight of an op. A balance:
/// weights that fall faster swing from list to list; weights that fall more slowly take more lists
/// to converge.
const HALVES: u64 = 50;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Gaps::working_words(limits),
        Heap::scratch_words(limits.operands),
        words::<u64>(limits.ops.saturating_mul(POOLS).saturating_add(1)),
        words::<u64>(limits.ops.saturating_add(1)).saturating_mul(2),
        Load::scratch_words(limits),
        HostMemory::scratch_words(limits),
    ])
}

/// Chooses the objects that move by the pressures in use, and records how much memory is left over.
/// A share of each pool stays free at each op that leaves room for it. O(gaps × log) for each time
/// that a gap is weighed.
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
    let densities = Densities::new(task, memory, used, &slack, &mut scratch)?;
    let heap = Heap::new(gaps.len(), &mut scratch)?;
    let load = match weight {
        Weight::Spread => Some(Load::new(sequence, 100, &mut scratch)?),
        Weight::Density => None,
    };
    let host = HostMemory::within(host_bytes, task, memory, &mut scratch)?;
    let mut choice = Choice { moves: Moves { densities, gaps, slack, load, host }, heap };
    choice.cover()?;
    choice.give_back();
    for pool in 0..memory.pools() {
        let halves = (memory.pool_objects(pool) / HALVES).max(1);
        for op in 0..ops {
            let at = positions::of(pool, op, ops);
            let left = choice.moves.slack.at(at).max(0);
            pressures.seen.memory[at] = used.memory[at] / (1.0 + left as f32 / halves as f32);
        }
    }
    Ok(())
}

/// A choice in progress.
struct Choice<'c, 'g> {
    moves: Moves<'c, 'g>,
    /// The gaps that may be of use, by their slots.
    heap: Heap<'c>,
}

impl Choice<'_, '_> {
    /// Takes gaps, the densest first, until every op fits.
    fn cover(&mut self) -> Result<(), Stuck> {
        for slot in 0..self.moves.gaps.len() {
            self.queue(slot);
        }
        while self.moves.slack.least() < 0 {
            let Some((_, slot)) = self.heap.top() else { return Err(Stuck::NoMemory) };
            let slot = slot as usize;
            let weighed = self.weigh(slot);
            let is_next = |&(key, _): &(u64, u64)| !self.heap.has_other_below(key);
            let key = match weighed.filter(is_next) {
                Some((_, objects)) => {
                    self.set_moved(slot, self.moves.gaps.moved(slot).saturating_add(objects));
                    self.weigh(slot)
                }
                None => weighed,
            };
            self.heap.change_top(key.map(|(key, _)| key));
        }
        Ok(())
    }

    fn queue(&mut self, slot: usize) {
        if let Some((key, _)) = self.weigh(slot) {
            self.heap.push(key, slot as u32);
        }
    }

    /// Gives back the objects that need not move, the least dense first.
    fn give_back(&mut self) {
        self.heap.clear();
        for slot in 0..self.moves.gaps.len() {
            self.queue_needless(slot);
        }
        while let Some((_, slot)) = self.heap.top() {
            let slot = slot as usize;
            let mut needless = self.needless(slot);
            if let Some((_, objects)) = needless {
                self.set_moved(slot, self.moves.gaps.moved(slot).saturating_sub(objects));
                needless = self.needless(slot);
            }
            self.heap.change_top(needless.map(|(key, _)| key));
        }
    }

    fn queue_needless(&mut self, slot: usize) {
        if let Some((key, _)) = self.needless(slot) {
            self.heap.push(key, slot as u32);
        }
    }

    fn set_moved(&mut self, slot: usize, objects: u64) {
        let span = self.moves.span(slot);
        self.moves.set_moved(slot, span, objects);
    }

    /// A gap's key (the least is taken first) and the number of further objects that should move;
    /// `None` if the gap is of no use.
    fn weigh(&self, slot: usize) -> Option<(u64, u64)> {
        self.moves.weigh(slot, self.moves.span(slot)?)
    }

    /// A gap's key (the least is given back first) and the number of its objects that need not
    /// move; `None` if all must move.
    fn needless(&self, slot: usize) -> Option<(u64, u64)> {
        let Moves { densities, gaps, .. } = &self.moves;
        let moved = gaps.moved(slot);
        if moved == 0 {
            return None;
        }
        let span = self.moves.span(slot)?;
        let ranges = self.moves.ranges(slot, span);
        let objects = match moved.min(u64::try_from(self.moves.least_slack(ranges)).ok()?) {
            0 => return None,
            // The first object to leave is half empty, and goes on its own.
            objects if objects == moved && moved > 1 => objects.saturating_sub(1),
            objects => objects,
        };
        let relief = sum(densities.relief, ranges);
        let last = moved.saturating_sub(objects)..moved;
        let density = densities.density(gaps, slot, span, relief, last);
        Some(((density / self.moves.load_factor(slot, span)).to_bits(), objects))
    }
}
