//! A set of small numbers with fast search for neighbours.

#![expect(
    clippy::indexing_slicing,
    reason = "levels are below `LEVELS`, and words lie between the starts of their level"
)]

use crate::scratch::{OutOfScratch, Scratch};
use core::ops::Range;

/// The number of levels, with 64 bits for each word, that covers every `usize`.
const LEVELS: usize = 11;

/// A set of numbers below a limit. Every operation is O(log n).
#[derive(Debug)]
pub(crate) struct IndexSet<'a> {
    /// A bit for each number; then a bit for each non-zero word of the level before; and so on, up
    /// to a single word.
    words: &'a mut [u64],
    /// The index at which each level begins, and at the end the number of words.
    start: [usize; LEVELS + 1],
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "levels are at most `LEVELS`, `start` counts words in memory, and 64 times the position \
              of a word with a bit, plus that bit, is a member or a word's position"
)]
impl<'a> IndexSet<'a> {
    pub(crate) const fn scratch_words(limit: usize) -> usize {
        limit / 63 + LEVELS
    }

    /// An empty set of numbers below `limit`.
    pub(crate) fn new(limit: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let mut start = [0; LEVELS + 1];
        let mut words = limit.div_ceil(64);
        for level in 0..LEVELS {
            start[level + 1] = start[level] + words;
            words = if words > 1 { words.div_ceil(64) } else { 0 };
        }
        Ok(Self { words: scratch.take(start[LEVELS], 0)?, start })
    }

    fn word(&self, level: usize, at: usize) -> u64 {
        let level = &self.words[self.start[level]..self.start[level + 1]];
        level.get(at).copied().unwrap_or(0)
    }

    /// Adds a number, which must be below the limit.
    pub(crate) fn insert(&mut self, mut number: usize) {
        for level in 0..LEVELS {
            let at = self.start[level] + number / 64;
            if at < self.start[level + 1] {
                self.words[at] |= 1 << (number % 64);
            }
            number /= 64;
        }
    }

    /// Removes a number, which must be below the limit.
    pub(crate) fn remove(&mut self, mut number: usize) {
        for level in 0..LEVELS {
            let at = self.start[level] + number / 64;
            if at == self.start[level + 1] {
                return;
            }
            self.words[at] &= !(1 << (number % 64));
            if self.words[at] != 0 {
                return;
            }
            number /= 64;
        }
    }

    /// The least member at or above a number.
    pub(crate) fn next(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for level in 0..LEVELS {
            let rest = self.word(level, at / 64) & (!0 << (at % 64));
            if rest != 0 {
                let found = at / 64 * 64 + rest.trailing_zeros() as usize;
                let below = (0..level).rev();
                return Some(below.fold(found, |at, level| {
                    at * 64 + self.word(level, at).trailing_zeros() as usize
                }));
            }
            at = at / 64 + 1;
        }
        None
    }

    /// The greatest member below a number.
    pub(crate) fn before(&self, to: usize) -> Option<usize> {
        let mut at = to;
        for level in 0..LEVELS {
            let rest = self.word(level, at / 64) & !(!0 << (at % 64));
            if rest != 0 {
                let found = at / 64 * 64 + rest.ilog2() as usize;
                let below = (0..level).rev();
                return Some(below.fold(found, |at, level| {
                    at * 64 + self.word(level, at).checked_ilog2().unwrap_or(0) as usize
                }));
            }
            at /= 64;
        }
        None
    }

    /// The least member in a range.
    pub(crate) fn first(&self, range: Range<usize>) -> Option<usize> {
        self.next(range.start).filter(|&member| member < range.end)
    }

    /// The members in a range, in order.
    pub(crate) fn within(&self, range: Range<usize>) -> impl Iterator<Item = usize> {
        let first = self.first(range.clone());
        core::iter::successors(first, move |&member| self.first(member + 1..range.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_agree_with_an_array() {
        for limit in [0, 1, 64, 65, 4096, 5000] {
            let mut memory = [0; 5000 / 63 + LEVELS];
            let words = &mut memory[..IndexSet::scratch_words(limit)];
            let mut set = IndexSet::new(limit, &mut Scratch::new(words)).unwrap();
            let (mut plain, mut seed) = ([false; 5000], 1u64);
            for turn in 0..2000 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let at = (seed >> 33) as usize % limit.max(1);
                if limit > 0 && turn % 3 < 1 + turn / 1000 {
                    plain[at] = turn % 2 == 0;
                    if plain[at] { set.insert(at) } else { set.remove(at) }
                }
                let after = (at..limit).find(|&member| plain[member]);
                assert_eq!((set.next(at), set.next(limit)), (after, None));
                assert_eq!(set.before(at), (0..at).rfind(|&member| plain[member]));
                let members = (at..limit).take(99).filter(|&member| plain[member]);
                assert!(set.within(at..limit.min(at + 99)).eq(members));
            }
        }
    }
}
