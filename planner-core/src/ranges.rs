//! What holds for ranges of a tensor's pieces. A step costs O(log pieces) however finely other
//! steps cut its tensor, where visiting each piece would make a list of n steps cost O(n^2).
//!
//! Each tensor has a binary tree over its pieces: node 1 is the root, the children of node `i`
//! are `2i` and `2i + 1`, and its `n` pieces are the nodes from `n` on. A tensor that is never
//! cut is a root alone.

use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use core::ops::Range;

/// The nodes that make up some positions of a tensor: of all of them, the root.
#[inline]
pub(crate) fn cover(all: &Range<usize>, range: &Range<usize>, mut visit: impl FnMut(usize)) {
    debug_assert!(!all.is_empty(), "a tensor has pieces");
    if range == all {
        return visit(1);
    }
    let pieces = all.len();
    let mut left = range.start - all.start + pieces;
    let mut right = range.end - all.start + pieces;
    while left < right {
        if left & 1 == 1 {
            visit(left);
            left += 1;
        }
        if right & 1 == 1 {
            right -= 1;
            visit(right);
        }
        (left, right) = (left / 2, right / 2);
    }
}

/// The first and the last node of some positions, where there are nodes above those that make up
/// the positions: of all positions or none, no node.
#[inline]
pub(crate) fn ends(all: &Range<usize>, range: &Range<usize>) -> Option<[usize; 2]> {
    let node = |position: usize| position - all.start + all.len();
    (!range.is_empty() && range != all).then(|| [node(range.start), node(range.end - 1)])
}

/// The nodes above a node, from the bottom up.
pub(crate) fn above(node: usize) -> impl Iterator<Item = usize> {
    core::iter::successors(Some(node / 2), |node| Some(node / 2)).take_while(|&node| node > 0)
}

/// When each piece was last used. Time does not run backwards.
#[derive(Debug)]
pub(crate) struct LastUses<'a> {
    /// The last use of any piece below each node, but for uses of all pieces below a higher one.
    any: &'a mut [i64],
    /// The last use of all pieces below each node that has children.
    all: &'a mut [i64],
}

impl<'a> LastUses<'a> {
    pub(crate) const fn scratch_words(limits: &Limits) -> usize {
        words::<i64>(limits.pieces).saturating_mul(3)
    }

    pub(crate) fn new(
        pieces: usize,
        never: i64,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        Ok(Self { any: scratch.take(2 * pieces, never)?, all: scratch.take(pieces, never)? })
    }

    /// Every use, to be moved in time.
    pub(crate) fn points(&mut self) -> impl Iterator<Item = &mut i64> {
        self.any.iter_mut().chain(&mut *self.all)
    }

    /// The last use of any piece of a range of the tensor that has the pieces `of`.
    pub(crate) fn last(&self, of: &Range<usize>, range: &Range<usize>) -> i64 {
        let mut last = i64::MIN;
        cover(of, range, |node| last = last.max(self.any[2 * of.start + node]));
        for node in ends(of, range).into_iter().flatten().flat_map(above) {
            last = last.max(self.all[of.start + node]);
        }
        last
    }

    /// Uses a range of the tensor that has the pieces `of`.
    pub(crate) fn note(&mut self, of: &Range<usize>, range: &Range<usize>, now: i64) {
        cover(of, range, |node| {
            self.any[2 * of.start + node] = now;
            if node < of.len() {
                self.all[of.start + node] = now;
            }
        });
        for node in ends(of, range).into_iter().flatten().flat_map(above) {
            self.any[2 * of.start + node] = now;
        }
    }
}

/// Flags of each piece.
#[derive(Debug)]
pub(crate) struct Flags<'a> {
    nodes: &'a mut [Node],
}

/// Flags that all pieces below a node have, and that any has; and what is still to be done to
/// the children: flags that they keep, and that are set then.
type Node = [u8; 4];

impl<'a> Flags<'a> {
    pub(crate) const fn scratch_words(limits: &Limits) -> usize {
        words::<Node>(limits.pieces.saturating_mul(2))
    }

    /// No piece has a flag.
    pub(crate) fn new(pieces: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        Ok(Self { nodes: scratch.take(2 * pieces, [0, 0, !0, 0])? })
    }

    /// The flags that all pieces of a range have, and those that any has, of the tensor that has
    /// the pieces `of`.
    pub(crate) fn look(&mut self, of: &Range<usize>, range: &Range<usize>) -> [u8; 2] {
        self.push_down(of, range);
        let mut seen = [!0, 0];
        cover(of, range, |node| {
            let [all, any, ..] = self.nodes[2 * of.start + node];
            seen = [seen[0] & all, seen[1] | any];
        });
        seen
    }

    /// Takes flags from all pieces of a range, then gives them others.
    pub(crate) fn change(&mut self, of: &Range<usize>, range: &Range<usize>, taken: u8, given: u8) {
        self.push_down(of, range);
        cover(of, range, |node| self.change_node(2 * of.start + node, !taken, given));
        for node in ends(of, range).into_iter().flatten().flat_map(above) {
            let [one, other] = [2 * node, 2 * node + 1].map(|child| 2 * of.start + child);
            let ([one, other], at) = ([self.nodes[one], self.nodes[other]], 2 * of.start + node);
            let [.., kept, set] = self.nodes[at];
            let [all, any] = [one[0] & other[0], one[1] | other[1]];
            self.nodes[at] = [all & kept | set, any & kept | set, kept, set];
        }
    }

    fn change_node(&mut self, at: usize, keep: u8, give: u8) {
        self.nodes[at] = {
            let [all, any, kept, set] = self.nodes[at];
            [all & keep | give, any & keep | give, kept & keep, set & keep | give]
        };
    }

    /// Does to the children what is still to be done, above the ends of a range.
    fn push_down(&mut self, of: &Range<usize>, range: &Range<usize>) {
        for leaf in ends(of, range).into_iter().flatten() {
            for height in (1..=leaf.checked_ilog2().unwrap_or(0)).rev() {
                let node = leaf >> height;
                let [.., kept, set] = self.nodes[2 * of.start + node];
                if (kept, set) != (!0, 0) {
                    self.change_node(2 * of.start + 2 * node, kept, set);
                    self.change_node(2 * of.start + 2 * node + 1, kept, set);
                    let [.., kept, set] = &mut self.nodes[2 * of.start + node];
                    (*kept, *set) = (!0, 0);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tensor, and a range of its pieces.
    fn any_range(seed: &mut u64) -> (Range<usize>, Range<usize>) {
        let mut draw = |below: usize| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (*seed >> 33) as usize % below
        };
        let of = [0..1, 1..6, 6..13, 13..21][draw(4)].clone();
        let start = of.start + draw(of.len());
        let end = start + 1 + draw(of.end - start);
        (of, start..end)
    }

    #[test]
    fn last_uses_agree_with_an_array() {
        let mut memory = [0; 63];
        let mut uses = LastUses::new(21, -1, &mut Scratch::new(&mut memory)).unwrap();
        let (mut plain, mut seed) = ([-1i64; 21], 1);
        for now in 0..2000 {
            let (of, range) = any_range(&mut seed);
            assert_eq!(uses.last(&of, &range), *plain[range].iter().max().unwrap());
            let (of, range) = any_range(&mut seed);
            uses.note(&of, &range, now);
            plain[range].fill(now);
        }
    }

    #[test]
    fn flags_agree_with_an_array() {
        let mut memory = [0; 21];
        let mut flags = Flags::new(21, &mut Scratch::new(&mut memory)).unwrap();
        let (mut plain, mut seed) = ([0u8; 21], 1);
        for step in 0..2000u32 {
            let (of, range) = any_range(&mut seed);
            let all = plain[range.clone()].iter().fold(!0, |all, flags| all & flags);
            let any = plain[range.clone()].iter().fold(0, |any, flags| any | flags);
            assert_eq!(flags.look(&of, &range), [all, any]);
            let (of, range) = any_range(&mut seed);
            let (taken, given) = ((step >> 3) as u8 & 7, step as u8 & 7);
            flags.change(&of, &range, taken, given);
            plain[range].iter_mut().for_each(|flags| *flags = *flags & !taken | given);
        }
    }
}
