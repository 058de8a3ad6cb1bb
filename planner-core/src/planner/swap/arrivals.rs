//! The prefetches of an iteration.

#![expect(
    clippy::indexing_slicing,
    reason = "arrivals are below the number of operands, and classes are those of the tables that \
              `check` has checked"
)]

use super::Classes;
use super::belady::{AfterUse, Choice};
use crate::graph::TensorId;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::Sequence;

/// No arrival.
pub(super) const NONE: u32 = u32::MAX;

/// The tensors to prefetch in an iteration, in the order of need.
pub(super) struct Arrivals<'a> {
    pub(super) tensor: &'a mut [u32],
    /// The number of the allocation in its class, counted from 1.
    pub(super) number: &'a mut [u64],
    /// The next arrival in the same class.
    pub(super) next: &'a mut [u32],
    /// The first arrival in each class.
    pub(super) first: &'a mut [u32],
    len: usize,
}

impl<'a> Arrivals<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u32>(limits.operands).saturating_mul(2),
            words::<u64>(limits.operands),
            words::<u32>(limits.pools).saturating_mul(2),
            words::<u64>(limits.pools),
        ])
    }

    /// Finds the arrivals by following residency. O(operands).
    pub(super) fn new(
        sequence: &Sequence<'_>,
        classes: &Classes<'_>,
        choice: &Choice<'_>,
        present: &mut [u8],
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let (operands, pools) = (sequence.operands().len(), classes.pools.len());
        let mut arrivals = Self {
            tensor: scratch.take(operands, 0u32)?,
            number: scratch.take(operands, 0u64)?,
            next: scratch.take(operands, NONE)?,
            first: scratch.take(pools, NONE)?,
            len: 0,
        };
        let last = scratch.take(pools, NONE)?;
        let taken = scratch.take(pools, 0u64)?;
        for tensor in sequence.tensor_ids() {
            present[tensor.index()] = u8::from(choice.is_at_start(tensor));
        }
        for op in sequence.launches() {
            let reads = sequence.reads(op).len();
            for (at, &tensor) in sequence.operands_of(op).iter().enumerate() {
                let class = classes.of_tensor(tensor);
                if core::mem::replace(&mut present[tensor.index()], 1) == 1 {
                    continue;
                }
                let taken = &mut taken[class];
                *taken = taken.saturating_add(1);
                if at < reads {
                    arrivals.push(tensor, class, *taken, last);
                }
            }
            if let Some(class) = classes.of_workspace(sequence.graph(), sequence.op(op)) {
                taken[class] = taken[class].saturating_add(1);
            }
            let first = sequence.first_slot(op);
            for (slot, &tensor) in (first..).zip(sequence.operands_of(op)) {
                if choice.after_use(slot) != AfterUse::Stays {
                    present[tensor.index()] = 0;
                }
            }
        }
        Ok(arrivals)
    }

    fn push(&mut self, tensor: TensorId, class: usize, number: u64, last: &mut [u32]) {
        let at = self.len;
        self.len = self.len.saturating_add(1);
        (self.tensor[at], self.number[at]) = (tensor.0, number);
        match core::mem::replace(&mut last[class], at as u32) {
            NONE => self.first[class] = at as u32,
            last => self.next[last as usize] = at as u32,
        }
    }
}
