//! Uses the device as a cache: prefetches the operands that an op misses some ops ahead, and evicts
//! the least recently used tensor if memory is needed. A strategy gives the number of ops ahead,
//! and the [`Retention`] of each tensor after an op.
//!
//! The look-ahead covers an op only if all operands that it misses fit beside the operands and
//! allocations of the ops before it. So an op within the look-ahead finds all its operands; any
//! other op may evict everything except its own operands, and memory suffices for the operands of
//! one op.
//!
//! The sequence of ops is cyclic. The second of two iterations is kept: it starts with the tensors
//! that the first iteration left, including tensors that were prefetched across its end.

#![expect(
    clippy::indexing_slicing,
    reason = "tensor ids are those of the sequence, and `kept_for` has an entry for each"
)]

use super::builder::Builder;
use super::list::{Lengths, Stuck};
use super::memory::{CHUNKS, Memory};
use super::queue::Queue;
use super::request::Task;
use crate::graph::{Kind, TensorId};
use crate::machine::Direction;
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::sequence::LaunchId;

/// Words of scratch that [`write`] and [`uploads_ns`] need.
pub(super) const fn scratch_words(limits: &Limits) -> usize {
    Queue::scratch_words(limits).saturating_add(words::<u32>(limits.tensors))
}

/// The fate of a tensor after an op that uses it, if its value is needed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Retention {
    /// It stays, even if memory is needed.
    Pinned,
    /// It stays until memory is needed and it is the least recently used tensor.
    Cached,
    /// It is evicted at once.
    Leaves,
}

struct Cache<'b, 's> {
    builder: Builder<'b>,
    ahead: u32,
    /// Tensors that may be evicted, the least recently used first.
    order: Queue<'s>,
    /// The last launch within the look-ahead that must find each tensor resident.
    kept_for: &'s mut [u32],
    /// The current launch, counted from 1 over all iterations.
    now: u32,
    /// The number of launches, from the next one on, whose operands need no further prefetch.
    covered: u32,
}

/// Writes a list that prefetches `ahead` ops ahead, at most one cycle less one op.
pub(super) fn write(
    builder: Builder<'_>,
    ahead: u32,
    scratch: &mut Scratch<'_>,
    retention: impl Fn(&Builder<'_>, LaunchId, TensorId) -> Retention,
) -> Result<Lengths, Stuck> {
    let sequence = builder.task.sequence;
    let (tensors, ops) = (sequence.tensors().len(), sequence.len() as u32);
    let mut scratch = scratch.reborrow();
    let cache = Cache {
        builder,
        ahead: ahead.min(ops.saturating_sub(1)),
        order: Queue::new(tensors, &mut scratch)?,
        kept_for: scratch.take(tensors, 0u32)?,
        now: 0,
        covered: 0,
    };
    cache.two_iterations(retention)
}

/// The number of ops from one that uses a tensor to the next that does, in the cyclic sequence.
/// Call it after the first of them has been launched.
pub(super) fn distance(builder: &Builder<'_>, op: LaunchId, tensor: TensorId) -> u32 {
    let (next_iteration, next) = builder.next_position(tensor);
    let iteration_ops = if next_iteration { builder.task.sequence.len() as u32 } else { 0 };
    iteration_ops.saturating_add(next.0).saturating_sub(op.0)
}

/// A lower bound of the time of a list's uploads. A tensor that leaves after an op is prefetched again
/// if the next op that uses it reads it. `leaves` gets a tensor and the number of ops to its next use.
/// O(operands).
pub(super) fn uploads_ns(
    task: &Task<'_>,
    memory: &Memory<'_>,
    leaves: impl Fn(TensorId, u32) -> bool,
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    let sequence = task.sequence;
    let mut scratch = scratch.reborrow();
    let last = scratch.take(sequence.tensors().len(), u32::MAX)?;
    let (mut sum_ns, mut launch) = (0u64, 0u32);
    for (iteration, op) in sequence.iterations(2) {
        for (at, &tensor) in sequence.operands_of(op).iter().enumerate() {
            let before = core::mem::replace(&mut last[tensor.index()], launch);
            let is_read = iteration == 1 && at < sequence.reads(op).len();
            let is_evicted = is_read && leaves(tensor, launch.saturating_sub(before));
            if is_evicted && !memory.in_arena(tensor) {
                let bytes = sequence.tensor(tensor).bytes;
                let upload_ns = task.machine.transfer_ns(Direction::HostToDevice, bytes);
                sum_ns = sum_ns.saturating_add(upload_ns.unwrap_or(0));
            }
        }
        launch = launch.saturating_add(1);
    }
    Ok(sum_ns)
}

impl Cache<'_, '_> {
    fn two_iterations(
        mut self,
        retention: impl Fn(&Builder<'_>, LaunchId, TensorId) -> Retention,
    ) -> Result<Lengths, Stuck> {
        let sequence = self.builder.task.sequence;
        for (_, op) in sequence.iterations(2) {
            self.builder.reach(op);
            self.now = self.now.saturating_add(1);
            self.fetch(op)?;
            self.look_ahead(op)?;
            let runs_on_host = self.builder.next_on_host().is_some();
            self.builder.launch(op)?;
            for &tensor in sequence.operands_of(op) {
                self.apply(tensor, retention(&self.builder, op, tensor))?;
            }
            // What ops on the host have written can be prefetched now.
            if runs_on_host || self.uncovers(op) {
                self.covered = 0;
            }
        }
        self.builder.finish()
    }

    fn keep(&mut self, op: LaunchId, launch: u32) {
        for &tensor in self.builder.task.sequence.operands_of(op) {
            self.kept_for[tensor.index()] = launch;
        }
    }

    /// Whether a launch within the look-ahead may miss an operand after an op, since the op's operands
    /// may be gone.
    fn uncovers(&self, op: LaunchId) -> bool {
        let is_gone = |&tensor: &TensorId| {
            self.kept_for[tensor.index()] > self.now && !self.builder.is_resident(tensor)
        };
        self.builder.task.sequence.operands_of(op).iter().any(is_gone)
    }

    /// Prefetches the operands that an op misses, and frees memory for its allocations.
    fn fetch(&mut self, op: LaunchId) -> Result<(), Stuck> {
        if self.covered == 0 {
            self.keep(op, self.now);
        }
        for &tensor in self.builder.task.sequence.reads(op) {
            if !self.builder.is_resident(tensor) {
                self.prefetch_beside(tensor, 0)?;
            }
        }
        self.free(self.builder.launch_objects(op, CHUNKS))
    }

    /// Prefetches the operands that the next ops miss, in order, as long as all operands of an op
    /// fit beside the allocations of the ops before it. For the very next op, prefetches a part of
    /// its operands if not all fit.
    fn look_ahead(&mut self, op: LaunchId) -> Result<(), Stuck> {
        let launch_objects = self.builder.launch_objects(op, CHUNKS);
        let sequence = self.builder.task.sequence;
        let (mut written_objects, mut workspace_objects) = (0u64, 0u64);
        self.covered = self.covered.saturating_sub(1);
        let mut next = op;
        for ahead in 1..=self.ahead {
            let before = next;
            next = sequence.following(before);
            let workspace = self.builder.memory.workspace(self.builder.task, before);
            let written = self.builder.launch_objects(before, CHUNKS).saturating_sub(workspace);
            written_objects = written_objects.saturating_add(written);
            workspace_objects = workspace_objects.max(workspace);
            if ahead <= self.covered {
                continue;
            }
            let launch = self.now.saturating_add(ahead);
            self.claim(next, launch);
            let taken = written_objects.saturating_add(workspace_objects);
            let fits = self.is_within_reach(taken.saturating_add(self.missing_objects(next)));
            if fits {
                self.keep(next, launch);
                self.covered = ahead;
            }
            if fits || ahead == 1 {
                self.prefetch_missing(next, launch_objects)?;
            }
            if !fits {
                self.disclaim(next, launch);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Keeps the operands of an op that no earlier op keeps.
    fn claim(&mut self, op: LaunchId, launch: u32) {
        for &tensor in self.builder.task.sequence.operands_of(op) {
            let kept_for = &mut self.kept_for[tensor.index()];
            *kept_for = if *kept_for < self.now { launch } else { *kept_for };
        }
    }

    fn disclaim(&mut self, op: LaunchId, launch: u32) {
        for &tensor in self.builder.task.sequence.operands_of(op) {
            let kept_for = &mut self.kept_for[tensor.index()];
            *kept_for = if *kept_for == launch { 0 } else { *kept_for };
        }
    }

    fn missing_objects(&self, op: LaunchId) -> u64 {
        let reads = self.builder.task.sequence.reads(op).iter();
        let missing = reads.filter(|&&tensor| self.is_missing(tensor));
        missing.fold(0, |sum, &tensor| sum.saturating_add(self.builder.memory.objects(tensor)))
    }

    /// Prefetches the operands that an op misses, as far as memory allows beside the current
    /// launch.
    fn prefetch_missing(&mut self, op: LaunchId, launch_objects: u64) -> Result<(), Stuck> {
        for &tensor in self.builder.task.sequence.reads(op) {
            if self.is_missing(tensor) {
                match self.prefetch_beside(tensor, launch_objects) {
                    Err(Stuck::NoMemory) => return Ok(()),
                    other => other?,
                }
            }
        }
        Ok(())
    }

    /// Whether the next op that uses a tensor reads a value that only the host has.
    fn is_missing(&self, tensor: TensorId) -> bool {
        let upcoming = self.builder.upcoming(tensor);
        let is_temporary = self.builder.task.sequence.tensor(tensor).kind == Kind::Temporary;
        let reads = match upcoming.is_none() {
            true => !is_temporary && self.builder.reads_first(tensor),
            false => upcoming.reads(),
        };
        reads && !self.builder.is_resident(tensor) && self.builder.has_host_copy(tensor)
    }

    /// Prefetches a tensor if `beside_objects` stay free.
    fn prefetch_beside(&mut self, tensor: TensorId, beside_objects: u64) -> Result<(), Stuck> {
        let objects = self.builder.memory.objects(tensor);
        self.free(beside_objects.saturating_add(objects))?;
        self.builder.prefetch(tensor)?;
        self.order.push(tensor);
        Ok(())
    }

    /// Evicts the least recently used tensors that no op within the look-ahead uses, until this
    /// many objects are free. Fails without an evict if that is impossible.
    fn free(&mut self, objects: u64) -> Result<(), Stuck> {
        if !self.is_within_reach(objects) {
            return Err(Stuck::NoMemory);
        }
        let mut evictable = self.oldest_evictable(self.order.front());
        while self.builder.free_objects(CHUNKS) < objects {
            let tensor = evictable.ok_or(Stuck::NoMemory)?;
            evictable = self.oldest_evictable(self.order.next(tensor));
            self.order.remove(tensor);
            self.builder.evict(tensor);
        }
        Ok(())
    }

    /// Whether this many objects are free or can be freed.
    fn is_within_reach(&self, objects: u64) -> bool {
        let mut within_reach = self.builder.free_objects(CHUNKS);
        let mut from = self.order.front();
        while within_reach < objects {
            let Some(tensor) = self.oldest_evictable(from) else { return false };
            within_reach = within_reach.saturating_add(self.builder.memory.objects(tensor));
            from = self.order.next(tensor);
        }
        true
    }

    /// The first tensor that may be evicted, from a position in the order on.
    fn oldest_evictable(&self, mut from: Option<TensorId>) -> Option<TensorId> {
        while let Some(tensor) = from {
            if self.kept_for[tensor.index()] < self.now {
                return Some(tensor);
            }
            from = self.order.next(tensor);
        }
        None
    }

    /// Evicts a tensor after an op that used it, or lists it as evictable, or neither.
    fn apply(&mut self, tensor: TensorId, retention: Retention) -> Result<(), Stuck> {
        self.order.remove(tensor);
        if !self.builder.is_resident(tensor) || self.builder.memory.in_arena(tensor) {
            return Ok(());
        }
        match retention {
            Retention::Pinned => {}
            Retention::Cached => self.order.push(tensor),
            Retention::Leaves => self.builder.evict(tensor),
        }
        Ok(())
    }
}
