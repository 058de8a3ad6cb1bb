//! The objects of each pool: free objects in a queue, allocated objects in lists.
//!
//! Consecutive objects form one run, so that a tensor of a million consecutive chunks costs no more
//! than a tensor of one chunk.

#![expect(
    clippy::indexing_slicing,
    reason = "runs are linked by numbers that `new_run` takes from the array itself, and pools are \
              those of the plan"
)]

use crate::scratch::{OutOfScratch, Scratch, words};
use bytemuck::{Pod, Zeroable};

/// No run.
const NONE: u32 = u32::MAX;

/// Consecutive objects.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Run {
    first: u64,
    count: u64,
    /// The next run of the list, or [`NONE`].
    next: u64,
}

/// A list of runs: the first and the last run, or [`NONE`] twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(super) struct List {
    first: u32,
    last: u32,
}

/// The empty list.
pub(super) const EMPTY: List = List { first: NONE, last: NONE };

/// Why objects cannot be allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shortage {
    /// The pool has too few free objects.
    Objects,
    /// All runs are in use.
    Runs,
}

/// All runs of all pools.
#[derive(Debug)]
pub(super) struct Objects<'a> {
    runs: &'a mut [Run],
    /// Runs that are not in use.
    spare: List,
    /// The free objects of each pool: allocations take from the front, releases append.
    free: &'a mut [List],
}

impl<'a> Objects<'a> {
    pub(super) const fn scratch_words(pools: usize, runs: usize) -> usize {
        words::<List>(pools).saturating_add(words::<Run>(runs))
    }

    /// Creates pools of `counts` objects, all of them free. Takes as many runs as fit into the
    /// scratch, at most `most_runs`. One run for each object always suffices.
    #[expect(clippy::arithmetic_side_effects, reason = "a run takes words")]
    pub(super) fn new(
        counts: impl ExactSizeIterator<Item = u64>,
        most_runs: u64,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let free = scratch.take(counts.len(), EMPTY)?;
        let most_free_runs = scratch.free_words() / words::<Run>(1);
        let most_runs = most_runs.min(u64::from(NONE));
        let runs = usize::try_from(most_runs).unwrap_or(usize::MAX).min(most_free_runs);
        let runs = scratch.take(runs, Run { first: 0, count: 0, next: NONE.into() })?;
        for (run, next) in runs.iter_mut().zip(1..) {
            run.next = next;
        }
        if let Some(last) = runs.last_mut() {
            last.next = NONE.into();
        }
        let spare = match runs.len().checked_sub(1) {
            Some(last) => List { first: 0, last: last as u32 },
            None => EMPTY,
        };
        let mut objects = Self { runs, spare, free };
        for (pool, count) in counts.enumerate().filter(|&(_, count)| count > 0) {
            let needed_words = words::<Run>(1);
            let run = objects.new_run(0, count);
            let run = run.map_err(|_| OutOfScratch { needed_words, free_words: 0 })?;
            objects.free[pool] = List { first: run, last: run };
        }
        Ok(objects)
    }

    fn next(&self, run: u32) -> u32 {
        self.runs[run as usize].next as u32
    }

    fn new_run(&mut self, first: u64, count: u64) -> Result<u32, Shortage> {
        let run = self.spare.first;
        if run == NONE {
            return Err(Shortage::Runs);
        }
        self.spare.first = self.next(run);
        self.runs[run as usize] = Run { first, count, next: NONE.into() };
        Ok(run)
    }

    /// Takes objects from the front of a pool's queue, in queue order.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a run is cut only if it has more objects than are missing, and ends in its pool"
    )]
    pub(super) fn take(&mut self, pool: usize, count: u64) -> Result<List, Shortage> {
        let first = self.free[pool].first;
        let (mut last, mut missing) = (NONE, count);
        let mut next = first;
        while missing > 0 {
            if next == NONE {
                return Err(Shortage::Objects);
            }
            let run = self.runs[next as usize];
            if run.count > missing {
                let rest = self.new_run(run.first + missing, run.count - missing)?;
                self.runs[rest as usize].next = run.next;
                self.runs[next as usize] =
                    Run { first: run.first, count: missing, next: rest.into() };
                if self.free[pool].last == next {
                    self.free[pool].last = rest;
                }
            }
            missing -= run.count.min(missing);
            (last, next) = (next, self.next(next));
        }
        if last == NONE {
            return Ok(EMPTY);
        }
        self.runs[last as usize].next = NONE.into();
        let rest = List { first: next, last: self.free[pool].last };
        self.free[pool] = if next == NONE { EMPTY } else { rest };
        Ok(List { first, last })
    }

    /// Appends a list to a pool's queue.
    #[expect(clippy::arithmetic_side_effects, reason = "runs end in their pool")]
    pub(super) fn give(&mut self, pool: usize, list: List) {
        let List { mut first, last } = list;
        let queue = self.free[pool];
        if first == NONE {
            return;
        }
        if queue.first == NONE {
            self.free[pool] = list;
            return;
        }
        let run = self.runs[first as usize];
        let end = &mut self.runs[queue.last as usize];
        if end.first + end.count == run.first {
            end.count += run.count;
            self.runs[first as usize].next = self.spare.first.into();
            self.spare.first = first;
            first = run.next as u32;
        }
        self.runs[queue.last as usize].next = first.into();
        self.free[pool].last = if first == NONE { queue.last } else { last };
    }

    /// The runs of a list, each as the first object and the number of objects.
    pub(super) fn runs(&self, list: List) -> impl Iterator<Item = (u64, u64)> + use<'_, 'a> {
        let mut next = list.first;
        core::iter::from_fn(move || {
            let Run { first, count, .. } = *self.runs.get(next as usize)?;
            next = self.next(next);
            Some((first, count))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(objects: &Objects<'_>, list: List, expected: &[(u64, u64)]) {
        assert!(objects.runs(list).eq(expected.iter().copied()));
    }

    #[test]
    fn free_objects_form_a_queue_of_runs() {
        let mut memory = [0; 32];
        let mut objects =
            Objects::new([10].into_iter(), 10, &mut Scratch::new(&mut memory)).unwrap();
        let a = objects.take(0, 3).unwrap();
        let b = objects.take(0, 2).unwrap();
        check(&objects, a, &[(0, 3)]);
        check(&objects, b, &[(3, 2)]);
        objects.give(0, b);
        objects.give(0, a);
        check(&objects, objects.free[0], &[(5, 5), (3, 2), (0, 3)]);
        let c = objects.take(0, 6).unwrap();
        check(&objects, c, &[(5, 5), (3, 1)]);
        objects.give(0, c);
        check(&objects, objects.free[0], &[(4, 1), (0, 3), (5, 5), (3, 1)]);
        assert_eq!(objects.take(0, 11), Err(Shortage::Objects));
    }

    #[test]
    fn neighbours_are_joined_and_their_runs_used_again() {
        let mut memory = [0; 8];
        let mut objects = Objects::new([4].into_iter(), 4, &mut Scratch::new(&mut memory)).unwrap();
        assert_eq!(objects.runs.len(), 2);
        for _ in 0..5 {
            let all = objects.take(0, 4).unwrap();
            objects.give(0, all);
            let half = objects.take(0, 2).unwrap();
            assert_eq!(objects.take(0, 1), Err(Shortage::Runs));
            let other = objects.take(0, 2).unwrap();
            check(&objects, objects.free[0], &[]);
            objects.give(0, half);
            objects.give(0, other);
            check(&objects, objects.free[0], &[(0, 4)]);
        }
    }
}
