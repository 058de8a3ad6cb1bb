//! The next use of each tensor, in the cyclic sequence of ops.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors and slots are those of the sequence, and the arrays have an entry for each"
)]

use crate::graph::TensorId;
use crate::plan::PlanError;
use crate::scratch::{Limits, Scratch, total, words};
use crate::sequence::{LaunchId, Sequence};

/// The next op that uses a tensor within the iteration, and whether it reads the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Use(pub(super) u32);

impl Use {
    /// No op uses the tensor before the iteration ends.
    pub(super) const NONE: Self = Self(u32::MAX);

    const fn new(op: LaunchId, reads: bool) -> Self {
        Self(op.0 << 1 | reads as u32)
    }

    /// Whether there is no next use.
    pub(super) fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The op, if there is a next use.
    pub(super) fn op(self) -> Option<LaunchId> {
        (!self.is_none()).then_some(LaunchId(self.0 >> 1))
    }

    /// Whether the op reads the tensor's value.
    pub(super) fn reads(self) -> bool {
        !self.is_none() && self.0 & 1 == 1
    }
}

/// The uses of all tensors.
#[derive(Debug)]
pub(super) struct Uses<'a> {
    /// The use after the use of each operand.
    next: &'a mut [u32],
    /// The first use of each tensor.
    first: &'a mut [u32],
    /// The last op that reads each tensor.
    last_read: &'a mut [u32],
    /// The last op that writes each tensor, without repeats.
    last_write: &'a mut [u32],
}

impl<'a> Uses<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([words::<u32>(limits.operands), words::<u32>(limits.tensors).saturating_mul(3)])
    }

    /// Walks the ops backwards. O(operands).
    pub(super) fn new(
        sequence: &Sequence<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        if sequence.len() > (u32::MAX >> 1) as usize {
            return Err(PlanError::TooManySteps);
        }
        let tensors = sequence.tensors().len();
        let none = Use::NONE.0;
        let next = scratch.take(sequence.operands().len(), none)?;
        let first = scratch.take(tensors, none)?;
        let last_read = scratch.take(tensors, none)?;
        let last_write = scratch.take(tensors, none)?;
        for op in sequence.launches().rev() {
            let operands = sequence.first_slot(op);
            for (slot, &tensor) in (operands..).zip(sequence.operands_of(op)) {
                next[slot] = first[tensor.index()];
            }
            for &tensor in sequence.writes(op) {
                first[tensor.index()] = Use::new(op, false).0;
                let last = &mut last_write[tensor.index()];
                // A repeat writes a value that the host has already read by then.
                let is_last = *last == none && !sequence.launched(op).is_repeat;
                *last = if is_last { op.0 } else { *last };
            }
            for &tensor in sequence.reads(op) {
                first[tensor.index()] = Use::new(op, true).0;
                let last = &mut last_read[tensor.index()];
                *last = if *last == none { op.0 } else { *last };
            }
        }
        Ok(Self { next, first, last_read, last_write })
    }

    /// The first use of a tensor in an iteration.
    pub(super) fn first(&self, tensor: TensorId) -> Use {
        Use(self.first[tensor.index()])
    }

    /// The use after the use of an operand, given by its slot.
    pub(super) fn next(&self, operand: usize) -> Use {
        Use(self.next[operand])
    }

    /// Whether an op reads the tensor, but no op after this one does. Then, for an input, the host
    /// holds the next iteration's value, whatever is written on the device.
    pub(super) fn is_read_out(&self, tensor: TensorId, op: LaunchId) -> bool {
        self.last_read[tensor.index()] <= op.0
    }

    /// Whether any op writes a tensor.
    pub(super) fn is_written(&self, tensor: TensorId) -> bool {
        self.last_write[tensor.index()] != Use::NONE.0
    }

    /// Whether an op writes the last value of a tensor in the iteration.
    pub(super) fn is_last_write(&self, tensor: TensorId, op: LaunchId) -> bool {
        self.last_write[tensor.index()] == op.0
    }
}
