//! The queues of free objects: memory returns in list order.

use super::{NEVER, Points, later, seen_later};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

/// No step, in a chain of releases.
pub(super) const END: u32 = u32::MAX;

/// The queue of free objects of each pool, in list order.
pub(super) struct Queues<'a> {
    /// The next step that releases objects of the same pool.
    next: &'a mut [u32],
    /// Objects that each step releases.
    released: &'a mut [u64],
    /// The first and the last release of each pool.
    ends: &'a mut [[u32; 2]],
    /// Objects allocated so far, by pool, those resident at start included.
    pub(super) allocated: &'a mut [u64],
    /// Objects released in one iteration, by pool.
    per_lap: &'a mut [u64],
    /// The step that last allocated and has not been granted yet, by pool.
    pub(super) asked_by: &'a mut [u32],
    cursors: Cursors<'a>,
}

/// How far the longest prefix of releases that some allocation needed reaches, by pool.
/// Needed prefixes only grow, so a cursor only moves forward.
struct Cursors<'a> {
    /// The last release of the prefix, [`END`] before the first allocation.
    at: &'a mut [u32],
    /// The iteration of that release, 0 or negative.
    lap: &'a mut [i64],
    /// Objects released in that iteration up to there.
    released: &'a mut [u64],
    /// What must have ended for the whole prefix to be free.
    done: &'a mut [Points],
    /// What must have ended for all releases of an iteration to be free.
    lap_done: &'a mut [Points],
}

impl<'a> Queues<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u32>(limits.steps),
            words::<u64>(limits.steps),
            words::<[u32; 2]>(limits.pools),
            words::<u64>(limits.pools).saturating_mul(2),
            words::<u32>(limits.pools).saturating_mul(2),
            words::<u64>(limits.pools).saturating_mul(2),
            words::<Points>(limits.pools).saturating_mul(2),
        ])
    }

    pub(super) fn new(
        steps: usize,
        pools: usize,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        Ok(Self {
            next: scratch.take(steps, END)?,
            released: scratch.take(steps, 0)?,
            ends: scratch.take(pools, [END; 2])?,
            allocated: scratch.take(pools, 0)?,
            per_lap: scratch.take(pools, 0)?,
            asked_by: scratch.take(pools, END)?,
            cursors: Cursors {
                at: scratch.take(pools, END)?,
                lap: scratch.take(pools, 0)?,
                released: scratch.take(pools, 0)?,
                done: scratch.take(pools, [NEVER; 3])?,
                lap_done: scratch.take(pools, [NEVER; 3])?,
            },
        })
    }

    pub(super) fn release(
        &mut self,
        step: u32,
        pool: usize,
        objects: u64,
        done: Points,
    ) -> Option<()> {
        self.released[step as usize] = objects;
        let [first, last] = &mut self.ends[pool];
        match *last {
            END => *first = step,
            before => self.next[before as usize] = step,
        }
        *last = step;
        self.per_lap[pool] = self.per_lap[pool].checked_add(objects)?;
        self.cursors.lap_done[pool] = later(self.cursors.lap_done[pool], done);
        Some(())
    }

    /// What must have ended before everything allocated so far in a pool of `count` objects
    /// is granted; `None` where the releases before `step` in the list do not suffice.
    pub(super) fn grant(
        &mut self,
        step: u32,
        pool: usize,
        count: u64,
        stream_steps: [u32; 3],
        release_done: impl Fn(u32) -> Points,
    ) -> Option<Points> {
        let per_lap = i128::from(self.per_lap[pool]);
        let shortage = i128::from(self.allocated[pool]) - i128::from(count);
        let cursors = &mut self.cursors;
        if cursors.at[pool] == END {
            // The first allocation: in which iteration the prefix that it needs ends.
            let lap = shortage.checked_sub(1)?.checked_div_euclid(per_lap)?;
            let lap = i64::try_from(lap.max(-i128::from(u32::MAX))).ok()?;
            if lap > 0 {
                return None;
            }
            cursors.lap[pool] = lap;
            cursors.done[pool] = seen_later(cursors.lap_done[pool], 1 - lap, stream_steps);
            self.advance(pool, stream_steps, &release_done);
        }
        while i128::from(self.cursors.lap[pool]) * per_lap + i128::from(self.cursors.released[pool])
            < shortage
        {
            if self.cursors.lap[pool] == 0 && self.next[self.cursors.at[pool] as usize] >= step {
                return None;
            }
            self.advance(pool, stream_steps, &release_done);
        }
        let cursors = &self.cursors;
        let granted = cursors.lap[pool] < 0 || cursors.at[pool] < step;
        granted.then_some(cursors.done[pool])
    }

    /// Objects held in a pool at a step, with what it allocates.
    pub(super) fn held(&self, pool: usize, step: u32) -> u64 {
        let mut held = self.allocated[pool];
        let mut release = self.ends[pool][0];
        while release < step {
            held = held.saturating_sub(self.released[release as usize]);
            release = self.next[release as usize];
        }
        held
    }

    /// Moves a cursor on by one release.
    fn advance(
        &mut self,
        pool: usize,
        stream_steps: [u32; 3],
        release_done: &impl Fn(u32) -> Points,
    ) {
        let cursors = &mut self.cursors;
        let next = match cursors.at[pool] {
            END => END,
            at => self.next[at as usize],
        };
        let next = if next == END {
            if cursors.at[pool] != END {
                cursors.lap[pool] += 1;
            }
            cursors.released[pool] = 0;
            self.ends[pool][0]
        } else {
            next
        };
        cursors.at[pool] = next;
        cursors.released[pool] =
            cursors.released[pool].saturating_add(self.released[next as usize]);
        let done = seen_later(release_done(next), -cursors.lap[pool], stream_steps);
        cursors.done[pool] = later(cursors.done[pool], done);
    }
}
