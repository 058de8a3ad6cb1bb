//! A segment tree over positions: adds to a range, and finds the minimum of a range.

#![expect(
    clippy::indexing_slicing,
    reason = "positions are below `leaves`, and nodes below twice as many"
)]

use crate::scratch::{OutOfScratch, Scratch, words};

/// Values by position. Both operations are O(log n).
#[derive(Debug)]
pub(super) struct MinTree<'a> {
    /// The least value below each node, without additions to nodes above it.
    least: &'a mut [i64],
    /// The sum that was added to everything below each node.
    added: &'a mut [i64],
    leaves: usize,
}

impl<'a> MinTree<'a> {
    pub(super) const fn scratch_words(positions: usize) -> usize {
        match positions.checked_next_power_of_two() {
            Some(leaves) => words::<i64>(leaves.saturating_mul(2)).saturating_mul(2),
            None => usize::MAX,
        }
    }

    /// Creates a tree of values.
    pub(super) fn new(
        values: impl ExactSizeIterator<Item = i64>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let leaves = values.len().next_power_of_two();
        let least = scratch.take(2 * leaves, i64::MAX / 2)?;
        let added = scratch.take(2 * leaves, 0i64)?;
        for (leaf, value) in least[leaves..].iter_mut().zip(values) {
            *leaf = value;
        }
        for node in (1..leaves).rev() {
            least[node] = least[2 * node].min(least[2 * node + 1]);
        }
        Ok(Self { least, added, leaves })
    }

    /// Adds to the values at `from..to`.
    pub(super) fn add(&mut self, from: usize, to: usize, value: i64) {
        debug_assert!(to <= self.leaves, "the positions are those of the tree");
        if from >= to || value == 0 {
            return;
        }
        let (mut left, mut right) = (from + self.leaves, to + self.leaves);
        let (first, last) = (left, right - 1);
        while left < right {
            if left & 1 == 1 {
                self.add_node(left, value);
                left += 1;
            }
            if right & 1 == 1 {
                right -= 1;
                self.add_node(right, value);
            }
            left >>= 1;
            right >>= 1;
        }
        self.rebuild(first, last);
    }

    fn add_node(&mut self, node: usize, value: i64) {
        self.least[node] = self.least[node].saturating_add(value);
        if node < self.leaves {
            self.added[node] = self.added[node].saturating_add(value);
        }
    }

    /// Updates the nodes above two leaves.
    fn rebuild(&mut self, first: usize, last: usize) {
        let (mut left, mut right) = (first >> 1, last >> 1);
        while left != right {
            self.rebuild_node(left);
            self.rebuild_node(right);
            (left, right) = (left >> 1, right >> 1);
        }
        // The node where both ends meet may have been added to, so that it does not change here.
        let meeting = left;
        while left > 0 && (self.rebuild_node(left) || left == meeting) {
            left >>= 1;
        }
    }

    /// Returns whether the node has changed.
    fn rebuild_node(&mut self, node: usize) -> bool {
        let below = self.least[2 * node].min(self.least[2 * node + 1]);
        let least = below.saturating_add(self.added[node]);
        core::mem::replace(&mut self.least[node], least) != least
    }

    /// The least value at `from..to`; a very large one if the range is empty.
    pub(super) fn min(&self, from: usize, to: usize) -> i64 {
        if from >= to {
            return i64::MAX / 2;
        }
        // Goes up from both ends until they are one node or two neighbours.
        let (mut left, mut right) = (from + self.leaves, to - 1 + self.leaves);
        let (mut least_left, mut least_right) = (self.least[left], self.least[right]);
        while left ^ right > 1 {
            if left & 1 == 0 {
                least_left = least_left.min(self.least[left + 1]);
            }
            if right & 1 == 1 {
                least_right = least_right.min(self.least[right - 1]);
            }
            (left, right) = (left >> 1, right >> 1);
            least_left = least_left.saturating_add(self.added[left]);
            least_right = least_right.saturating_add(self.added[right]);
        }
        let mut least = least_left.min(least_right);
        while left > 1 {
            left >>= 1;
            least = least.saturating_add(self.added[left]);
        }
        least
    }

    /// The least of all values.
    pub(super) fn least(&self) -> i64 {
        self.least[1]
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
