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
        for node in (1..leaves).rev() {
            tree.rebuild_node(node);
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
        let (mut left, mut right) = (from + self.leaves, to + self.leaves);
        let (first, last) = (left, right - 1);
        while left < right {
            if left & 1 == 1 {
                self.nodes[left] = self.nodes[left].saturating_add(value);
                left += 1;
            }
            if right & 1 == 1 {
                right -= 1;
                self.nodes[right] = self.nodes[right].saturating_add(value);
            }
            left >>= 1;
            right >>= 1;
        }
        self.rebuild(first, last);
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

    /// Updates the nodes above two leaves.
    fn rebuild(&mut self, first: usize, last: usize) {
        let (mut left, mut right) = (first >> 1, last >> 1);
        while left != right {
            self.rebuild_node(left);
            self.rebuild_node(right);
            (left, right) = (left >> 1, right >> 1);
        }
        // The node where both ends meet may have been added to, which its children do not show.
        let meeting = left;
        while left > 0 && (self.rebuild_node(left) || left == meeting) {
            left >>= 1;
        }
    }

    /// Moves the smaller value of two siblings to their parent. Returns whether it was not 0.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "nodes with children are below `leaves`, and `nodes` holds twice as many numbers"
    )]
    fn rebuild_node(&mut self, node: usize) -> bool {
        let below = self.nodes[2 * node].min(self.nodes[2 * node + 1]);
        if below == 0 {
            return false;
        }
        for child in &mut self.nodes[2 * node..2 * node + 2] {
            *child = child.saturating_sub(below);
        }
        self.nodes[node] = self.nodes[node].saturating_add(below);
        true
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
            if left & 1 == 0 {
                least_left = least_left.min(self.nodes[left + 1]);
            }
            if right & 1 == 1 {
                least_right = least_right.min(self.nodes[right - 1]);
            }
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
