//! Victims of evicts by force: the tensors whose next use is last.

#![expect(clippy::indexing_slicing, reason = "pools are below `POOLS`")]

use super::Paced;
use crate::graph::TensorId;
use crate::planner::heap::Heap;
use crate::planner::request::POOLS;
use crate::scratch::{Limits, OutOfScratch, Scratch};
use crate::sequence::LaunchId;

/// The tensors on the device, by pool; the tensor whose next use is last is on top. They are
/// collected at the first evict by force of a list, since few lists need one. An outdated entry
/// stays until it reaches the top.
pub(super) struct Victims<'s> {
    by_next_use: [Heap<'s>; POOLS],
    is_gathered: bool,
}

/// Entries for each tensor, including outdated entries. A balance: with fewer, tensors are
/// collected again more often.
const ENTRIES: usize = 3;

impl<'s> Victims<'s> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        Heap::scratch_words(limits.tensors.saturating_mul(ENTRIES)).saturating_mul(POOLS)
    }

    pub(super) fn new(tensors: usize, scratch: &mut Scratch<'s>) -> Result<Self, OutOfScratch> {
        let mut heap = || Heap::new(tensors.saturating_mul(ENTRIES), scratch);
        Ok(Self { by_next_use: [heap()?, heap()?], is_gathered: false })
    }
}

impl Paced<'_, '_, '_> {
    /// Removes the tensor of a pool whose next use is last, and returns it with the position of
    /// that use. Skips the tensors that the op uses. O(log tensors), amortized.
    pub(super) fn victim(&mut self, op: LaunchId, pool: usize) -> Option<(TensorId, u64)> {
        if !self.victims.is_gathered {
            self.gather_victims();
        }
        let touched = self.builder.task.sequence.operands_of(op);
        loop {
            let (key, id) = self.victims.by_next_use[pool].pop()?;
            let tensor = TensorId(!id);
            // A tensor that the op uses is entered again after the op.
            let next = self.next_use(tensor);
            let is_current = self.builder.held(tensor) > 0 && key == !next;
            if is_current && !touched.contains(&tensor) {
                return Some((tensor, next));
            }
        }
    }

    fn gather_victims(&mut self) {
        self.victims.by_next_use.iter_mut().for_each(Heap::clear);
        self.victims.is_gathered = true;
        for tensor in self.builder.task.sequence.tensor_ids() {
            self.enter_victim(tensor);
        }
    }

    /// Records that a tensor is on the device, or that its next use has changed.
    pub(super) fn enter_victim(&mut self, tensor: TensorId) {
        if self.victims.is_gathered && self.builder.held(tensor) > 0 {
            let key = !self.next_use(tensor);
            let pool = self.builder.pool(tensor);
            self.victims.is_gathered = self.victims.by_next_use[pool].push(key, !tensor.0);
        }
    }

    /// The position of the next use of a tensor, counted over all iterations.
    fn next_use(&self, tensor: TensorId) -> u64 {
        let (later, next) = self.builder.next_position(tensor);
        self.position(next, later)
    }
}
