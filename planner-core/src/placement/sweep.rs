//! Finds an object for each allocation so that everything fits in every iteration.
//!
//! The lifetimes of allocations are arcs around a circle of iterations, to be coloured with as many
//! colours as the pool has objects (Tucker, 1975). The circle is cut at the start of the list. Arcs
//! across the cut have their colours before the sweep: a tensor in an object at the start must find
//! this object free when it comes back for the end, so the object is *due* then. Any other
//! allocation takes the objects that were released first, as the queue of a plan without placements
//! does. It takes no object that is due before the allocation ends. On request, it takes no object
//! that is due soon after if another object is free.
//!
//! If all free objects are due too early, one of them and an object in use exchange the arcs that
//! both have had since the last moment at which both were free. Then the object that was in use is
//! free. If it is due too early as well, though later, it exchanges in the same way: a path of
//! exchanges leads to an object that is due late enough.

#![expect(
    clippy::indexing_slicing,
    reason = "slots are those that `walk` counted, and objects of a pool are at most as many"
)]

use super::Over;
use super::line::Line;
use crate::allocations::{self, Event, walk};
use crate::graph::Graph;
use crate::pieces::Pieces;
use crate::plan::{Plan, PlanError};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use core::ops::Range;

/// No slot.
const NONE: u32 = u32::MAX;
/// Later than every position.
const NEVER: u32 = u32::MAX;

/// The number of pairs that may be tried: the first for each slot, plus the second. Of 142 sweeps that lacked
/// no object (decoders and convolutional networks), none tried more than 13 for each slot.
const TRIES: [u64; 2] = [64, 1 << 20];

/// The number of pairs that may be tried in a row without an exchange that frees an object. The same
/// sweeps tried up to 14,407.
const IN_VAIN: u64 = 1 << 17;

/// A due object that is to be [spared](Over::spares_due) is due within this fraction of an
/// iteration after a release. Among 124 plans of `auto` (eight works, 12 and 50 GB/s, 75 to 25 % of
/// the in-core need, with repeats and without), placing lengthened 16 by up to 0.57 % without this
/// rule, and 5 by up to 0.32 % with it.
const CLOSE: usize = 4;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        allocations::scratch_words(limits),
        words::<u32>(limits.objects).saturating_mul(8),
        Line::scratch_words(limits.objects.saturating_mul(2), limits.objects).saturating_mul(2),
        words::<u32>(limits.pools).saturating_mul(4),
    ])
}

/// The position at which an object must be free.
fn due(arcs: &Arcs<'_>, home: &[u32], object: u32) -> u32 {
    arcs.taken.get(home[object as usize] as usize).map_or(NEVER, |&taken| taken)
}

/// A number that is larger for an object in use if it is released earlier; 0 if it is never released.
fn earliness(until: &[u32], object: u32) -> u32 {
    !until[object as usize]
}

/// Finds an object for each slot, and writes their numbers to `objects`. Returns the number of
/// objects that the pools lack; if it is not zero, some numbers are beyond the last object.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "slots are counted in 32 bits, and some of them are taken at the start"
)]
pub(super) fn sweep(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    Over { iterations, settled, spares_due, most_lacking }: Over,
    objects: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Result<u64, PlanError> {
    let mut scratch = scratch.reborrow();
    let slots = objects.len();
    let mut arcs = Arcs {
        taken: scratch.take(slots, 0)?,
        given: scratch.take(slots, NEVER)?,
        twin: scratch.take(slots, NONE)?,
    };
    let in_pool = scratch.take(plan.pools.len(), 0u32)?;
    walk(graph, plan, pieces, iterations, &mut scratch, |event| {
        if let Event::Take { pool, ref slots, .. } = event {
            in_pool[pool] += slots.len() as u32;
        }
        arcs.apply(&event);
        Ok(())
    })?;
    let mut colours = Colours::new(plan, &arcs, in_pool, most_lacking, &mut scratch)?;
    if spares_due {
        colours.close = (plan.steps.len() / CLOSE) as u32;
    }
    if settled {
        let at_start = arcs.taken.partition_point(|&taken| taken == 0);
        colours.per_iteration = ((slots - at_start) as u32).checked_div(iterations).unwrap_or(0);
    }
    walk(graph, plan, pieces, iterations, &mut scratch, |event| {
        match event {
            Event::Take { at, pool, slots, .. } => colours.take(at, pool, slots),
            Event::Give { slots, .. } => colours.give(slots),
            Event::End { .. } => {}
        }
        Ok(())
    })?;
    Ok(colours.number(objects))
}

/// The lifetime of each slot.
struct Arcs<'a> {
    /// The position of its allocation.
    taken: &'a mut [u32],
    /// The position of its release, or [`NEVER`].
    given: &'a mut [u32],
    /// For a slot in use at the start, the slot of the same piece at the end; and for that one, the
    /// first.
    twin: &'a mut [u32],
}

impl Arcs<'_> {
    fn apply(&mut self, event: &Event<'_>) {
        let range = |slots: &Range<u32>| slots.start as usize..slots.end as usize;
        match event {
            Event::Take { at, slots, .. } => self.taken[range(slots)].fill(*at),
            Event::Give { at, slots } => self.given[range(slots)].fill(*at),
            Event::End { start, end, .. } => {
                for (start, end) in start.clone().zip(end.clone()) {
                    self.twin[start as usize] = end;
                    self.twin[end as usize] = start;
                }
            }
        }
    }
}

/// The slots that each object serves. The objects of all pools are numbered together; each pool has
/// at most as many as it takes slots, since more would have no use.
struct Colours<'w> {
    arcs: &'w Arcs<'w>,
    /// The object of each slot.
    object: &'w mut [u32],
    /// For each slot, the slot that the same object served before.
    before: &'w mut [u32],
    /// The last slot that each object serves, and the position at which that slot is released.
    last: &'w mut [u32],
    until: &'w mut [u32],
    /// The slot at the end for which the object must be free.
    home: &'w mut [u32],
    /// The free objects of each pool, in the order of their releases.
    free: Line<'w>,
    /// The objects in use. The object that is due latest comes first.
    held: Line<'w>,
    /// The first object of each pool, the number of used objects, and the number of releases.
    first: &'w mut [u32],
    used: &'w mut [u32],
    released: &'w mut [u32],
    lacking: u64,
    most_lacking: u64,
    /// The number of slots of an iteration, or 0.
    per_iteration: u32,
    /// The number of positions within which a due object is close; 0 if such objects are not
    /// spared.
    close: u32,
    tries: u64,
    /// What is left of [`IN_VAIN`].
    in_vain: u64,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "the first object of the first pool is 0, and no pool uses more objects than its slots, \
              which are counted in 32 bits"
)]
impl<'w> Colours<'w> {
    /// All objects are free; `in_pool` is the number of slots of each pool.
    fn new(
        plan: &Plan<'_>,
        arcs: &'w Arcs<'w>,
        in_pool: &[u32],
        most_lacking: u64,
        scratch: &mut Scratch<'w>,
    ) -> Result<Self, OutOfScratch> {
        let (slots, pools) = (arcs.taken.len(), plan.pools.len());
        let positions = slots.saturating_mul(2);
        if u32::try_from(positions).is_err() {
            let free_words = scratch.free_words();
            return Err(OutOfScratch { needed_words: usize::MAX, free_words });
        }
        let mut colours = Self {
            arcs,
            object: scratch.take(slots, NONE)?,
            before: scratch.take(slots, NONE)?,
            last: scratch.take(slots, NONE)?,
            until: scratch.take(slots, 0)?,
            home: scratch.take(slots, NONE)?,
            free: Line::new(positions, slots, scratch)?,
            held: Line::new(positions, slots, scratch)?,
            first: scratch.take(pools, 0)?,
            used: scratch.take(pools, 0)?,
            released: scratch.take(pools, 0)?,
            lacking: 0,
            most_lacking,
            per_iteration: 0,
            close: 0,
            tries: TRIES[0].saturating_mul(slots as u64).saturating_add(TRIES[1]),
            in_vain: IN_VAIN,
        };
        let mut first = 0;
        for (pool, (&slots, data)) in in_pool.iter().zip(plan.pools).enumerate() {
            colours.first[pool] = first;
            colours.used[pool] = u64::from(slots).min(data.count) as u32;
            for object in first..first + colours.used[pool] {
                colours.release(pool, object);
            }
            first += slots;
        }
        Ok(colours)
    }

    fn pool(&self, object: u32) -> usize {
        self.first.partition_point(|&first| first <= object) - 1
    }

    /// Whether an object may serve until a release.
    fn may_serve(&self, object: u32, given: u32) -> bool {
        let due = self.due(object);
        due == NEVER || given < due
    }

    /// The position at which the object must be free.
    fn due(&self, object: u32) -> u32 {
        due(self.arcs, self.home, object)
    }

    /// Appends an object to the free objects of its pool.
    fn release(&mut self, pool: usize, object: u32) {
        let position = 2 * self.first[pool] + self.released[pool];
        self.released[pool] += 1;
        self.put_free(position, object);
    }

    fn put_free(&mut self, position: u32, object: u32) {
        self.free.put(position, object, |object| due(self.arcs, self.home, object));
    }

    fn remove_free(&mut self, object: u32) {
        self.free.remove(object, |object| due(self.arcs, self.home, object));
    }

    /// The first free object of a pool, from a position on, that is due at `least_due` or later.
    fn first_free(&self, pool: usize, from: u32, least_due: u32) -> Option<u32> {
        let start = 2 * self.first[pool];
        let range = from.max(start)..start + self.released[pool];
        self.free.first(range, least_due, |object| due(self.arcs, self.home, object))
    }

    /// The position of an object among the objects in use.
    fn rank(&self, object: u32) -> u32 {
        match self.home[object as usize] {
            NONE => object,
            home => 2 * self.home.len() as u32 - 1 - home,
        }
    }

    fn take(&mut self, at: u32, pool: usize, slots: Range<u32>) {
        for slot in slots {
            let twin = self.arcs.twin[slot as usize];
            let object = if at > 0 && twin != NONE {
                // It is due now, so it is free.
                let object = self.object[twin as usize];
                self.remove_free(object);
                self.home[object as usize] = NONE;
                object
            } else {
                self.pick(slot, at, pool)
            };
            if at == 0 && twin != slot {
                self.home[object as usize] = twin;
            }
            self.object[slot as usize] = object;
            self.before[slot as usize] = self.last[object as usize];
            self.serve_last(object, slot);
            self.hold(object);
        }
    }

    /// Notes the last slot of an object.
    fn serve_last(&mut self, object: u32, slot: u32) {
        self.last[object as usize] = slot;
        self.until[object as usize] = self.arcs.given.get(slot as usize).map_or(0, |&given| given);
    }

    /// Notes that an object is in use.
    fn hold(&mut self, object: u32) {
        self.held.put(self.rank(object), object, |object| earliness(self.until, object));
    }

    fn give(&mut self, slots: Range<u32>) {
        for slot in slots {
            let object = self.object[slot as usize];
            self.held.remove(object, |object| earliness(self.until, object));
            self.release(self.pool(object), object);
        }
    }

    /// Finds a free object for a slot: the object of the previous iteration; otherwise the object
    /// that has been free for longest; otherwise an object that exchanges free; otherwise an object
    /// that the pool lacks.
    fn pick(&mut self, slot: u32, at: u32, pool: usize) -> u32 {
        let given = self.arcs.given[slot as usize];
        let settled = self.settled(slot, at);
        let mut found = settled.or_else(|| self.oldest(pool, given.saturating_add(self.close)));
        if found.is_none() && self.close > 0 {
            found = self.oldest(pool, given);
        }
        if let Some(object) = found.or_else(|| self.exchange(pool, given)) {
            self.remove_free(object);
            return object;
        }
        self.lacking += 1;
        if self.lacking > self.most_lacking {
            self.tries = 0;
        }
        self.used[pool] += 1;
        self.first[pool] + self.used[pool] - 1
    }

    /// Among the objects that may serve until a release, the object that has been free for longest.
    /// Unused objects come first, so the pool is too small only if all of its objects are in use.
    fn oldest(&self, pool: usize, given: u32) -> Option<u32> {
        self.first_free(pool, 0, given.saturating_add(1))
    }

    /// The object that a slot had in the previous iteration, if it is wanted and free.
    fn settled(&self, slot: u32, at: u32) -> Option<u32> {
        let earlier = slot.checked_sub(self.per_iteration).filter(|&earlier| earlier != slot)?;
        let object = self.object[earlier as usize];
        let is_taken = self.arcs.taken[earlier as usize] > 0;
        let will_do = is_taken
            && self.until[object as usize] < at
            && self.may_serve(object, self.arcs.given[slot as usize]);
        will_do.then_some(object)
    }

    /// Frees an object that may serve until a release, by exchanges with free objects.
    fn exchange(&mut self, pool: usize, given: u32) -> Option<u32> {
        let mut next = self.first_free(pool, 0, 1);
        while let Some(mut free) = next.filter(|_| self.in_vain > 0) {
            self.tries = self.tries.checked_sub(1)?;
            while let Some((held, ends)) = self.partner(free, pool) {
                self.exchange_between(free, held, ends);
                if self.may_serve(held, given) {
                    self.in_vain = IN_VAIN;
                    return Some(held);
                }
                free = held;
            }
            next = self.first_free(pool, self.free.position(free) + 1, 1);
        }
        None
    }

    /// Finds the object that is due latest among the objects in use that can exchange with a free object and
    /// are due later than it. Also returns the slots from which the two objects exchange their later slots.
    fn partner(&mut self, free: u32, pool: usize) -> Option<(u32, [u32; 2])> {
        let due = self.due(free);
        let mut ranks = 0..self.rank(free);
        loop {
            let key = |object| earliness(self.until, object);
            // Released before the free object is due.
            let held = self.held.first(ranks.clone(), (!due).saturating_add(1), key)?;
            self.tries = self.tries.checked_sub(1)?;
            self.in_vain = self.in_vain.checked_sub(1)?;
            if self.due(held) <= due {
                return None;
            }
            if self.pool(held) == pool
                && let Some(ends) = self.both_free([free, held])
            {
                return Some((held, ends));
            }
            ranks.start = self.held.position(held) + 1;
        }
    }

    /// Exchanges the later slots of a free object and an object in use, which is free then.
    fn exchange_between(&mut self, free: u32, held: u32, ends: [u32; 2]) {
        let position = self.free.position(free);
        self.held.remove(held, |object| earliness(self.until, object));
        self.swap([free, held], ends);
        self.hold(free);
        self.put_free(position, held);
    }

    /// The last slots that a free object and one in use served before the last moment at which both
    /// were free. A moment is just before a position.
    fn both_free(&self, [free, held]: [u32; 2]) -> Option<[u32; 2]> {
        let Arcs { taken, given, .. } = self.arcs;
        let mut ends = [self.last[free as usize], self.last[held as usize]];
        let mut moment = taken[ends[1] as usize];
        while moment > 0 {
            for end in &mut ends {
                while *end != NONE && taken[*end as usize] >= moment {
                    *end = self.before[*end as usize];
                }
            }
            let in_use = |end: &&u32| **end != NONE && given[**end as usize] >= moment;
            match ends.iter().find(in_use) {
                None => return Some(ends),
                Some(&end) => moment = taken[end as usize],
            }
        }
        None
    }

    /// Exchanges the slots that two objects served after the given slots.
    fn swap(&mut self, [one, other]: [u32; 2], [one_end, other_end]: [u32; 2]) {
        let (of_one, of_other) = (self.last[one as usize], self.last[other as usize]);
        let last_of_one = self.hand_over(other_end, of_other, one, one_end);
        let last_of_other = self.hand_over(one_end, of_one, other, other_end);
        self.serve_last(one, last_of_one);
        self.serve_last(other, last_of_other);
    }

    /// Moves the slots after `end` up to `last` to an object, after a slot of its own. Returns the
    /// last slot that the object serves then.
    fn hand_over(&mut self, end: u32, last: u32, object: u32, after: u32) -> u32 {
        let (mut slot, mut first) = (last, NONE);
        while slot != end {
            self.object[slot as usize] = object;
            first = slot;
            slot = self.before[slot as usize];
        }
        match self.before.get_mut(first as usize) {
            None => after,
            Some(before) => {
                *before = after;
                last
            }
        }
    }

    /// Writes the number of each slot's object within its pool; returns the number of objects that
    /// are lacking.
    fn number(&self, objects: &mut [u64]) -> u64 {
        for (number, &object) in objects.iter_mut().zip(&*self.object) {
            *number = u64::from(object - self.first[self.pool(object)]);
        }
        self.lacking
    }
}
