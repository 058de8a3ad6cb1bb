//! Writes the list of steps, and tracks the facts that every strategy must know: residency, valid
//! host copies, values that are still needed, and free memory.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors and pools are those of the sequence and the memory, and the arrays have an \
              entry for each"
)]

use super::list::{Lengths, List, Stuck};
use super::memory::{CHUNKS, Memory};
use super::request::{POOLS, Task};
use super::uses::{Use, Uses};
use crate::graph::{Kind, OpId, TensorId};
use crate::plan::{Part, Resident, Step};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::sequence::LaunchId;

/// A list of steps that is being written. It keeps the rules of a valid plan, provided that the
/// caller prefetches tensors before they are read and frees memory before it is allocated.
///
/// Objects leave a tensor from its end, since only the last object may be half empty. So the
/// resident objects are always the first objects, the host holds the last objects, and one offload
/// serves every later evict of the same value.
#[derive(Debug)]
pub(super) struct Builder<'b> {
    pub(super) task: &'b Task<'b>,
    pub(super) memory: &'b Memory<'b>,
    uses: &'b Uses<'b>,
    list: List<'b>,
    /// The number of objects on the device, from the first on; zero for arena tensors.
    held: &'b mut [u64],
    /// The number of objects whose value the host holds, from the last on.
    copied: &'b mut [u64],
    held_at_start: &'b mut [u64],
    copied_at_start: &'b mut [u64],
    /// The next [`Use`] of each tensor.
    upcoming: &'b mut [u32],
    free_objects: [u64; POOLS],
    /// The number of launches of the iteration that are listed.
    launched: usize,
    /// The number of ops on the host that are listed.
    host_steps: usize,
}

impl<'b> Builder<'b> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u64>(limits.tensors).saturating_mul(4).saturating_add(words::<u32>(limits.tensors))
    }

    /// Starts with a device that is empty except for the arena.
    pub(super) fn new(
        task: &'b Task<'b>,
        memory: &'b Memory<'b>,
        uses: &'b Uses<'b>,
        list: List<'b>,
        scratch: &mut Scratch<'b>,
    ) -> Result<Self, OutOfScratch> {
        let tensors = task.sequence.tensors().len();
        let mut builder = Self {
            task,
            memory,
            uses,
            list,
            held: scratch.take(tensors, 0)?,
            copied: scratch.take(tensors, 0)?,
            held_at_start: scratch.take(tensors, 0)?,
            copied_at_start: scratch.take(tensors, 0)?,
            upcoming: scratch.take(tensors, Use::NONE.0)?,
            free_objects: [0, 1].map(|pool| memory.pool_objects(pool)),
            launched: 0,
            host_steps: 0,
        };
        for tensor in task.sequence.tensor_ids() {
            builder.copied[tensor.index()] = memory.objects(tensor);
        }
        builder.restart();
        Ok(builder)
    }

    /// The number of steps that fit into the list.
    pub(super) const fn room(&self) -> usize {
        self.list.room()
    }

    /// Starts the list again if a launch begins an iteration. So the last of the simulated
    /// iterations is kept, and begins with the residents that the iteration before it left.
    pub(super) fn reach(&mut self, launch: LaunchId) {
        if launch == LaunchId(0) {
            self.restart();
        }
    }

    fn restart(&mut self) {
        debug_assert!(self.is_balanced(), "every object is held once or free");
        self.list.clear();
        (self.launched, self.host_steps) = (0, 0);
        let sequence = self.task.sequence;
        for (id, tensor) in sequence.tensor_ids().zip(sequence.tensors()) {
            match tensor.kind {
                Kind::Input if sequence.is_made_first(id) => self.copied[id.index()] = 0,
                Kind::Input => self.copied[id.index()] = self.memory.objects(id),
                Kind::Temporary | Kind::Output => self.copied[id.index()] = 0,
                Kind::State => {}
            }
            self.upcoming[id.index()] = self.uses.first(id).0;
        }
        self.held_at_start.copy_from_slice(self.held);
        self.copied_at_start.copy_from_slice(self.copied);
    }

    /// Whether the held and the free objects add up to each pool.
    fn is_balanced(&self) -> bool {
        let tensors = || self.task.sequence.tensor_ids();
        (0..self.memory.pools()).all(|pool| {
            let held = tensors().filter(|&tensor| self.pool(tensor) == pool);
            let held = held.map(|tensor| self.held(tensor)).fold(0, u64::saturating_add);
            held.saturating_add(self.free_objects(pool)) == self.memory.pool_objects(pool)
        })
    }

    /// Whether the whole tensor is on the device.
    pub(super) fn is_resident(&self, tensor: TensorId) -> bool {
        self.held[tensor.index()] == self.memory.objects(tensor)
    }

    /// The number of objects of a tensor that are not on the device.
    pub(super) fn missing(&self, tensor: TensorId) -> u64 {
        self.memory.objects(tensor).saturating_sub(self.held(tensor))
    }

    /// Whether the host holds the value of each object that is not on the device.
    pub(super) fn has_rest_on_host(&self, tensor: TensorId) -> bool {
        self.missing(tensor) <= self.copied(tensor)
    }

    /// The first object whose value the host holds.
    pub(super) fn first_copied(&self, tensor: TensorId) -> u64 {
        self.memory.objects(tensor).saturating_sub(self.copied(tensor))
    }

    /// Whether the host holds the value of the whole tensor.
    pub(super) fn has_host_copy(&self, tensor: TensorId) -> bool {
        self.copied[tensor.index()] == self.memory.objects(tensor)
    }

    /// The number of a tensor's objects on the device, from the first on.
    pub(super) fn held(&self, tensor: TensorId) -> u64 {
        self.held[tensor.index()]
    }

    /// The number of a tensor's objects whose value the host holds, from the last on.
    pub(super) fn copied(&self, tensor: TensorId) -> u64 {
        self.copied[tensor.index()]
    }

    /// Whether the current value of a tensor is read again, by a later op or, for a state, by the
    /// next iteration.
    pub(super) fn is_needed(&self, tensor: TensorId) -> bool {
        let upcoming = self.upcoming(tensor);
        let is_state = self.task.sequence.tensor(tensor).kind == Kind::State;
        upcoming.reads() || (upcoming.is_none() && is_state)
    }

    /// The next use of a tensor in this iteration.
    pub(super) fn upcoming(&self, tensor: TensorId) -> Use {
        Use(self.upcoming[tensor.index()])
    }

    /// The first op of an iteration that uses a tensor; the first op of all if no op uses it.
    pub(super) fn first_op(&self, tensor: TensorId) -> LaunchId {
        self.uses.first(tensor).op().unwrap_or(LaunchId(0))
    }

    /// Whether the next use of a tensor is in the next iteration, and the op that uses it.
    pub(super) fn next_position(&self, tensor: TensorId) -> (bool, LaunchId) {
        let upcoming = self.upcoming(tensor);
        match upcoming.op() {
            Some(op) => (false, op),
            None => (true, self.first_op(tensor)),
        }
    }

    /// Whether an iteration reads the value that a tensor has at its start.
    pub(super) fn reads_first(&self, tensor: TensorId) -> bool {
        self.uses.first(tensor).reads()
    }

    /// The pool of a tensor.
    pub(super) fn pool(&self, tensor: TensorId) -> usize {
        self.memory.pool(self.task, tensor)
    }

    /// The number of free objects of a pool.
    pub(super) fn free_objects(&self, pool: usize) -> u64 {
        self.free_objects[pool]
    }

    /// The number of objects of a pool that a launch would still have to allocate, including its
    /// workspace.
    pub(super) fn launch_objects(&self, op: LaunchId, pool: usize) -> u64 {
        let workspace = if pool == CHUNKS { self.memory.workspace(self.task, op) } else { 0 };
        let written = self.task.sequence.writes(op).iter();
        let written = written.filter(|&&tensor| self.pool(tensor) == pool);
        written.fold(workspace, |sum, &tensor| sum.saturating_add(self.missing(tensor)))
    }

    /// The objects `from..to` of a tensor.
    fn part(&self, tensor: TensorId, from: u64, to: u64) -> Part {
        if from == 0 && to == self.memory.objects(tensor) {
            Part::whole(tensor)
        } else {
            Part { tensor, first: from, count: to.saturating_sub(from) }
        }
    }

    /// Allocates up to object `to`.
    fn take(&mut self, tensor: TensorId, to: u64) -> Result<(), Stuck> {
        let objects = to.saturating_sub(self.held(tensor));
        let free_objects = &mut self.free_objects[self.memory.pool(self.task, tensor)];
        *free_objects = free_objects.checked_sub(objects).ok_or(Stuck::NoMemory)?;
        self.held[tensor.index()] = to;
        Ok(())
    }

    /// Prefetches the missing objects of a tensor.
    pub(super) fn prefetch(&mut self, tensor: TensorId) -> Result<(), Stuck> {
        self.prefetch_to(tensor, self.memory.objects(tensor))
    }

    /// Whether ops run on the host too. A rule that does not wait for them has no list then.
    fn takes_turns(&self) -> bool {
        !self.task.sequence.host_steps().is_empty()
    }

    /// Whether an unlisted op on the host writes the value that launches read next.
    pub(super) fn awaits_host(&self, tensor: TensorId) -> bool {
        self.copied(tensor) == 0 && self.task.sequence.is_made_by_host(tensor)
    }

    /// Prefetches the missing objects among the first `to` objects of a tensor, unless the host has
    /// not yet written it.
    pub(super) fn prefetch_to(&mut self, tensor: TensorId, to: u64) -> Result<(), Stuck> {
        let from = self.held(tensor);
        if from < to && !self.awaits_host(tensor) {
            let is_on_host = self.has_rest_on_host(tensor);
            debug_assert!(is_on_host || self.takes_turns(), "the host holds what is fetched");
            if !is_on_host {
                return Err(Stuck::NoMemory);
            }
            self.take(tensor, to)?;
            self.list.push(Step::Prefetch(self.part(tensor, from, to)));
        }
        Ok(())
    }

    /// Offloads a tensor.
    pub(super) fn offload(&mut self, tensor: TensorId) {
        self.offload_from(tensor, 0);
    }

    /// Offloads a tensor from object `from` on, except for objects that the host holds.
    pub(super) fn offload_from(&mut self, tensor: TensorId, from: u64) {
        let to = self.first_copied(tensor);
        if from < to {
            debug_assert!(to <= self.held(tensor), "the device holds what is copied");
            self.copied[tensor.index()] = self.memory.objects(tensor).saturating_sub(from);
            self.list.push(Step::Offload(self.part(tensor, from, to)));
        }
    }

    /// Offloads a whole tensor, even if the host holds it.
    pub(super) fn offload_again(&mut self, tensor: TensorId) {
        self.copied[tensor.index()] = 0;
        self.offload(tensor);
    }

    /// Frees a tensor's memory. Offloads its value first if it would be lost.
    pub(super) fn evict(&mut self, tensor: TensorId) {
        self.evict_from(tensor, 0);
    }

    /// Frees a tensor's memory from object `from` on. Offloads these objects first if their value
    /// would be lost.
    pub(super) fn evict_from(&mut self, tensor: TensorId, from: u64) {
        let to = self.held(tensor);
        if from >= to {
            return;
        }
        if self.is_needed(tensor) {
            self.offload_from(tensor, from);
        }
        let free_objects = &mut self.free_objects[self.memory.pool(self.task, tensor)];
        *free_objects = free_objects.saturating_add(to.saturating_sub(from));
        self.held[tensor.index()] = from;
        self.list.push(Step::Evict(self.part(tensor, from, to)));
    }

    /// Launches an op, evicts operands that nothing needs any more, and runs the ops on the host
    /// that may follow. Before that, prefetches operands that the host has written since their last
    /// prefetch.
    pub(super) fn launch(&mut self, op: LaunchId) -> Result<(), Stuck> {
        self.run_on_host();
        for &tensor in self.task.sequence.reads(op) {
            if self.task.sequence.is_made_by_host(tensor) {
                self.prefetch(tensor)?;
            }
        }
        self.launch_alone(op)?;
        for &tensor in self.task.sequence.operands_of(op) {
            if !self.is_needed(tensor) {
                self.evict(tensor);
            }
        }
        Ok(())
    }

    /// The next op for the host, if all launches before it are listed.
    pub(super) fn next_on_host(&self) -> Option<OpId> {
        let step = self.task.sequence.host_steps().get(self.host_steps)?;
        (step.after as usize <= self.launched).then_some(step.op)
    }

    /// Lists the next op on the host.
    pub(super) fn list_on_host(&mut self, op: OpId) {
        let sequence = self.task.sequence;
        self.list.push(Step::Host(op));
        self.host_steps = self.host_steps.saturating_add(1);
        for &tensor in sequence.graph().writes(op) {
            if sequence.is_completed_by(op, tensor) {
                self.copied[tensor.index()] = self.memory.objects(tensor);
            }
        }
    }

    /// Lists all ops on the host that may run after the listed steps.
    fn run_on_host(&mut self) {
        while let Some(op) = self.next_on_host() {
            self.list_on_host(op);
        }
    }

    /// Launches an op, and offloads outputs that have their last value. Evicts nothing.
    pub(super) fn launch_alone(&mut self, op: LaunchId) -> Result<(), Stuck> {
        let sequence = self.task.sequence;
        let fits = |pool| self.launch_objects(op, pool) <= self.free_objects(pool);
        if !(0..self.memory.pools()).all(fits) {
            return Err(Stuck::NoMemory);
        }
        let is_there = sequence.reads(op).iter().all(|&tensor| self.is_resident(tensor));
        debug_assert!(is_there || self.takes_turns(), "what an op reads is on the device");
        if !is_there {
            return Err(Stuck::NoMemory);
        }
        self.list.push(Step::Launch(sequence.launched(op)));
        for &tensor in sequence.writes(op) {
            self.take(tensor, self.memory.objects(tensor))?;
            self.copied[tensor.index()] = 0;
        }
        let operands = sequence.operands_of(op);
        let first = sequence.first_slot(op);
        for (slot, &tensor) in (first..).zip(operands) {
            self.upcoming[tensor.index()] = self.uses.next(slot).0;
            let is_input = sequence.tensor(tensor).kind == Kind::Input;
            if is_input && self.uses.is_read_out(tensor, op) {
                let is_made = sequence.is_made_by_host(tensor);
                self.copied[tensor.index()] = if is_made { 0 } else { self.memory.objects(tensor) };
            }
        }
        for &tensor in sequence.writes(op) {
            if self.is_final(tensor, op) {
                self.leave_on_host(tensor);
            }
        }
        self.launched = op.next().index();
        Ok(())
    }

    /// Whether a tensor is an output, and an op writes its last value.
    pub(super) fn is_final(&self, tensor: TensorId, op: LaunchId) -> bool {
        let is_output = self.task.sequence.tensor(tensor).kind == Kind::Output;
        is_output && self.uses.is_last_write(tensor, op)
    }

    /// Offloads an output, whose last value the device has.
    fn leave_on_host(&mut self, tensor: TensorId) {
        if self.memory.in_arena(tensor) {
            self.list.push(Step::Offload(Part::whole(tensor)));
        } else {
            self.offload(tensor);
        }
    }

    /// Closes the cycle: the iteration must end with the residents with which it began.
    pub(super) fn finish(mut self) -> Result<Lengths, Stuck> {
        let sequence = self.task.sequence;
        self.run_on_host();
        for tensor in sequence.tensor_ids() {
            self.evict_from(tensor, self.held_at_start[tensor.index()]);
        }
        for tensor in sequence.tensor_ids() {
            if self.memory.in_arena(tensor) {
                self.finish_arena(tensor);
                continue;
            }
            let (held, copied) =
                (self.held_at_start[tensor.index()], self.copied_at_start[tensor.index()]);
            self.prefetch_to(tensor, held)?;
            let only_here = self.memory.objects(tensor).saturating_sub(copied);
            if only_here < held {
                self.offload_from(tensor, only_here);
            }
            self.add_resident(tensor, 0, held.min(only_here), false);
            self.add_resident(tensor, held.min(only_here), held, true);
        }
        debug_assert!(self.is_balanced(), "every object is held once or free");
        debug_assert!(*self.held == *self.held_at_start, "the iteration ends as it began");
        self.list.finish()
    }

    /// Arena states stay resident, and arena inputs are prefetched again at the end of each
    /// iteration.
    fn finish_arena(&mut self, tensor: TensorId) {
        let host_copy = match self.task.sequence.tensor(tensor).kind {
            Kind::Temporary | Kind::Output => return,
            Kind::State => !self.uses.is_written(tensor),
            Kind::Input => {
                self.list.push(Step::Prefetch(Part::whole(tensor)));
                true
            }
        };
        self.list.add_resident(Resident { part: Part::whole(tensor), host_copy });
    }

    /// Lists the objects `from..to` of a tensor as resident at start, if the range is not empty.
    fn add_resident(&mut self, tensor: TensorId, from: u64, to: u64, host_copy: bool) {
        if from < to {
            let part = self.part(tensor, from, to);
            self.list.add_resident(Resident { part, host_copy });
        }
    }
}
