//! Segment trees over ranges of a tensor's pieces. A step costs O(log pieces), however finely other
//! steps cut its tensor; if each step visited all pieces, a list of n steps would cost O(n^2).
//!
//! A tensor of many pieces has a binary tree over them: node 1 is the root, the children of node
//! `i` are `2i` and `2i + 1`, and its `n` pieces are the nodes from `n` on. A value that holds for
//! all pieces is stored at the root. If a tensor has only a few pieces, each stores its own value,
//! which takes less time than a tree.

#![expect(
    clippy::indexing_slicing,
    reason = "nodes of a span lie in the tree of its tensor, which has two nodes for each piece"
)]

use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use core::ops::Range;

/// Up to this number, pieces are visited one by one. Measured by `cargo bench --bench planning`.
const FEW: usize = 8;

const ROOT: usize = 1;

/// The nodes below a node.
#[inline]
pub(crate) const fn children(node: usize) -> [usize; 2] {
    [node << 1, node << 1 | 1]
}

/// Consecutive pieces of a tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// The index of the tensor's first node. Each piece has two nodes.
    first_node: usize,
    pieces: usize,
    /// The pieces of the span, counted from the tensor's first piece.
    from: usize,
    to: usize,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "`from <= to <= pieces`, and nodes are positions in arrays with two for each piece"
)]
impl Span {
    /// A range of the pieces `of` a tensor.
    #[inline]
    pub(crate) fn new(of: &Range<usize>, range: &Range<usize>) -> Self {
        debug_assert!(of.start <= range.start && range.end <= of.end, "pieces of this tensor");
        let (from, to) = (range.start - of.start, range.end - of.start);
        Self { first_node: 2 * of.start, pieces: of.len(), from, to }
    }

    /// All pieces `of` a tensor.
    #[inline]
    pub(crate) fn whole(of: &Range<usize>) -> Self {
        Self { first_node: 2 * of.start, pieces: of.len(), from: 0, to: of.len() }
    }

    /// Whether a node is a single piece.
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

    /// The index of a node.
    #[inline]
    pub(crate) const fn slot(self, node: usize) -> usize {
        self.first_node + node
    }

    /// The index of a value that only nodes with children have.
    #[inline]
    const fn inner_slot(self, node: usize) -> usize {
        self.first_node / 2 + node
    }

    /// Visits the nodes that make up the span.
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

    /// Whether there are nodes above the nodes that make up the span.
    #[inline]
    const fn has_above(self) -> bool {
        !self.is_few() && !self.is_whole() && self.from < self.to
    }

    /// The nodes of the first and the last piece of a non-empty span.
    const fn ends(self) -> [usize; 2] {
        [self.from + self.pieces, self.to - 1 + self.pieces]
    }

    /// Visits the nodes above the nodes of the span, each after all nodes below it.
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

    /// Visits the same nodes, each before all nodes below it.
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

/// The time of the last use of each piece. Times must not decrease.
#[derive(Debug)]
pub(crate) struct LastUses<'a> {
    /// The last use of any piece below each node, except uses of all pieces below a higher node.
    /// The root always has the last use of any piece, also for few pieces.
    any: &'a mut [i64],
    /// The last use of all pieces below each node with children.
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
        Ok(Self {
            any: scratch.take(pieces.saturating_mul(2), never)?,
            all: scratch.take(pieces, never)?,
        })
    }

    /// All recorded times, for shifting them.
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

    /// Records a use of all pieces of a span.
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

/// The flags that all pieces below a node have, and that any piece has; and the pending change of
/// the children: the flags that they keep, and the flags that are set after that.
type Node = [u8; 4];

impl<'a> Flags<'a> {
    pub(crate) const fn scratch_words(limits: &Limits) -> usize {
        words::<Node>(limits.pieces.saturating_mul(2))
    }

    /// Creates the trees. No piece has a flag.
    pub(crate) fn new(pieces: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        Ok(Self { nodes: scratch.take(pieces.saturating_mul(2), [0, 0, !0, 0])? })
    }

    /// The flags that all pieces of a span have, and the flags that any piece has.
    #[inline]
    pub(crate) fn query(&mut self, span: Span) -> [u8; 2] {
        self.push_down(span);
        let mut seen = [!0, 0];
        span.cover(|node| {
            let [all, any, ..] = self.nodes[span.slot(node)];
            seen = [seen[0] & all, seen[1] | any];
        });
        seen
    }

    /// Removes flags from all pieces of a span, then adds others.
    #[inline]
    pub(crate) fn change(&mut self, span: Span, taken: u8, given: u8) {
        self.push_down(span);
        span.cover(|node| self.change_node(span.slot(node), !taken, given));
        span.bottom_up(|node| {
            let [one, other] = children(node).map(|child| self.nodes[span.slot(child)]);
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

    /// Applies the pending changes of all nodes above a span to their children.
    #[inline]
    fn push_down(&mut self, span: Span) {
        span.top_down(|node| {
            let [.., kept, set] = self.nodes[span.slot(node)];
            if (kept, set) != (!0, 0) {
                for child in children(node) {
                    self.change_node(span.slot(child), kept, set);
                }
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
            assert_eq!(flags.query(Span::new(&of, &range)), [all, any]);
            let (of, range) = any_range(&mut seed);
            let (taken, given) = ((step >> 3) as u8 & 7, step as u8 & 7);
            flags.change(Span::new(&of, &range), taken, given);
            plain[range].iter_mut().for_each(|flags| *flags = *flags & !taken | given);
        }
    }
}
