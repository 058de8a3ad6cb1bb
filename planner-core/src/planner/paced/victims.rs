//! What is evicted by force: the tensor that is used again last.

use super::Paced;
use crate::graph::TensorId;
use crate::planner::heap::Heap;
use crate::planner::request::POOLS;
use crate::scratch::{Limits, OutOfScratch, Scratch};
use crate::sequence::LaunchId;

/// The tensors on the device, by pool; the tensor whose next use comes last is on top. They are gathered when
/// a list evicts by force for the first time, since few lists do. An entry that is out of date stays until it
/// comes to the top.
pub(super) struct Victims<'s> {
    by_next_use: [Heap<'s>; POOLS],
    is_gathered: bool,
}

/// Entries for each tensor, with those out of date. A balance: with fewer, tensors are gathered again more often.
const ENTRIES: usize = 3;

impl<'s> Victims<'s> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        Heap::scratch_words(limits.tensors.saturating_mul(ENTRIES)).saturating_mul(POOLS)
    }

    pub(super) fn new(tensors: usize, scratch: &mut Scratch<'s>) -> Result<Self, OutOfScratch> {
        let mut heap = || Heap::new(ENTRIES * tensors, scratch);
        Ok(Self { by_next_use: [heap()?, heap()?], is_gathered: false })
    }
}

impl Paced<'_, '_, '_> {
    /// Takes the tensor of a pool whose next use comes last, and the position of that use. Leaves out the
    /// tensors that the op touches. O(log tensors), amortized.
    pub(super) fn victim(&mut self, op: LaunchId, pool: usize) -> Option<(TensorId, u64)> {
        if !self.victims.is_gathered {
            self.gather_victims();
        }
        let touched = self.builder.task.sequence.operands_of(op);
        loop {
            let (key, id) = self.victims.by_next_use[pool].pop()?;
            let tensor = TensorId(u32::MAX - id);
            // What the op touches is entered again after it.
            let next = self.next_use(tensor);
            let is_current = self.builder.held(tensor) > 0 && key == u64::MAX - next;
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

    /// Notes that a tensor is on the device, or is used next by another op than before.
    pub(super) fn enter_victim(&mut self, tensor: TensorId) {
        if self.victims.is_gathered && self.builder.held(tensor) > 0 {
            let key = u64::MAX - self.next_use(tensor);
            let pool = self.builder.pool(tensor);
            self.victims.is_gathered =
                self.victims.by_next_use[pool].push(key, u32::MAX - tensor.0);
        }
    }

    /// The position of the next use of a tensor over all iterations.
    fn next_use(&self, tensor: TensorId) -> u64 {
        let (later, next) = self.builder.next_position(tensor);
        self.position(next, later)
    }
}
