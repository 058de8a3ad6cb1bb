//! Chooses which values leave between two uses by a copy, and which are dropped and computed again,
//! so that every op fits: the [choice](crate::planner::choice) of gaps, with drops as well as
//! moves.
//!
//! To compute a value again takes the time of its [closure](Values::closure) on the compute stream.
//! The inputs of the closure must be on the device by then, so their gaps are *cut* where the
//! repeat needs them.

#![expect(
    clippy::indexing_slicing,
    reason = "slots and values are those of the sequence, and the arrays have an entry for each slot"
)]

use super::values::{Base, Closure, NONE, Values, repeat_reads};
use crate::graph::Kind;
use crate::planner::densities::{Densities, sum};
use crate::planner::gaps::{Gaps, Span};
use crate::planner::heap::Heap;
use crate::planner::moves::Moves;
use crate::planner::positions;
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::sequence::LaunchId;
use heapless::Vec;

/// The most gaps of a value that are searched for the gap that spans a launch.
const MOST_SEARCHED: usize = 64;

/// The most gaps that are cut for one closure. The launches of other inputs are repeated as well.
const MOST_CUTS: usize = 256;

type Cuts = Vec<u32, MOST_CUTS>;

/// The values that are dropped, by the operands after which they are, and the ends of gaps.
#[derive(Debug)]
pub(in crate::planner) struct Dropped<'a> {
    is_dropped: &'a mut [u8],
    /// The launch before which the value must be on the device again, if a repeat needs it before
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

/// A way to free the memory of a value in the gap after an operand.
#[derive(Clone, Copy)]
enum Action {
    /// Objects of it move.
    Move(usize),
    /// All of it is dropped.
    Drop(usize),
}

impl Action {
    /// The id of the action in a heap. Among equal keys, moves come before drops.
    const fn id(self, slots: usize) -> u32 {
        match self {
            Self::Move(slot) => slot as u32,
            Self::Drop(slot) => slots.saturating_add(slot) as u32,
        }
    }

    const fn of_id(id: u32, slots: usize) -> Self {
        match (id as usize).checked_sub(slots) {
            None => Self::Move(id as usize),
            Some(slot) => Self::Drop(slot),
        }
    }

    const fn slot(self) -> usize {
        match self {
            Self::Move(slot) | Self::Drop(slot) => slot,
        }
    }
}

/// A choice in progress.
pub(super) struct Cover<'c, 'g, 'v> {
    pub(super) moves: Moves<'c, 'g>,
    pub(super) values: &'c mut Values<'v>,
    pub(super) dropped: &'c mut Dropped<'v>,
    /// The actions that may be of use.
    pub(super) heap: Heap<'c>,
    /// The price of a nanosecond of compute, if a nanosecond of a link under full pressure costs
    /// 255.
    pub(super) compute_price: u64,
}

/// The key of an action (the least is taken first), and the number of objects that leave.
type Weighed = (u64, u64);

impl Cover<'_, '_, '_> {
    /// Takes actions, the densest first, until every op fits or no action is left. In the latter
    /// case, the values that are computed again may move as well when the list is planned.
    pub(super) fn cover(&mut self) {
        self.dropped.clear();
        self.moves.gaps.clear();
        let slots = self.moves.gaps.len();
        for slot in 0..slots {
            self.queue(Action::Move(slot));
            self.queue(Action::Drop(slot));
        }
        while self.moves.slack.least() < 0 {
            let Some((_, id)) = self.heap.top() else { return };
            let action = Action::of_id(id, slots);
            let weighed = self.weigh(action);
            let is_next = |&(key, _): &Weighed| !self.heap.has_other_below(key);
            let key = match (weighed.filter(is_next), action) {
                (Some((_, objects)), Action::Move(slot)) => {
                    self.set_moved(slot, self.moves.gaps.moved(slot).saturating_add(objects));
                    self.weigh(action)
                }
                (Some(_), Action::Drop(slot)) => {
                    self.drop_value(slot);
                    None
                }
                (None, _) => weighed,
            };
            self.heap.change_top(key.map(|(key, _)| key));
        }
    }

    /// Keeps the values that need not be dropped, the least dense first.
    pub(super) fn give_back(&mut self) {
        self.heap.clear();
        for slot in 0..self.moves.gaps.len() {
            self.queue_needless(slot);
        }
        while let Some((_, slot)) = self.heap.pop() {
            let slot = slot as usize;
            if self.needless(slot).is_some() {
                let objects = self.moves.objects(slot);
                self.dropped.is_dropped[slot] = 0;
                self.add_slack(slot, (objects as i64).saturating_neg());
            }
        }
    }

    fn queue(&mut self, action: Action) {
        if let Some((key, _)) = self.weigh(action) {
            self.heap.push(key, action.id(self.moves.gaps.len()));
        }
    }

    fn queue_needless(&mut self, slot: usize) {
        if let Some(key) = self.needless(slot) {
            self.heap.push(key, slot as u32);
        }
    }

    /// The span of a gap up to its cut.
    fn span(&self, slot: usize) -> Option<Span> {
        let span = self.moves.span(slot)?;
        match self.dropped.cut[slot] {
            NONE => Some(span),
            cut => Some(Span { to: cut as usize, ..span }),
        }
    }

    fn add_slack(&mut self, slot: usize, objects: i64) {
        if let Some(span) = self.span(slot) {
            self.moves.add_slack(self.moves.ranges(slot, span), objects);
        }
    }

    fn set_moved(&mut self, slot: usize, objects: u64) {
        let span = self.span(slot);
        self.moves.set_moved(slot, span, objects);
    }

    /// Weighs an action; `None` if it is of no use.
    fn weigh(&mut self, action: Action) -> Option<Weighed> {
        let span = self.span(action.slot())?;
        if self.dropped.is_dropped(action.slot()) {
            return None;
        }
        match action {
            Action::Move(slot) => self.moves.weigh(slot, span),
            Action::Drop(slot) => self.weigh_drop(slot, span),
        }
    }

    fn weigh_drop(&mut self, slot: usize, span: Span) -> Option<Weighed> {
        let ranges = self.moves.ranges(slot, span);
        let (all, moved) = (self.moves.objects(slot), self.moves.gaps.moved(slot));
        let objects = all.saturating_sub(moved).min(self.moves.missing(ranges)?);
        let relief = sum(self.moves.densities.relief, ranges);
        if objects == 0 || relief == 0 {
            return None;
        }
        let gain = relief as f64 * objects as f64;
        let closure = self.closure(slot, span, gain)?;
        let cost_ns = closure.time_ns.saturating_mul(self.compute_price);
        let saved_ns = self.moves.densities.cost_ns(self.moves.gaps, slot, span, 0..moved);
        let cost_ns = cost_ns.saturating_sub(saved_ns).max(1);
        let gain = gain - self.lost_relief(&closure, LaunchId(span.to as u32));
        (gain > 0.0).then(|| (!(gain / cost_ns as f64).to_bits(), all))
    }

    /// The closure that computes the value of a gap again at its end, if that gains this much
    /// relief; `None` if the value cannot be computed again.
    fn closure(&mut self, slot: usize, span: Span, gain: f64) -> Option<Closure> {
        let Moves { densities, ref gaps, .. } = self.moves;
        let Densities { task, memory, .. } = densities;
        let sequence = task.sequence;
        let tensor = sequence.operands()[slot];
        if span.wraps || sequence.tensor(tensor).kind != Kind::Temporary {
            return None;
        }
        let value = gaps.version(slot);
        if value == NONE {
            return None;
        }
        let at = LaunchId(span.to as u32);
        // Holding an input costs relief; computing it again costs time. The better way leaves more
        // gain for the time of the closure.
        let is_better_held = |values: &Values<'_>, input: u32, so_far_ns: u64| {
            let input_ns = sequence.time_ns(gaps.launch(input as usize)) as f64;
            let share = input_ns / (so_far_ns as f64 + input_ns).max(1.0);
            held_relief(&densities, values, input, at) < gain * share
        };
        let base = Base { sequence, gaps, memory };
        self.values.closure(base, value, at, is_better_held)
    }

    /// The relief that is lost if a closure runs before a launch: the inputs of the closure come
    /// back earlier, or are held.
    fn lost_relief(&self, closure: &Closure, at: LaunchId) -> f64 {
        let densities = &self.moves.densities;
        let held = |&value: &u32| held_relief(densities, self.values, value, at);
        let mut lost: f64 = closure.held.iter().map(held).sum();
        for gap in self.inputs(closure, at) {
            if let Some(span) = self.span(gap)
                && !span.wraps
                && span.to > at.index()
            {
                let rest = Span { from: at.index(), ..span };
                let relief = sum(densities.relief, self.moves.ranges(gap, rest));
                lost += self.leaving_objects(gap) as f64 * relief as f64;
            }
        }
        lost
    }

    /// The objects that leave in a gap, by moves or by a drop.
    fn leaving_objects(&self, slot: usize) -> u64 {
        let is_dropped = self.dropped.is_dropped(slot);
        if is_dropped { self.moves.objects(slot) } else { self.moves.gaps.moved(slot) }
    }

    /// The gaps of a closure's inputs that span a launch.
    fn inputs<'i>(
        &'i self,
        closure: &'i Closure,
        at: LaunchId,
    ) -> impl Iterator<Item = usize> + 'i {
        let Moves { densities: Densities { task, memory, .. }, ref gaps, .. } = self.moves;
        let (sequence, gaps): (_, &Gaps<'_>) = (task.sequence, gaps);
        let reads =
            closure.makers.iter().flat_map(move |&maker| repeat_reads(sequence, gaps, maker));
        let moves = move |&read: &usize| {
            let tensor = sequence.operands()[read];
            sequence.tensor(tensor).kind == Kind::Temporary && !memory.in_arena(tensor)
        };
        reads.filter(moves).filter_map(move |read| self.gap_over(gaps.version(read), at))
    }

    /// Drops the value of a gap, which is computed again at the end of the gap, and cuts the gaps
    /// of the inputs.
    fn drop_value(&mut self, slot: usize) {
        self.set_moved(slot, 0);
        let ranges = self.span(slot).map(|span| self.moves.ranges(slot, span));
        let relief = ranges.map_or(0, |ranges| sum(self.moves.densities.relief, ranges));
        let gain = relief as f64 * self.moves.objects(slot) as f64;
        self.dropped.is_dropped[slot] = 1;
        self.add_slack(slot, self.moves.objects(slot) as i64);
        let mut waiting: Cuts = Vec::new();
        let _ = waiting.push(slot as u32);
        while let Some(slot) = waiting.pop() {
            self.cut_inputs(slot as usize, gain, &mut waiting);
        }
    }

    /// Cuts the gaps of the inputs of a gap's closure where the closure runs. Adds the gaps whose
    /// values are dropped as well to `waiting`, since their closures now run earlier.
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
                // If `waiting` is full, more ops run again than the choice knows.
                let _ = waiting.push(gap);
            }
        }
    }

    /// Keeps a value that no launch reads any more until a launch.
    fn hold(&mut self, value: u32, at: LaunchId) {
        let objects = self.moves.objects(value as usize);
        let range = held_range(&self.moves.densities, self.values, value, at);
        self.moves.add_slack([range, (0, 0)], (objects as i64).saturating_neg());
        self.values.hold(value, at);
    }

    /// The gap of a value that spans a launch.
    fn gap_over(&self, value: u32, at: LaunchId) -> Option<usize> {
        let mut slot = value as usize;
        for _gap in 0..MOST_SEARCHED {
            let (next, later) = self.moves.gaps.next_use(slot);
            let next_slot = self.moves.gaps.next_slot(slot);
            if later || self.moves.gaps.version(next_slot) != value && next >= at {
                return (!later && next >= at && self.moves.gaps.launch(slot) < at).then_some(slot);
            }
            if next >= at {
                return (self.moves.gaps.launch(slot) < at).then_some(slot);
            }
            slot = next_slot;
        }
        None
    }

    /// Ends a gap before a launch. Returns false if the gap does not span the launch.
    fn cut(&mut self, slot: usize, at: LaunchId) -> bool {
        let Some(span) = self.span(slot) else { return false };
        if span.wraps || span.to <= at.index() || span.from > at.index() {
            return false;
        }
        let leaving = self.leaving_objects(slot);
        self.add_slack(slot, (leaving as i64).saturating_neg());
        self.dropped.cut[slot] = at.0;
        self.add_slack(slot, leaving as i64);
        true
    }

    /// The key of a drop that is not needed (the least is given back first); `None` if it is
    /// needed.
    fn needless(&mut self, slot: usize) -> Option<u64> {
        if !self.dropped.is_dropped(slot) {
            return None;
        }
        let span = self.span(slot)?;
        let ranges = self.moves.ranges(slot, span);
        let objects = self.moves.objects(slot);
        if self.moves.least_slack(ranges) < objects as i64 {
            return None;
        }
        let gain = sum(self.moves.densities.relief, ranges) as f64 * objects as f64;
        let cost_ns = self.closure(slot, span, gain)?.time_ns.max(1);
        Some((gain / cost_ns as f64).to_bits())
    }
}

/// The positions at which a value is held longer than its last read, until a launch.
fn held_range(
    densities: &Densities<'_>,
    values: &Values<'_>,
    value: u32,
    at: LaunchId,
) -> (usize, usize) {
    let Densities { task, memory, .. } = *densities;
    let pool = memory.pool(task, task.sequence.operands()[value as usize]);
    let from = values.last_read(value).map_or(0, |last| last.next().index()).min(at.index());
    let position = |op| positions::of(pool, op, task.sequence.len());
    (position(from), position(at.index()))
}

/// The relief that is lost if a value is held until a launch.
fn held_relief(densities: &Densities<'_>, values: &Values<'_>, value: u32, at: LaunchId) -> f64 {
    let tensor = densities.task.sequence.operands()[value as usize];
    let range = held_range(densities, values, value, at);
    densities.memory.objects(tensor) as f64 * sum(densities.relief, [range, (0, 0)]) as f64
}
