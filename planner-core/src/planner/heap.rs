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
    pub(crate) fn pop(&mut self) -> Option<(u64, u32)> {
        let top = self.top()?;
        self.change_top(None);
        Some(top)
    }

    /// Gives the top entry another key, or removes it if there is none. Does nothing if the heap is empty.
    /// Takes less time than to remove the entry and to add it again.
    pub(crate) fn change_top(&mut self, key: Option<u64>) {
        let Some(last) = self.len.checked_sub(1) else { return };
        let entry = match key {
            Some(key) => [key, self.entries[0][1]],
            None => {
                self.len = last;
                self.entries[last]
            }
        };
        self.sink(entry);
    }

    /// Whether another entry than the top one has a key below this key.
    pub(crate) fn has_other_below(&self, key: u64) -> bool {
        self.entries[..self.len].iter().skip(1).take(2).any(|&[child, _]| child < key)
    }

    /// Puts an entry in the place of the top one, and moves it down until no entry below it is less.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "positions are at most twice the positions of a slice of pairs"
    )]
    fn sink(&mut self, entry: [u64; 2]) {
        let mut at = 0;
        loop {
            let left = 2 * at + 1;
            if left >= self.len {
                break;
            }
            // Added instead of chosen, since no processor predicts this branch.
            let right = (left + 1).min(self.len - 1);
            let child = left + usize::from(is_less(self.entries[right], self.entries[left]));
            if !is_less(self.entries[child], entry) {
                break;
            }
            self.entries[at] = self.entries[child];
            at = child;
        }
        if let Some(slot) = self.entries.get_mut(at) {
            *slot = entry;
        }
    }
}

/// Whether an entry is less than another: by its key, then by its id. Compared as one number.
const fn is_less(one: [u64; 2], other: [u64; 2]) -> bool {
    const fn number([key, id]: [u64; 2]) -> u128 {
        (key as u128) << u64::BITS | id as u128
    }
    number(one) < number(other)
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

    #[test]
    fn a_changed_top_entry_finds_its_place() {
        let mut memory = [0; 16];
        let mut heap = Heap::new(6, &mut Scratch::new(&mut memory)).unwrap();
        heap.change_top(Some(1));
        assert_eq!(heap.pop(), None, "an empty heap has no top entry");
        heap.push(3, 0);
        assert!(!heap.has_other_below(u64::MAX));
        for (key, id) in [(5, 1), (4, 2), (8, 3), (6, 4), (7, 5)] {
            heap.push(key, id);
        }
        assert!(heap.has_other_below(5) && !heap.has_other_below(4));
        heap.change_top(Some(7));
        assert_eq!(heap.top(), Some((4, 2)));
        heap.change_top(None);
        let sorted: [_; 5] = core::array::from_fn(|_| heap.pop().unwrap());
        assert_eq!(sorted, [(5, 1), (6, 4), (7, 0), (7, 5), (8, 3)]);
        assert_eq!(heap.pop(), None);
    }
}
