//! The tensors on the device, by last use and by next use.

#![expect(
    clippy::indexing_slicing,
    reason = "rings have an entry for each tensor and class, and entries of a class lie between \
              its starts"
)]

use super::Classes;
use crate::graph::TensorId;
use crate::planner::heap::Heap;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::Sequence;

/// The tensors of each class on the device, least recently used first. Each class is a ring, closed
/// by an entry after the entries of tensors.
pub(super) struct Recent<'a> {
    before: &'a mut [u32],
    after: &'a mut [u32],
    /// The first tensor of each class that has not been moved to [`Unused`] yet.
    fresh: &'a mut [u32],
    tensors: usize,
}

impl<'a> Recent<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.tensors.saturating_add(limits.pools))
            .saturating_mul(2)
            .saturating_add(words::<u32>(limits.pools))
    }

    pub(super) fn new(
        tensors: usize,
        classes: usize,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let entries = tensors.saturating_add(classes);
        let before = scratch.take(entries, 0u32)?;
        let after = scratch.take(entries, 0u32)?;
        Ok(Self { before, after, fresh: scratch.take(classes, 0u32)?, tensors })
    }

    pub(super) fn clear(&mut self) {
        for class in 0..self.fresh.len() {
            let end = self.end(class);
            self.fresh[class] = end as u32;
            (self.before[end], self.after[end]) = (end as u32, end as u32);
        }
    }

    /// The entry at the end of the list of a class.
    const fn end(&self, class: usize) -> usize {
        self.tensors.saturating_add(class)
    }

    pub(super) fn push(&mut self, class: usize, tensor: TensorId) {
        let end = self.end(class);
        let last = core::mem::replace(&mut self.before[end], tensor.0);
        self.after[last as usize] = tensor.0;
        self.before[tensor.index()] = last;
        self.after[tensor.index()] = end as u32;
        if self.fresh[class] == end as u32 {
            self.fresh[class] = tensor.0;
        }
    }

    pub(super) fn remove(&mut self, class: usize, tensor: TensorId) {
        let (before, after) = (self.before[tensor.index()], self.after[tensor.index()]);
        self.after[before as usize] = after;
        self.before[after as usize] = before;
        if self.fresh[class] == tensor.0 {
            self.fresh[class] = after;
        }
    }

    pub(super) fn of(&self, class: usize) -> impl Iterator<Item = TensorId> {
        let next = |at: u32| self.after[at as usize];
        let tensor = |&at: &u32| (at as usize) < self.tensors;
        let first = Some(next(self.end(class) as u32)).filter(tensor);
        core::iter::successors(first, move |&at| Some(next(at)).filter(tensor)).map(TensorId)
    }

    /// The first tensor that has not been moved to [`Unused`] yet, if it has been unused for a
    /// threshold of time by now.
    pub(super) fn next_unused(
        &mut self,
        class: usize,
        has_rested: impl FnOnce(TensorId) -> bool,
    ) -> Option<TensorId> {
        let fresh = self.fresh[class];
        let tensor = TensorId(fresh);
        let rests = (fresh as usize) < self.tensors && has_rested(tensor);
        rests.then(|| {
            self.fresh[class] = self.after[tensor.index()];
            tensor
        })
    }
}

/// The tensors of each class that have not been used for a threshold of time. The tensor whose next
/// use is last is on top. Outdated entries of tensors that were used since, or evicted, remain.
#[derive(Default)]
pub(super) struct Unused<'a> {
    entries: &'a mut [[u64; 2]],
    /// The index at which the entries of each class begin, and at the end the number of entries.
    start: &'a mut [u32],
    len: &'a mut [u32],
}

impl<'a> Unused<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<[u64; 2]>(limits.operands.saturating_add(limits.tensors)),
            words::<u32>(limits.pools.saturating_add(1)),
            words::<u32>(limits.pools),
        ])
    }

    /// Has room for one entry for each use, and one for each tensor resident at the start.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "operands and tensors are numbered in 31 bits each, and `start` has an entry for \
                  each class and one more"
    )]
    pub(super) fn new(
        sequence: &Sequence<'_>,
        classes: &Classes<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let pools = classes.pools.len();
        let most = sequence.operands().len() + sequence.tensors().len();
        let rested = Self {
            entries: scratch.take(most, [0; 2])?,
            start: scratch.take(pools + 1, 0u32)?,
            len: scratch.take(pools, 0u32)?,
        };
        for tensor in sequence.operands().iter().copied().chain(sequence.tensor_ids()) {
            rested.start[classes.of_tensor(tensor) + 1] += 1;
        }
        for class in 0..pools {
            rested.start[class + 1] += rested.start[class];
        }
        Ok(rested)
    }

    pub(super) fn clear(&mut self) {
        self.len.fill(0);
    }

    /// Calls a function with the heap of a class.
    pub(super) fn with<T>(&mut self, class: usize, then: impl FnOnce(&mut Heap<'_>) -> T) -> T {
        let [from, to] = [class, class.saturating_add(1)].map(|class| self.start[class] as usize);
        let mut heap = Heap::holding(&mut self.entries[from..to], self.len[class] as usize);
        let result = then(&mut heap);
        self.len[class] = heap.len() as u32;
        result
    }
}
