//! Which values leave between two uses by a copy and which are made again, so that every op fits:
//! the [choice](crate::planner::choice) of gaps, with one more way to close each.
//!
//! To make a value again takes the time of its [closure](Values::closure) on the compute
//! stream, and what the closure reads must be there by then: a gap of that is *cut* where the
//! repeat needs it.

use super::values::{Closure, NONE, Values, repeat_reads};
use crate::graph::Kind;
use crate::planner::choice::{Scale, sum};
use crate::planner::gaps::{Gaps, Span};
use crate::planner::heap::Heap;
use crate::planner::host_memory::HostMemory;
use crate::planner::load::Load;
use crate::planner::tree::MinTree;
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::sequence::LaunchId;
use heapless::Vec;

/// Gaps of a value that are looked through for the one that spans a launch.
const LOOKED_AT: usize = 64;

/// Gaps that are cut for one closure at most: the others are found missing when they are.
const MOST_CUTS: usize = 256;

type Cuts = Vec<u32, MOST_CUTS>;

/// What is dropped in the gap after each operand, and where each gap ends.
#[derive(Debug)]
pub(in crate::planner) struct Dropped<'a> {
    is_dropped: &'a mut [u8],
    /// The launch before which the value must be there again, where a repeat needs it before
    /// the launch that reads it next.
    cut: &'a mut [u32],
}

impl<'a> Dropped<'a> {
    pub(in crate::planner) const fn scratch_words(limits: &Limits) -> usize {
        words::<u8>(limits.operands).saturating_add(words::<u32>(limits.operands))
    }

    pub(in crate::planner) fn new(
        slots: usize,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        Ok(Self { is_dropped: scratch.take(slots, 0)?, cut: scratch.take(slots, NONE)? })
    }

    /// Whether the value of an operand is dropped after its launch.
    pub(in crate::planner) fn is_dropped(&self, slot: usize) -> bool {
        self.is_dropped[slot] == 1
    }

    /// Drops the value of an operand after its launch.
    pub(in crate::planner) fn drop_after(&mut self, slot: usize) {
        self.is_dropped[slot] = 1;
    }

    fn clear(&mut self) {
        self.is_dropped.fill(0);
        self.cut.fill(NONE);
    }
}

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    Heap::scratch_words(limits.operands.saturating_mul(2))
}

/// A choice in the making.
pub(super) struct Cover<'c, 'g, 'v> {
    pub(super) scale: Scale<'c>,
    pub(super) gaps: &'c mut Gaps<'g>,
    pub(super) values: &'c mut Values<'v>,
    pub(super) dropped: &'c mut Dropped<'v>,
    /// Objects left at each op.
    pub(super) slack: MinTree<'c>,
    /// Moves by slot, and drops after all of them.
    pub(super) heap: Heap<'c>,
    /// What the moves load the links with.
    pub(super) load: Load<'c>,
    /// What a nanosecond of compute costs, where one of a link that is fully pressed costs 255.
    pub(super) compute_price: u64,
    /// What moves leave of the host's memory, if that is short.
    pub(super) host: Option<HostMemory<'c>>,
}

/// What a gap should do next: a key (the least is taken first), and how many objects leave.
type Weighed = (u64, u64);

impl Cover<'_, '_, '_> {
    /// Takes gaps, the densest first, until every op fits or none is left: what is missing then
    /// may move after it was made again.
    pub(super) fn cover(&mut self) {
        self.dropped.clear();
        self.gaps.clear();
        let slots = self.gaps.len();
        for id in 0..2 * slots {
            self.queue(id);
        }
        while self.slack.least() < 0 {
            let Some((_, id)) = self.heap.pop() else { return };
            let id = id as usize;
            let Some((key, objects)) = self.weigh(id) else { continue };
            if self.heap.top().is_some_and(|(top, _)| top < key) {
                self.heap.push(key, id as u32);
                continue;
            }
            match id.checked_sub(slots) {
                None => {
                    self.set_moved(id, self.gaps.moved(id) + objects);
                    self.queue(id);
                }
                Some(slot) => self.drop_value(slot),
            }
        }
    }

    /// Keeps what need not be dropped, the least dense first.
    pub(super) fn give_back(&mut self) {
        while self.heap.pop().is_some() {}
        for slot in 0..self.gaps.len() {
            self.queue_needless(slot);
        }
        while let Some((_, slot)) = self.heap.pop() {
            let slot = slot as usize;
            if self.needless(slot).is_some() {
                let objects = self.objects(slot);
                self.dropped.is_dropped[slot] = 0;
                self.add(slot, -(objects as i64));
            }
        }
    }

    fn queue(&mut self, id: usize) {
        if let Some((key, _)) = self.weigh(id) {
            self.heap.push(key, id as u32);
        }
    }

    fn queue_needless(&mut self, slot: usize) {
        if let Some(key) = self.needless(slot) {
            self.heap.push(key, slot as u32);
        }
    }

    fn objects(&self, slot: usize) -> u64 {
        let Scale { task, memory, .. } = self.scale;
        memory.objects(task.sequence.operands()[slot])
    }

    /// The span of a gap up to where it is cut.
    fn span(&self, slot: usize) -> Option<Span> {
        let span = self.gaps.span(self.scale.task.sequence, slot)?;
        match self.dropped.cut[slot] {
            NONE => Some(span),
            cut => Some(Span { to: cut as usize, ..span }),
        }
    }

    /// The span of a gap as ranges of the ops of its tensor's pool.
    fn ranges(&self, slot: usize) -> Option<[(usize, usize); 2]> {
        let Scale { task, memory, .. } = self.scale;
        let ops = task.sequence.len();
        let first = memory.pool(task, task.sequence.operands()[slot]) * ops;
        let ranges = self.span(slot)?.ranges(ops);
        Some(ranges.map(|(from, to)| (first + from, first + to)))
    }

    fn add(&mut self, slot: usize, objects: i64) {
        if let Some(ranges) = self.ranges(slot) {
            for (from, to) in ranges {
                self.slack.add(from, to, objects);
            }
        }
    }

    fn set_moved(&mut self, slot: usize, objects: u64) {
        let change = objects as i64 - self.gaps.moved(slot) as i64;
        if let Some(span) = self.span(slot) {
            self.load.set_moved(&self.scale, self.gaps, (slot, span), objects);
        }
        self.gaps.set_moved(slot, objects);
        if let Some(host) = &mut self.host {
            host.update(self.gaps, slot);
        }
        self.add(slot, change);
    }

    /// What a move (or, after those of all slots, a drop) should do; none where it is of no use.
    fn weigh(&mut self, id: usize) -> Option<Weighed> {
        let slots = self.gaps.len();
        let slot = id.checked_sub(slots).unwrap_or(id);
        let span = self.span(slot)?;
        let ranges = self.ranges(slot)?;
        if self.dropped.is_dropped(slot) {
            return None;
        }
        let (all, moved) = (self.objects(slot), self.gaps.moved(slot));
        let missing = u64::try_from(-self.scale.least_slack(&self.slack, ranges)).ok()?;
        let objects = (all - moved).min(missing);
        let relief = sum(self.scale.relief, ranges);
        if objects == 0 || relief == 0 {
            return None;
        }
        if id < slots {
            let most = self.host.as_ref().map_or(all, |host| host.most_objects(self.gaps, slot));
            let objects = objects.min(most - moved);
            if objects == 0 {
                return None;
            }
            let (gain, objects) =
                self.scale.denser(self.gaps, slot, span, relief, moved..moved + objects);
            let factor = self.load.factor(self.gaps, slot, span);
            return Some((!(gain / factor).to_bits(), objects));
        }
        let gain = relief as f64 * objects as f64;
        let closure = self.closure(slot, span, gain)?;
        let cost_ns = closure.time_ns.saturating_mul(self.compute_price);
        let back_ns = self.scale.cost_ns(self.gaps, slot, span, 0..moved);
        let cost_ns = cost_ns.saturating_sub(back_ns).max(1);
        let gain = gain - self.lost(&closure, LaunchId(span.to as u32));
        (gain > 0.0).then(|| (!(gain / cost_ns as f64).to_bits(), all))
    }

    /// What it takes to make the value of a gap again at its end, where that gains `gain` of relief;
    /// none where that cannot be.
    fn closure(&mut self, slot: usize, span: Span, gain: f64) -> Option<Closure> {
        let Scale { task, memory, .. } = self.scale;
        let sequence = task.sequence;
        let tensor = sequence.operands()[slot];
        if span.wraps || sequence.tensor(tensor).kind != Kind::Temporary {
            return None;
        }
        let value = self.gaps.version(slot);
        if value == NONE {
            return None;
        }
        let at = LaunchId(span.to as u32);
        let (scale, gaps) = (self.scale, &*self.gaps);
        // To hold an input costs relief, to make it again costs time: what leaves more gain for
        // the time of the closure.
        let is_better_held = |values: &Values<'_>, input: u32, so_far_ns: u64| {
            let input_ns = sequence.time_ns(gaps.launch(input as usize)) as f64;
            let share = input_ns / (so_far_ns as f64 + input_ns).max(1.0);
            held_relief(&scale, values, input, at) < gain * share
        };
        self.values.closure((sequence, gaps, memory), value, at, is_better_held)
    }

    /// The relief that is lost where a value is made again before a launch: what that needs comes
    /// back earlier, or is held.
    fn lost(&self, closure: &Closure, at: LaunchId) -> f64 {
        let Scale { task, memory, .. } = self.scale;
        let held = |&value: &u32| held_relief(&self.scale, self.values, value, at);
        let mut lost: f64 = closure.held.iter().map(held).sum();
        for gap in self.inputs(closure, at) {
            if let Some(span) = self.span(gap)
                && !span.wraps
                && span.to > at.index()
            {
                let tensor = task.sequence.operands()[gap];
                let first = memory.pool(task, tensor) * task.sequence.len();
                let range = (first + at.index(), first + span.to);
                lost += self.away(gap) as f64 * sum(self.scale.relief, [range, (0, 0)]) as f64;
            }
        }
        lost
    }

    /// Objects that leave in a gap, one way or the other.
    fn away(&self, slot: usize) -> u64 {
        if self.dropped.is_dropped(slot) { self.objects(slot) } else { self.gaps.moved(slot) }
    }

    /// The gaps over a launch of what a closure reads there.
    fn inputs<'i>(
        &'i self,
        closure: &'i Closure,
        at: LaunchId,
    ) -> impl Iterator<Item = usize> + 'i {
        let Scale { task, memory, .. } = self.scale;
        let sequence = task.sequence;
        let reads = closure.makers.iter().flat_map(move |&maker| repeat_reads(sequence, maker));
        let moves = move |&read: &usize| {
            let tensor = sequence.operands()[read];
            sequence.tensor(tensor).kind == Kind::Temporary && !memory.in_arena(tensor)
        };
        reads.filter(moves).filter_map(move |read| self.gap_over(self.gaps.version(read), at))
    }

    /// Drops the value of a gap, which is made again at its end, and cuts the gaps of what that
    /// needs.
    fn drop_value(&mut self, slot: usize) {
        self.set_moved(slot, 0);
        let relief = self.ranges(slot).map_or(0, |ranges| sum(self.scale.relief, ranges));
        let gain = relief as f64 * self.objects(slot) as f64;
        self.dropped.is_dropped[slot] = 1;
        self.add(slot, self.objects(slot) as i64);
        let mut waiting: Cuts = Vec::new();
        let _ = waiting.push(slot as u32);
        while let Some(slot) = waiting.pop() {
            self.cut_inputs(slot as usize, gain, &mut waiting);
        }
    }

    /// Cuts the gaps of what it takes to make the value of a gap again, at the end of that gap;
    /// those of them that are dropped themselves wait for the same.
    fn cut_inputs(&mut self, slot: usize, gain: f64, waiting: &mut Cuts) {
        let Some(span) = self.span(slot) else { return };
        let at = LaunchId(span.to as u32);
        let Some(closure) = self.closure(slot, span, gain) else { return };
        for &value in &closure.held {
            self.hold(value, at);
        }
        let inputs = self.inputs(&closure, at).map(|gap| gap as u32);
        let gaps: Cuts = inputs.take(MOST_CUTS).collect();
        for gap in gaps {
            if self.cut(gap as usize, at) && self.dropped.is_dropped(gap as usize) {
                // Where it is full, the list is longer than the choice knows.
                let _ = waiting.push(gap);
            }
        }
    }

    /// Keeps a value that nothing reads any more until a launch.
    fn hold(&mut self, value: u32, at: LaunchId) {
        let objects = self.objects(value as usize);
        let (from, to) = held_range(&self.scale, self.values, value, at);
        self.slack.add(from, to, -(objects as i64));
        self.values.hold(value, at);
    }

    /// The gap of a value that spans a launch.
    fn gap_over(&self, value: u32, at: LaunchId) -> Option<usize> {
        let mut slot = value as usize;
        for _gap in 0..LOOKED_AT {
            let (next, later) = self.gaps.next_use(slot);
            let next_slot = self.gaps.next_slot(slot);
            if later || self.gaps.version(next_slot) != value && next >= at {
                return (!later && next >= at && self.gaps.launch(slot) < at).then_some(slot);
            }
            if next >= at {
                return (self.gaps.launch(slot) < at).then_some(slot);
            }
            slot = next_slot;
        }
        None
    }

    /// Ends a gap before a launch; false where it ends before that anyway.
    fn cut(&mut self, slot: usize, at: LaunchId) -> bool {
        let Some(span) = self.span(slot) else { return false };
        if span.wraps || span.to <= at.index() || span.from > at.index() {
            return false;
        }
        let away = self.away(slot);
        self.add(slot, -(away as i64));
        self.dropped.cut[slot] = at.0;
        self.add(slot, away as i64);
        true
    }

    /// The key of a drop that is not needed (the least is given back first).
    fn needless(&mut self, slot: usize) -> Option<u64> {
        if !self.dropped.is_dropped(slot) {
            return None;
        }
        let ranges = self.ranges(slot)?;
        let objects = self.objects(slot);
        if self.scale.least_slack(&self.slack, ranges) < objects as i64 {
            return None;
        }
        let span = self.span(slot)?;
        let gain = sum(self.scale.relief, ranges) as f64 * objects as f64;
        let cost_ns = self.closure(slot, span, gain)?.time_ns.max(1);
        Some((gain / cost_ns as f64).to_bits())
    }
}

/// The ops of its pool over which a value is held longer, until a launch.
fn held_range(scale: &Scale<'_>, values: &Values<'_>, value: u32, at: LaunchId) -> (usize, usize) {
    let Scale { task, memory, .. } = *scale;
    let first = memory.pool(task, task.sequence.operands()[value as usize]) * task.sequence.len();
    let from = values.last_read(value).map_or(0, |last| last.index() + 1).min(at.index());
    (first + from, first + at.index())
}

/// The relief that is lost where a value is held until a launch.
fn held_relief(scale: &Scale<'_>, values: &Values<'_>, value: u32, at: LaunchId) -> f64 {
    let tensor = scale.task.sequence.operands()[value as usize];
    let range = held_range(scale, values, value, at);
    scale.memory.objects(tensor) as f64 * sum(scale.relief, [range, (0, 0)]) as f64
}
