//! A queue of tensors from which any of them can be taken at once.

use crate::graph::TensorId;
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

const NONE: u32 = u32::MAX;
/// Not in the queue; NONE marks an end of it.
const OUT: u32 = u32::MAX - 1;

/// A doubly linked list over tensor ids: every operation is O(1).
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

    /// The tensor that entered after another one.
    pub(super) fn next(&self, tensor: TensorId) -> Option<TensorId> {
        let after = self.after[tensor.index()];
        (after < OUT).then_some(TensorId(after))
    }

    /// Takes a tensor out, if it is in.
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

    /// Puts a tensor at the back, wherever it was.
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
