//! A queue of tensors that supports removal of any tensor.

#![expect(
    clippy::indexing_slicing,
    reason = "tensor ids are those of the sequence, and the arrays have an entry for each"
)]

use crate::graph::TensorId;
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

const NONE: u32 = u32::MAX;
/// The tensor is not in the queue. [`NONE`] marks an end of the queue.
const OUT: u32 = u32::MAX - 1;

/// A doubly linked list over tensor ids. Every operation is O(1).
#[derive(Debug)]
pub(super) struct Queue<'a> {
    before: &'a mut [u32],
    after: &'a mut [u32],
    front: u32,
    back: u32,
}

impl<'a> Queue<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.tensors).saturating_mul(2)
    }

    /// An empty queue for this many tensors.
    pub(super) fn new(tensors: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let before = scratch.take(tensors, OUT)?;
        let after = scratch.take(tensors, OUT)?;
        Ok(Self { before, after, front: NONE, back: NONE })
    }

    /// The tensor that has been in the queue for longest.
    pub(super) fn front(&self) -> Option<TensorId> {
        (self.front != NONE).then_some(TensorId(self.front))
    }

    /// The tensor after another one in the queue.
    pub(super) fn next(&self, tensor: TensorId) -> Option<TensorId> {
        let after = self.after[tensor.index()];
        (after < OUT).then_some(TensorId(after))
    }

    /// Removes a tensor, if it is in the queue.
    pub(super) fn remove(&mut self, tensor: TensorId) {
        let (before, after) = (self.before[tensor.index()], self.after[tensor.index()]);
        if before == OUT {
            return;
        }
        match before {
            NONE => self.front = after,
            before => self.after[before as usize] = after,
        }
        match after {
            NONE => self.back = before,
            after => self.before[after as usize] = before,
        }
        self.before[tensor.index()] = OUT;
        self.after[tensor.index()] = OUT;
    }

    /// Moves a tensor to the back, or adds it there.
    pub(super) fn push(&mut self, tensor: TensorId) {
        self.remove(tensor);
        self.before[tensor.index()] = self.back;
        self.after[tensor.index()] = NONE;
        match self.back {
            NONE => self.front = tensor.0,
            back => self.after[back as usize] = tensor.0,
        }
        self.back = tensor.0;
    }
}
