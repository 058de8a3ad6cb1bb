//! The queues of free objects. Objects return to their queue in list order.

#![expect(
    clippy::indexing_slicing,
    reason = "steps and pools are those of the plan, and the arrays have an entry for each"
)]

use super::{NEVER, Points, later, seen_later};
use crate::schedule::PerStream;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

/// The end of a chain of releases.
pub(super) const END: u32 = u32::MAX;

/// The most iterations in which prefixes may end. An iteration that allocates more than it frees
/// ends with other residents than it began with, for which the plan is rejected.
const MOST_ITERATIONS: u8 = 2;

/// The queue of free objects of each pool, in list order.
pub(super) struct Queues<'a> {
    /// The next step that frees objects of the same pool.
    next: &'a mut [u32],
    /// Number of objects that each step frees.
    released: &'a mut [u64],
    /// The first and the last release of each pool.
    ends: &'a mut [[u32; 2]],
    /// Number of objects allocated so far, by pool, including the objects resident at start.
    pub(super) allocated: &'a mut [u64],
    /// Number of objects freed in one iteration, by pool.
    per_iteration: &'a mut [u64],
    /// The step that allocated last and has not been granted yet, by pool.
    pub(super) asked_by: &'a mut [u32],
    cursors: Cursors<'a>,
}

/// The end of the longest prefix that an allocation has needed, by pool. Prefixes only grow, so a
/// cursor only moves forward.
struct Cursors<'a> {
    /// The last release of the prefix; [`END`] before the first allocation.
    at: &'a mut [u32],
    /// The iteration of that release, 0 or negative.
    iteration: &'a mut [i64],
    /// The number of iterations in which prefixes have ended.
    iterations: &'a mut [u8],
    /// Number of objects freed in that iteration up to that release.
    released: &'a mut [u64],
    /// The steps that must have ended for the whole prefix to be free.
    done: &'a mut [Points],
    /// The steps that must have ended for all releases of an iteration to be free.
    iteration_done: &'a mut [Points],
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
            words::<u8>(limits.pools),
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
            per_iteration: scratch.take(pools, 0)?,
            asked_by: scratch.take(pools, END)?,
            cursors: Cursors {
                at: scratch.take(pools, END)?,
                iteration: scratch.take(pools, 0)?,
                iterations: scratch.take(pools, 0)?,
                released: scratch.take(pools, 0)?,
                done: scratch.take(pools, PerStream::all(NEVER))?,
                iteration_done: scratch.take(pools, PerStream::all(NEVER))?,
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
        self.per_iteration[pool] = self.per_iteration[pool].checked_add(objects)?;
        self.cursors.iteration_done[pool] = later(self.cursors.iteration_done[pool], done);
        Some(())
    }

    /// The steps that must have ended before everything allocated so far in a pool of `count`
    /// objects is granted. `None` if the releases before `step` in the list do not suffice.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "numbers of objects have 64 bits, numbers of iterations 32, and prefixes end in \
                  at most `MOST_ITERATIONS`"
    )]
    pub(super) fn grant(
        &mut self,
        step: u32,
        pool: usize,
        count: u64,
        stream_steps: PerStream<u32>,
        release_done: impl Fn(u32) -> Points,
    ) -> Option<Points> {
        let per_iteration = i128::from(self.per_iteration[pool]);
        let shortage = i128::from(self.allocated[pool]) - i128::from(count);
        // The iteration in which the prefix that covers the shortage ends.
        let iteration = shortage.checked_sub(1)?.checked_div_euclid(per_iteration)?;
        let iteration = i64::try_from(iteration.max(-i128::from(u32::MAX))).ok()?;
        if iteration > 0 {
            return None;
        }
        let cursors = &mut self.cursors;
        if cursors.at[pool] == END || iteration > cursors.iteration[pool] {
            if cursors.iterations[pool] == MOST_ITERATIONS {
                return Some(PerStream::all(NEVER));
            }
            cursors.iterations[pool] += 1;
            // Malformed counts may put any number of iterations between two prefixes.
            let before = seen_later(cursors.iteration_done[pool], 1 - iteration, stream_steps);
            cursors.done[pool] = later(cursors.done[pool], before);
            (cursors.iteration[pool], cursors.released[pool]) = (iteration, 0);
            self.advance(pool, self.ends[pool][0], stream_steps, &release_done);
        }
        while i128::from(iteration) * per_iteration + i128::from(self.cursors.released[pool])
            < shortage
        {
            let next = self.next[self.cursors.at[pool] as usize];
            if next == END || (iteration == 0 && next >= step) {
                return None;
            }
            self.advance(pool, next, stream_steps, &release_done);
        }
        let cursors = &self.cursors;
        let granted = cursors.iteration[pool] < 0 || cursors.at[pool] < step;
        granted.then_some(cursors.done[pool])
    }

    /// Number of objects held in a pool at a step, including the objects that the step allocates.
    pub(super) fn held(&self, pool: usize, step: u32) -> u64 {
        let mut held = self.allocated[pool];
        let mut release = self.ends[pool][0];
        while release < step {
            held = held.saturating_sub(self.released[release as usize]);
            release = self.next[release as usize];
        }
        held
    }

    /// Moves a cursor to the next release of its iteration.
    fn advance(
        &mut self,
        pool: usize,
        release: u32,
        stream_steps: PerStream<u32>,
        release_done: &impl Fn(u32) -> Points,
    ) {
        let cursors = &mut self.cursors;
        cursors.at[pool] = release;
        cursors.released[pool] =
            cursors.released[pool].saturating_add(self.released[release as usize]);
        let iterations_back = cursors.iteration[pool].saturating_neg();
        let done = seen_later(release_done(release), iterations_back, stream_steps);
        cursors.done[pool] = later(cursors.done[pool], done);
    }
}
