//! A priority queue of small ids.

#![expect(
    clippy::indexing_slicing,
    reason = "positions are below `len`, which is at most the length of `entries`"
)]

use crate::scratch::{OutOfScratch, Scratch, words};

/// The entry with the least key is on top; entries with equal keys are ordered by id.
#[derive(Debug)]
pub(crate) struct Heap<'a> {
    entries: &'a mut [[u64; 2]],
    len: usize,
}

impl<'a> Heap<'a> {
    pub(crate) const fn scratch_words(capacity: usize) -> usize {
        words::<[u64; 2]>(capacity)
    }

    pub(crate) fn new(capacity: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        Ok(Self { entries: scratch.take(capacity, [0; 2])?, len: 0 })
    }

    /// Restores a heap whose entries lie in `entries`.
    #[cfg(feature = "baselines")]
    pub(crate) const fn holding(entries: &'a mut [[u64; 2]], len: usize) -> Self {
        Self { entries, len }
    }

    /// The number of entries.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Removes all entries.
    pub(crate) const fn clear(&mut self) {
        self.len = 0;
    }

    /// The least key, and its id.
    pub(crate) fn top(&self) -> Option<(u64, u32)> {
        let [key, id] = *self.entries[..self.len].first()?;
        Some((key, id as u32))
    }

    /// Adds an entry. Returns false if the heap is full.
    pub(crate) fn push(&mut self, key: u64, id: u32) -> bool {
        let Some(slot) = self.entries.get_mut(self.len) else { return false };
        *slot = [key, u64::from(id)];
        let mut at = self.len;
        self.len = self.len.saturating_add(1);
        while let Some(parent) = at.checked_sub(1).map(|before| before / 2) {
            if self.entries[at] >= self.entries[parent] {
                break;
            }
            self.entries.swap(at, parent);
            at = parent;
        }
        true
    }

    /// Removes the top entry.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`len` is above 0, and positions are at most twice those of a slice of pairs"
    )]
    pub(crate) fn pop(&mut self) -> Option<(u64, u32)> {
        let top = self.top()?;
        self.len -= 1;
        self.entries.swap(0, self.len);
        let mut at = 0;
        loop {
            let left = 2 * at + 1;
            if left >= self.len {
                return Some(top);
            }
            let right = left + 1;
            let smaller = right < self.len && self.entries[right] < self.entries[left];
            let child = if smaller { right } else { left };
            if self.entries[at] <= self.entries[child] {
                return Some(top);
            }
            self.entries.swap(at, child);
            at = child;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comes_out_sorted_and_refuses_when_full() {
        let mut memory = [0; 16];
        let mut heap = Heap::new(6, &mut Scratch::new(&mut memory)).unwrap();
        for (key, id) in [(5, 1), (2, 7), (9, 3), (2, 4), (7, 0), (1, 2)] {
            assert!(heap.push(key, id));
        }
        assert!(!heap.push(0, 0));
        let sorted: [_; 6] = core::array::from_fn(|_| heap.pop().unwrap());
        assert_eq!(sorted, [(1, 2), (2, 4), (2, 7), (5, 1), (7, 0), (9, 3)]);
        assert_eq!(heap.pop(), None);
    }
}
