//! A segment tree over positions: adds to a range, and finds the minimum of a range.

#![expect(
    clippy::indexing_slicing,
    reason = "positions are below `leaves`, and nodes below twice as many"
)]

use crate::scratch::{OutOfScratch, Scratch, words};

/// Values by position. Both operations are O(log n).
#[derive(Debug)]
pub(super) struct MinTree<'a> {
    /// The least value below each node, less the values of all nodes above it. The smaller of two
    /// siblings is 0.
    nodes: &'a mut [i64],
    leaves: usize,
}

impl<'a> MinTree<'a> {
    pub(super) const fn scratch_words(positions: usize) -> usize {
        match positions.checked_next_power_of_two() {
            Some(leaves) => words::<i64>(leaves.saturating_mul(2)),
            None => usize::MAX,
        }
    }

    /// Creates a tree of values.
    pub(super) fn new(
        values: impl ExactSizeIterator<Item = i64>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let leaves = values.len().next_power_of_two();
        let nodes = scratch.take(leaves.saturating_mul(2), 0i64)?;
        nodes[leaves..].fill(i64::MAX / 2);
        for (leaf, value) in nodes[leaves..].iter_mut().zip(values) {
            *leaf = value;
        }
        let mut tree = Self { nodes, leaves };
        for parent in (1..leaves).rev() {
            tree.raise(parent << 1, 0);
        }
        Ok(tree)
    }

    /// Adds to the values at `from..to`.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "positions are below `leaves`, and `nodes` holds twice as many numbers"
    )]
    pub(super) fn add(&mut self, from: usize, to: usize, value: i64) {
        debug_assert!(to <= self.leaves, "the positions are those of the tree");
        if from >= to || value == 0 {
            return;
        }
        let (mut left, mut right) = (from + self.leaves, to - 1 + self.leaves);
        self.nodes[left] = self.nodes[left].saturating_add(value);
        if left != right {
            self.nodes[right] = self.nodes[right].saturating_add(value);
        }
        // Goes up from both ends until they are one node or two neighbours. Values instead of
        // branches, since no processor predicts these.
        while left ^ right > 1 {
            self.raise(left, if left & 1 == 0 { value } else { 0 });
            self.raise(right, if right & 1 == 1 { value } else { 0 });
            (left, right) = (left >> 1, right >> 1);
        }
        while left > 1 && self.raise(left, 0) {
            left >>= 1;
        }
    }

    /// Subtracts from the values at `from..to`.
    pub(super) fn subtract(&mut self, from: usize, to: usize, value: u64) {
        self.add(from, to, (value as i64).saturating_neg());
    }

    /// Sets the value at a position.
    pub(super) fn set(&mut self, position: usize, value: i64) {
        let change = value.saturating_sub(self.at(position));
        self.add(position, position.saturating_add(1), change);
    }

    /// Adds to the sibling of a node, and moves the smaller value of the two to their parent. Returns
    /// whether it was not 0.
    fn raise(&mut self, node: usize, sibling_value: i64) -> bool {
        let (value, sibling) =
            (self.nodes[node], self.nodes[node ^ 1].saturating_add(sibling_value));
        let below = value.min(sibling);
        self.nodes[node] = value.saturating_sub(below);
        self.nodes[node ^ 1] = sibling.saturating_sub(below);
        self.nodes[node >> 1] = self.nodes[node >> 1].saturating_add(below);
        below != 0
    }

    /// The least value at `from..to`; a very large one if the range is empty.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "positions are below `leaves`, and `nodes` holds twice as many numbers"
    )]
    pub(super) fn min(&self, from: usize, to: usize) -> i64 {
        if from >= to {
            return i64::MAX / 2;
        }
        // Goes up from both ends until they are one node or two neighbours.
        let (mut left, mut right) = (from + self.leaves, to - 1 + self.leaves);
        let (mut least_left, mut least_right) = (self.nodes[left], self.nodes[right]);
        while left ^ right > 1 {
            let (beside_left, beside_right) = (self.nodes[left ^ 1], self.nodes[right ^ 1]);
            least_left = least_left.min(beside_left | if_odd(left));
            least_right = least_right.min(beside_right | if_odd(right ^ 1));
            (left, right) = (left >> 1, right >> 1);
            least_left = least_left.saturating_add(self.nodes[left]);
            least_right = least_right.saturating_add(self.nodes[right]);
        }
        let mut least = least_left.min(least_right);
        while left > 1 {
            left >>= 1;
            least = least.saturating_add(self.nodes[left]);
        }
        least
    }

    /// The value at a position.
    pub(super) fn at(&self, position: usize) -> i64 {
        self.min(position, position.saturating_add(1))
    }

    /// The least of all values.
    pub(super) fn least(&self) -> i64 {
        self.nodes[1]
    }
}

/// `i64::MAX` for an odd node, else 0. An arithmetic form, since compilers turn a choice into a branch
/// that no processor predicts.
const fn if_odd(node: usize) -> i64 {
    i64::MAX.saturating_mul((node & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_an_array() {
        let mut memory = [0; 64];
        let mut plain = [5i64, -3, 8, 0, 2, 7, -9, 4, 1];
        let mut tree = MinTree::new(plain.iter().copied(), &mut Scratch::new(&mut memory)).unwrap();
        let mut seed = 1u64;
        for _ in 0..500 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (from, to) = ((seed >> 33) as usize % 10, (seed >> 40) as usize % 10);
            let value = (seed >> 50) as i64 % 11 - 5;
            if from < to {
                tree.add(from, to, value);
                plain[from..to].iter_mut().for_each(|slot| *slot += value);
                assert_eq!(tree.min(from, to), *plain[from..to].iter().min().unwrap());
            }
            assert_eq!(tree.least(), *plain.iter().min().unwrap());
        }
    }
}
