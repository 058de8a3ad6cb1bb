//! The gaps: spans between two uses of a value in which it may leave the device, and the number of
//! objects that leave.
//!
//! A *gap* is the span of ops strictly between two consecutive uses of a value, in the cyclic
//! sequence. Moving `x` objects of the tensor in the gap frees them at all ops of the gap, at the
//! cost of an upload and, unless the host already holds them, a download.

#![expect(
    clippy::indexing_slicing,
    reason = "slots, tensors and versions are those of the sequence, and the arrays have an entry \
              for each slot"
)]

use super::memory::{CHUNKS, Memory};
use super::positions::{self, Ranges};
use super::request::POOLS;
use super::request::Task;
use super::tree::MinTree;
use crate::graph::{Kind, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::{LaunchId, Sequence};

/// No operand.
const NONE: u32 = u32::MAX;

/// The most gaps of a value that are searched for the gap that moves most. It bounds the time for
/// values that many ops read.
const MOST_SEARCHED: usize = 64;

/// The gap after each operand, and the objects that move in it.
#[derive(Debug)]
pub(super) struct Gaps<'a> {
    /// The operand that uses the tensor next, cyclically; if an op uses it twice, the first of the
    /// two.
    next: &'a mut [u32],
    /// The op of each operand.
    op: &'a mut [u32],
    /// The operand that wrote the value; no operand if no op writes it.
    version: &'a mut [u32],
    /// Objects that move in the gap after each operand.
    moved: &'a mut [u64],
    /// The maximum of the objects that move in a gap of each value, by the operand that wrote it.
    offloaded: &'a mut [u64],
}

/// A cyclic span of ops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The first op.
    pub(super) from: usize,
    /// The op after the last.
    pub(super) to: usize,
    /// Whether the span crosses the end of the iteration.
    pub(super) wraps: bool,
}

impl Span {
    /// The span as one or two ranges of an iteration of `ops` ops.
    pub(super) fn ranges(self, ops: usize) -> Ranges {
        if self.wraps {
            [(self.from, ops), (0, self.to)]
        } else {
            [(self.from, self.to.max(self.from)), (0, 0)]
        }
    }

    /// The span of a slot's gap as ranges of positions in the pool of the slot's tensor.
    pub(super) fn positions(self, task: &Task<'_>, memory: &Memory<'_>, slot: usize) -> Ranges {
        let ops = task.sequence.len();
        let pool = memory.pool(task, task.sequence.operands()[slot]);
        positions::ranges(pool, self.ranges(ops), ops)
    }
}

impl<'a> Gaps<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.operands)
            .saturating_mul(3)
            .saturating_add(words::<u64>(limits.operands).saturating_mul(2))
    }

    /// Words of scratch for finding the gaps, and for their slack.
    pub(super) const fn working_words(limits: &Limits) -> usize {
        total([
            words::<u32>(limits.tensors),
            words::<u64>(limits.ops.saturating_mul(POOLS)),
            MinTree::scratch_words(limits.ops.saturating_mul(POOLS)),
        ])
    }

    /// Finds the gaps. O(operands).
    pub(super) fn new(
        sequence: &Sequence<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let operands = sequence.operands().len();
        let gaps = Self {
            next: scratch.take(operands, NONE)?,
            op: scratch.take(operands, 0)?,
            version: scratch.take(operands, NONE)?,
            moved: scratch.take(operands, 0)?,
            offloaded: scratch.take(operands, 0)?,
        };
        let last = scratch.reborrow().take(sequence.tensors().len(), NONE)?;
        // Two iterations, so that each use finds the next one in the following iteration.
        for (_, op) in sequence.iterations(2).rev() {
            for (slot, &tensor) in sequence.slots(op).zip(sequence.operands_of(op)).rev() {
                gaps.op[slot] = op.0;
                gaps.next[slot] = last[tensor.index()];
                last[tensor.index()] = slot as u32;
            }
        }
        last.fill(NONE);
        for (_, op) in sequence.iterations(2) {
            if op == LaunchId(0) {
                for (last, tensor) in last.iter_mut().zip(sequence.tensors()) {
                    // Only the value of a state survives into the next iteration.
                    *last = if tensor.kind == Kind::State { *last } else { NONE };
                }
            }
            let first_write = sequence.first_write(op);
            for (slot, &tensor) in sequence.slots(op).zip(sequence.operands_of(op)) {
                if slot >= first_write {
                    last[tensor.index()] = slot as u32;
                }
                gaps.version[slot] = last[tensor.index()];
            }
        }
        Ok(gaps)
    }

    /// No gaps, for rules that do not use them.
    pub(super) fn none() -> Self {
        let [next, op, version] = [(); 3].map(|()| <&mut [u32]>::default());
        let [moved, offloaded] = [(); 2].map(|()| <&mut [u64]>::default());
        Self { next, op, version, moved, offloaded }
    }

    /// The number of gaps at most: one after each operand.
    pub(super) fn len(&self) -> usize {
        self.moved.len()
    }

    /// Sets all moved objects to zero.
    pub(super) fn clear(&mut self) {
        self.moved.fill(0);
        self.offloaded.fill(0);
    }

    /// Number of objects that move in the gap after an operand.
    pub(super) fn moved(&self, slot: usize) -> u64 {
        self.moved[slot]
    }

    /// Sets the number of objects that move in a gap.
    pub(super) fn set_moved(&mut self, slot: usize, objects: u64) {
        let less = objects < self.moved[slot];
        self.moved[slot] = objects;
        let version = self.version[slot];
        if version != NONE {
            let most =
                if less { self.most_of_others(slot) } else { self.offloaded(version as usize) };
            self.offloaded[version as usize] = most.max(objects);
        }
    }

    /// The most objects that move in another gap of the value; for a value with many gaps, in any
    /// gap.
    fn most_of_others(&self, slot: usize) -> u64 {
        let version = self.version[slot];
        let (mut most, mut at) = (0, version);
        for _gap in 0..MOST_SEARCHED {
            if at as usize != slot {
                most = self.moved[at as usize].max(most);
            }
            at = self.next[at as usize];
            if at == version || self.version[at as usize] != version {
                return most;
            }
        }
        self.offloaded[version as usize]
    }

    /// Number of objects on the host that the gaps of a value need, by the operand that writes it.
    pub(super) fn offloaded(&self, slot: usize) -> u64 {
        self.offloaded[slot]
    }

    /// Of a tensor with `all` objects, the number that the host holds, or needs for other gaps of
    /// the value, if `from` objects move in this gap.
    pub(super) fn on_host(&self, slot: usize, all: u64, from: u64) -> u64 {
        match self.version[slot] {
            NONE => all,
            version if from >= self.moved[slot] => self.offloaded(version as usize),
            _ => self.most_of_others(slot),
        }
    }

    /// The operand that wrote the value of an operand; [`u32::MAX`] if no op does.
    pub(super) fn version(&self, slot: usize) -> u32 {
        self.version[slot]
    }

    /// The launch of an operand.
    pub(super) fn launch(&self, slot: usize) -> LaunchId {
        LaunchId(self.op[slot])
    }

    /// The operand that uses the tensor of an operand next.
    pub(super) fn next_slot(&self, slot: usize) -> usize {
        self.next[slot] as usize
    }

    /// The op that uses an operand's tensor next, and whether it is in the next iteration.
    pub(super) fn next_use(&self, slot: usize) -> (LaunchId, bool) {
        let next = self.next[slot];
        let op = self.op[next as usize];
        (LaunchId(op), next <= slot as u32)
    }

    /// Whether the op of a read also writes the tensor.
    pub(super) fn is_overwritten_by_own_op(&self, slot: usize) -> bool {
        let next = self.next[slot];
        next > slot as u32 && self.op[next as usize] == self.op[slot]
    }

    /// The gap after an operand in which its value survives; `None` if the value dies, or the same
    /// op uses it again.
    pub(super) fn span(&self, sequence: &Sequence<'_>, slot: usize) -> Option<Span> {
        let next = self.next[slot] as usize;
        let (from, to) = (self.launch(slot).next().index(), self.launch(next).index());
        let wraps = next <= slot;
        let tensor = sequence.operands()[slot];
        let is_read = { next < sequence.first_write(LaunchId(self.op[next])) };
        let lives = match sequence.tensor(tensor).kind {
            Kind::State => wraps || is_read,
            _ => !wraps && is_read,
        };
        let same_op = !wraps && from > to;
        (lives && !same_op).then_some(Span { from, to, wraps })
    }

    /// The span of a gap as ranges of the ops of its tensor's pool.
    pub(super) fn ranges(
        &self,
        task: &Task<'_>,
        memory: &Memory<'_>,
        slot: usize,
    ) -> Option<Ranges> {
        Some(self.span(task.sequence, slot)?.positions(task, memory, slot))
    }

    /// For each pool and op, the objects that stay free if everything moves as chosen.
    pub(super) fn planned_slack<'s>(
        &self,
        task: &Task<'_>,
        memory: &Memory<'_>,
        scratch: &mut Scratch<'s>,
    ) -> Result<&'s mut [i64], OutOfScratch> {
        self.free_objects((task, memory), 0, |slot| self.moved[slot], scratch)
    }

    /// For each pool and op, the pool's objects, less the share to spare and everything that is
    /// alive.
    pub(super) fn slack<'s>(
        &self,
        task: &Task<'_>,
        memory: &Memory<'_>,
        spare_permille: u64,
        scratch: &mut Scratch<'s>,
    ) -> Result<MinTree<'s>, OutOfScratch> {
        let free = self.free_objects((task, memory), spare_permille, |_| 0, scratch)?;
        MinTree::new(free.iter().copied(), scratch)
    }

    /// The free objects of each pool at each op: the pool's objects, minus the share to spare, the op's
    /// own objects, and the objects that stay on the device in a gap. `moved` returns the number of
    /// objects that move in the gap after an operand. O(operands).
    fn free_objects<'s>(
        &self,
        (task, memory): (&Task<'_>, &Memory<'_>),
        spare_permille: u64,
        moved: impl Fn(usize) -> u64,
        scratch: &mut Scratch<'s>,
    ) -> Result<&'s mut [i64], OutOfScratch> {
        let ops = task.sequence.len();
        let free = scratch.take(positions::count(memory, ops), 0i64)?;
        // At first, each entry is the change from the op before.
        for (slot, &tensor) in task.sequence.operands().iter().enumerate() {
            let ranges = self.ranges(task, memory, slot).into_iter().flatten();
            let staying = (memory.objects(tensor) as i64).saturating_sub(moved(slot) as i64);
            for (from, to) in ranges.filter(|(from, to)| from < to) {
                free[from] = free[from].saturating_sub(staying);
                if let Some(after) = free.get_mut(to) {
                    *after = after.saturating_add(staying);
                }
            }
        }
        // Perturbed shares may exceed the whole pool.
        let spare_permille = spare_permille.min(1000);
        let mut in_gaps = 0i64;
        for pool in 0..memory.pools() {
            let objects = memory.pool_objects(pool);
            let spare = u128::from(objects).saturating_mul(spare_permille.into()) / 1000;
            let usable = objects.saturating_sub(spare as u64);
            for op in task.sequence.launches() {
                let own = self.own_objects(op, pool, (task, memory));
                debug_assert!(usable.max(own) <= i64::MAX as u64, "memory counts fewer objects");
                let free = &mut free[positions::of(pool, op.index(), ops)];
                in_gaps = in_gaps.saturating_add(*free);
                *free = in_gaps.saturating_add(usable.saturating_sub(own) as i64);
            }
        }
        Ok(free)
    }

    /// The objects of a pool that an op needs itself.
    fn own_objects(
        &self,
        op: LaunchId,
        pool: usize,
        (task, memory): (&Task<'_>, &Memory<'_>),
    ) -> u64 {
        let sequence = task.sequence;
        let workspace = if pool == CHUNKS { memory.workspace(task, op) } else { 0 };
        let operands = sequence.slots(op).zip(sequence.operands_of(op));
        let counts = |&(slot, &tensor): &(usize, &TensorId)| {
            // If an op uses a tensor twice, only the last operand counts.
            let again = self.next[slot] > slot as u32 && self.op[self.next[slot] as usize] == op.0;
            !again && memory.pool(task, tensor) == pool
        };
        operands
            .filter(counts)
            .fold(workspace, |sum, (_, &tensor)| sum.saturating_add(memory.objects(tensor)))
    }
}
