//! What holds for ranges of a tensor's pieces. A step costs O(log pieces) however finely other
//! steps cut its tensor, where visiting each piece would make a list of n steps cost O(n^2).
//!
//! A tensor of many pieces has a binary tree over them: node 1 is the root, the children of node
//! `i` are `2i` and `2i + 1`, and its `n` pieces are the nodes from `n` on. What holds for all of
//! them is kept at the root. For a few pieces, each has its own: that takes less time than a tree.

use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use core::ops::Range;

/// Up to so many pieces are visited one by one. Measured, by `cargo bench --bench planning`.
const FEW: usize = 8;

const ROOT: usize = 1;

/// Some pieces of a tensor, in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Where the nodes of the tensor begin. Each piece takes two.
    first_node: usize,
    pieces: usize,
    /// The pieces of the span, counted from the tensor's first.
    from: usize,
    to: usize,
}

impl Span {
    /// A range of the pieces of a tensor that has the pieces `of`.
    #[inline]
    pub(crate) fn new(of: &Range<usize>, range: &Range<usize>) -> Self {
        debug_assert!(of.start <= range.start && range.end <= of.end, "pieces of this tensor");
        let (from, to) = (range.start - of.start, range.end - of.start);
        Self { first_node: 2 * of.start, pieces: of.len(), from, to }
    }

    /// All pieces of a tensor that has the pieces `of`.
    #[inline]
    pub(crate) fn whole(of: &Range<usize>) -> Self {
        Self { first_node: 2 * of.start, pieces: of.len(), from: 0, to: of.len() }
    }

    /// Whether a node is one piece.
    #[inline]
    pub(crate) const fn is_leaf(self, node: usize) -> bool {
        node >= self.pieces
    }

    #[inline]
    const fn is_few(self) -> bool {
        self.pieces <= FEW
    }

    #[inline]
    const fn is_whole(self) -> bool {
        self.to - self.from == self.pieces
    }

    /// Where a node is kept.
    #[inline]
    pub(crate) const fn slot(self, node: usize) -> usize {
        self.first_node + node
    }

    /// Where something is kept that only nodes with children have.
    #[inline]
    const fn inner_slot(self, node: usize) -> usize {
        self.first_node / 2 + node
    }

    /// The nodes that make up the span.
    #[inline]
    pub(crate) fn cover(self, mut visit: impl FnMut(usize)) {
        if self.is_few() {
            (self.from + self.pieces..self.to + self.pieces).for_each(visit);
        } else if self.is_whole() {
            visit(ROOT);
        } else {
            self.cover_part(&mut visit);
        }
    }

    #[cold]
    fn cover_part(self, visit: &mut impl FnMut(usize)) {
        let [mut left, mut right] = [self.from, self.to].map(|piece| piece + self.pieces);
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

    /// Whether there are nodes above those that make up the span.
    #[inline]
    const fn has_above(self) -> bool {
        !self.is_few() && !self.is_whole() && self.from < self.to
    }

    /// The nodes of the first and the last piece of a span that is not empty.
    const fn ends(self) -> [usize; 2] {
        [self.from + self.pieces, self.to - 1 + self.pieces]
    }

    /// The nodes above those that make up the span, each after all below it.
    #[inline]
    pub(crate) fn bottom_up(self, mut visit: impl FnMut(usize)) {
        if self.has_above() {
            self.climb(&mut visit);
        }
    }

    #[cold]
    fn climb(self, visit: &mut impl FnMut(usize)) {
        for mut node in self.ends() {
            while node > 1 {
                node /= 2;
                visit(node);
            }
        }
    }

    /// The same nodes, each before all below it.
    #[inline]
    pub(crate) fn top_down(self, mut visit: impl FnMut(usize)) {
        if self.has_above() {
            self.descend(&mut visit);
        }
    }

    #[cold]
    fn descend(self, visit: &mut impl FnMut(usize)) {
        for leaf in self.ends() {
            for height in (1..=leaf.ilog2()).rev() {
                visit(leaf >> height);
            }
        }
    }
}

/// When each piece was last used. Time does not run backwards.
#[derive(Debug)]
pub(crate) struct LastUses<'a> {
    /// The last use of any piece below each node, but for uses of all pieces below a higher one.
    /// The root has that of any piece, of a few ones too.
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

    /// The last use of any piece of a span.
    #[inline]
    pub(crate) fn last(&self, span: Span) -> i64 {
        if span.is_whole() { self.any[span.slot(ROOT)] } else { self.last_in_part(span) }
    }

    #[cold]
    fn last_in_part(&self, span: Span) -> i64 {
        let mut last = i64::MIN;
        span.cover(|node| last = last.max(self.any[span.slot(node)]));
        span.bottom_up(|node| last = last.max(self.all[span.inner_slot(node)]));
        last
    }

    /// Uses a span.
    #[inline]
    pub(crate) fn note(&mut self, span: Span, now: i64) {
        span.cover(|node| {
            self.any[span.slot(node)] = now;
            if !span.is_leaf(node) {
                self.all[span.inner_slot(node)] = now;
            }
        });
        span.bottom_up(|node| self.any[span.slot(node)] = now);
        self.any[span.slot(ROOT)] = now;
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

    /// The flags that all pieces of a span have, and those that any has.
    #[inline]
    pub(crate) fn look(&mut self, span: Span) -> [u8; 2] {
        self.push_down(span);
        let mut seen = [!0, 0];
        span.cover(|node| {
            let [all, any, ..] = self.nodes[span.slot(node)];
            seen = [seen[0] & all, seen[1] | any];
        });
        seen
    }

    /// Takes flags from all pieces of a span, then gives them others.
    #[inline]
    pub(crate) fn change(&mut self, span: Span, taken: u8, given: u8) {
        self.push_down(span);
        span.cover(|node| self.change_node(span.slot(node), !taken, given));
        span.bottom_up(|node| {
            let [one, other] = [2 * node, 2 * node + 1].map(|child| self.nodes[span.slot(child)]);
            let at = span.slot(node);
            let [.., kept, set] = self.nodes[at];
            let [all, any] = [one[0] & other[0], one[1] | other[1]];
            self.nodes[at] = [all & kept | set, any & kept | set, kept, set];
        });
    }

    fn change_node(&mut self, at: usize, keep: u8, give: u8) {
        self.nodes[at] = {
            let [all, any, kept, set] = self.nodes[at];
            [all & keep | give, any & keep | give, kept & keep, set & keep | give]
        };
    }

    /// Does to the children what is still to be done, above a span.
    #[inline]
    fn push_down(&mut self, span: Span) {
        span.top_down(|node| {
            let [.., kept, set] = self.nodes[span.slot(node)];
            if (kept, set) != (!0, 0) {
                self.change_node(span.slot(2 * node), kept, set);
                self.change_node(span.slot(2 * node + 1), kept, set);
                let [.., kept, set] = &mut self.nodes[span.slot(node)];
                (*kept, *set) = (!0, 0);
            }
        });
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
        let of = [0..1, 1..9, 9..18, 18..39][draw(4)].clone();
        let start = of.start + draw(of.len());
        let end = start + 1 + draw(of.end - start);
        (of, start..end)
    }

    #[test]
    fn last_uses_agree_with_an_array() {
        let mut memory = [0; 3 * 39];
        let mut uses = LastUses::new(39, -1, &mut Scratch::new(&mut memory)).unwrap();
        let (mut plain, mut seed) = ([-1i64; 39], 1);
        for now in 0..5000 {
            let (of, range) = any_range(&mut seed);
            assert_eq!(uses.last(Span::new(&of, &range)), *plain[range].iter().max().unwrap());
            let (of, range) = any_range(&mut seed);
            uses.note(Span::new(&of, &range), now);
            plain[range].fill(now);
        }
    }

    #[test]
    fn flags_agree_with_an_array() {
        let mut memory = [0; 39];
        let mut flags = Flags::new(39, &mut Scratch::new(&mut memory)).unwrap();
        let (mut plain, mut seed) = ([0u8; 39], 1);
        for step in 0..5000u32 {
            let (of, range) = any_range(&mut seed);
            let all = plain[range.clone()].iter().fold(!0, |all, flags| all & flags);
            let any = plain[range.clone()].iter().fold(0, |any, flags| any | flags);
            assert_eq!(flags.look(Span::new(&of, &range)), [all, any]);
            let (of, range) = any_range(&mut seed);
            let (taken, given) = ((step >> 3) as u8 & 7, step as u8 & 7);
            flags.change(Span::new(&of, &range), taken, given);
            plain[range].iter_mut().for_each(|flags| *flags = *flags & !taken | given);
        }
    }
}
