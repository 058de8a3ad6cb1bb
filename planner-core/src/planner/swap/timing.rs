//! The time of the chosen evicts and prefetches: as early as is safe (section 4.2).
//!
//! A tensor to evict is offloaded, if the host does not hold it, once the op that used it last has
//! ended. In each class, allocations are numbered in the order in which the ops need them, and so
//! are objects as they become free; an allocation is made when as many objects have become free. A
//! prefetch with memory starts when its link is idle, in the order of need. Links and compute are
//! simulated, so that evicts are listed at the time at which their offload has ended. Two
//! iterations are simulated, and the second is kept.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors, slots and arrivals are those of the sequence, and classes are those of the \
              tables that `check` has checked"
)]

use super::Classes;
use super::arrivals::{Arrivals, NONE};
use super::belady::{AfterUse, Choice};
use crate::graph::{Kind, TensorId};
use crate::machine::Direction;
use crate::plan::{Part, Resident, Step};
use crate::planner::heap::Heap;
use crate::planner::list::{Lengths, List, Stuck};
use crate::planner::request::Task;
use crate::planner::uses::Uses;
use crate::schedule::{PerStream, Stream};
use crate::scratch::{Limits, Scratch, total, words};
use crate::sequence::{LaunchId, Sequence};

/// The presence of a tensor on the device.
const ABSENT: u8 = 0;
const PRESENT: u8 = 1;
/// On the device until its offload has ended.
const LEAVING: u8 = 2;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Arrivals::scratch_words(limits),
        Heap::scratch_words(limits.operands),
        words::<u64>(limits.operands),
        words::<u64>(limits.pools).saturating_mul(3),
        words::<u32>(limits.pools),
        words::<u8>(limits.tensors).saturating_mul(4),
        words::<u32>(limits.tensors),
        words::<u64>(limits.tensors).saturating_mul(2),
    ])
}

struct Timing<'s> {
    task: &'s Task<'s>,
    classes: &'s Classes<'s>,
    uses: &'s Uses<'s>,
    choice: &'s Choice<'s>,
    list: List<'s>,
    arrivals: Arrivals<'s>,
    /// The first arrival of each class that lacks memory.
    waiting: &'s mut [u32],
    /// The number of objects of each class that have become free, including the objects that are
    /// free at the start.
    freed: &'s mut [u64],
    /// The time at which the last of them became free.
    freed_ns: &'s mut [u64],
    /// The number of objects of each class that ops have taken so far.
    taken: &'s mut [u64],
    /// Arrivals that have memory.
    ready: Heap<'s>,
    /// The time since which they have memory.
    granted_ns: &'s mut [u64],
    presence: &'s mut [u8],
    /// 1 if the host holds a tensor's value, else 0.
    copied: &'s mut [u8],
    copied_at_start: &'s mut [u8],
    /// The presence as chosen, without arrivals that came before their time.
    planned: &'s mut [u8],
    /// Tensors in flight to the host, and the end times of their offloads: a ring as long as there
    /// are tensors.
    leaving: &'s mut [u32],
    leaving_ns: &'s mut [u64],
    leaving_front: usize,
    leaving_len: usize,
    arrived_ns: &'s mut [u64],
    free_ns: PerStream<u64>,
}

/// Writes the list; also returns the time of its iteration.
pub(super) fn write<'s>(
    task: &'s Task<'s>,
    classes: &'s Classes<'s>,
    uses: &'s Uses<'s>,
    choice: &'s Choice<'s>,
    list: List<'s>,
    scratch: &mut Scratch<'s>,
) -> Result<(Lengths, u64), Stuck> {
    let (sequence, pools) = (task.sequence, classes.pools.len());
    let tensors = sequence.tensors().len();
    let presence = scratch.take(tensors, ABSENT)?;
    let mut timing = Timing {
        task,
        classes,
        uses,
        choice,
        list,
        arrivals: Arrivals::new(sequence, classes, choice, presence, scratch)?,
        waiting: scratch.take(pools, NONE)?,
        freed: scratch.take(pools, 0u64)?,
        freed_ns: scratch.take(pools, 0u64)?,
        taken: scratch.take(pools, 0u64)?,
        ready: Heap::new(sequence.operands().len(), scratch)?,
        granted_ns: scratch.take(sequence.operands().len(), 0u64)?,
        presence,
        copied: scratch.take(tensors, 0u8)?,
        copied_at_start: scratch.take(tensors, 0u8)?,
        planned: scratch.take(tensors, 0u8)?,
        leaving: scratch.take(tensors, 0u32)?,
        leaving_ns: scratch.take(tensors, 0u64)?,
        leaving_front: 0,
        leaving_len: 0,
        arrived_ns: scratch.take(tensors, 0u64)?,
        free_ns: PerStream::all(0),
    };
    for tensor in sequence.tensor_ids() {
        let is_old = choice.is_at_start(tensor) && uses.is_written(tensor);
        timing.copied[tensor.index()] = u8::from(!is_old);
    }
    let iteration_ns = timing.two_iterations()?;
    Ok((timing.finish()?, iteration_ns))
}

impl<'s> Timing<'s> {
    fn sequence(&self) -> &'s Sequence<'s> {
        self.task.sequence
    }

    /// Simulates two iterations. Returns the largest difference of the two end times over all
    /// streams.
    fn two_iterations(&mut self) -> Result<u64, Stuck> {
        self.iteration()?;
        let first_ns = self.free_ns;
        self.iteration()?;
        let iterations = self.free_ns.0.into_iter().zip(first_ns.0);
        Ok(iterations
            .map(|(second_ns, first_ns)| second_ns.saturating_sub(first_ns))
            .max()
            .unwrap_or(0))
    }

    fn iteration(&mut self) -> Result<(), Stuck> {
        self.start();
        for op in self.sequence().launches() {
            self.op(op)?;
        }
        while self.finish_one()? {}
        Ok(())
    }

    /// Starts an iteration.
    fn start(&mut self) {
        let sequence = self.sequence();
        self.list.clear();
        self.taken.fill(0);
        for (class, pool) in self.classes.pools.iter().enumerate() {
            self.freed[class] = pool.count;
        }
        for (id, tensor) in sequence.tensor_ids().zip(sequence.tensors()) {
            let is_there = self.choice.is_at_start(id);
            self.presence[id.index()] = if is_there { PRESENT } else { ABSENT };
            self.planned[id.index()] = u8::from(is_there);
            if is_there {
                let freed = &mut self.freed[self.classes.of_tensor(id)];
                *freed = freed.saturating_sub(1);
            }
            match tensor.kind {
                Kind::Input => self.copied[id.index()] = 1,
                Kind::Temporary | Kind::Output => self.copied[id.index()] = 0,
                Kind::State => {}
            }
        }
        self.copied_at_start.copy_from_slice(self.copied);
        self.waiting.copy_from_slice(self.arrivals.first);
        for class in 0..self.classes.pools.len() {
            self.admit(class);
        }
    }

    /// Grants memory to arrivals as far as there are free objects.
    fn admit(&mut self, class: usize) {
        while self.waiting[class] != NONE {
            let arrival = self.waiting[class];
            if self.arrivals.number[arrival as usize] > self.freed[class] {
                break;
            }
            self.waiting[class] = self.arrivals.next[arrival as usize];
            self.granted_ns[arrival as usize] = self.freed_ns[class];
            self.ready.push(u64::from(arrival), arrival);
        }
    }

    fn free(&mut self, class: usize, now_ns: u64) {
        // The count includes objects that become free repeatedly, and a class may have any number
        // of objects.
        self.freed[class] = self.freed[class].saturating_add(1);
        self.freed_ns[class] = self.freed_ns[class].max(now_ns);
        self.admit(class);
    }

    fn op(&mut self, op: LaunchId) -> Result<(), Stuck> {
        let time_ns = self.sequence().time_ns(op);
        let now_ns = self.free_ns[Stream::Compute];
        self.finish_until(now_ns)?;
        self.upload(now_ns.saturating_add(time_ns.max(1)))?;
        let mut start_ns = now_ns.max(self.prefetch_operands(op)?);
        start_ns = start_ns.max(self.free_for(op)?);
        if start_ns > now_ns {
            // While the op waits, the links need not.
            self.finish_until(start_ns)?;
            self.upload(start_ns.saturating_add(time_ns.max(1)))?;
        }
        self.list.push(Step::Launch(self.sequence().launched(op)));
        self.free_ns[Stream::Compute] = start_ns.saturating_add(time_ns);
        self.end(op)
    }

    /// Evicts the tensors whose offloads have ended by `now_ns`.
    fn finish_until(&mut self, now_ns: u64) -> Result<(), Stuck> {
        while self.leaving_len > 0 && self.leaving_ns[self.leaving_front] <= now_ns {
            self.finish_one()?;
        }
        Ok(())
    }

    /// The slot of a tensor in flight, given the number of tensors before it.
    fn leaving_slot(&self, before: usize) -> usize {
        let slot = self.leaving_front.saturating_add(before);
        slot.checked_rem(self.leaving.len()).unwrap_or(0)
    }

    /// Evicts the first tensor in flight; returns false if there is none.
    fn finish_one(&mut self) -> Result<bool, Stuck> {
        let Some(others) = self.leaving_len.checked_sub(1) else { return Ok(false) };
        let tensor = TensorId(self.leaving[self.leaving_front]);
        let now_ns = self.leaving_ns[self.leaving_front];
        self.leaving_front = self.leaving_slot(1);
        self.leaving_len = others;
        self.evict(tensor, now_ns)?;
        Ok(true)
    }

    fn evict(&mut self, tensor: TensorId, now_ns: u64) -> Result<(), Stuck> {
        self.list.push(Step::Evict(Part::whole(tensor)));
        self.presence[tensor.index()] = ABSENT;
        self.free(self.classes.of_tensor(tensor), now_ns);
        Ok(())
    }

    /// Prefetches arrivals with memory while the link would be idle.
    fn upload(&mut self, until_ns: u64) -> Result<(), Stuck> {
        while self.free_ns[Stream::Upload] < until_ns && self.upload_one()? {}
        Ok(())
    }

    /// Prefetches the arrival that is needed first; returns false if no arrival has memory.
    fn upload_one(&mut self) -> Result<bool, Stuck> {
        let Some((key, arrival)) = self.ready.pop() else { return Ok(false) };
        let tensor = TensorId(self.arrivals.tensor[arrival as usize]);
        // A tensor that comes back must be evicted first, but other tensors may have freed enough
        // memory before that.
        if self.presence[tensor.index()] == PRESENT {
            self.ready.push(key, arrival);
            return Ok(false);
        }
        let mut granted_ns = self.granted_ns[arrival as usize];
        while self.presence[tensor.index()] == LEAVING && self.finish_one()? {
            granted_ns = granted_ns.max(self.freed_ns[self.classes.of_tensor(tensor)]);
        }
        let free_ns = self.free_ns[Stream::Upload].max(granted_ns);
        let end_ns = free_ns.saturating_add(self.transfer_ns(Direction::HostToDevice, tensor));
        self.free_ns[Stream::Upload] = end_ns;
        self.arrived_ns[tensor.index()] = end_ns;
        self.presence[tensor.index()] = PRESENT;
        self.list.push(Step::Prefetch(Part::whole(tensor)));
        Ok(true)
    }

    fn transfer_ns(&self, direction: Direction, tensor: TensorId) -> u64 {
        let bytes = self.sequence().tensor(tensor).bytes;
        self.task.machine.transfer_ns(direction, bytes).unwrap_or(u64::MAX / 16)
    }

    /// Prefetches all operands that an op reads; returns the time at which the last one arrives.
    fn prefetch_operands(&mut self, op: LaunchId) -> Result<u64, Stuck> {
        for &tensor in self.sequence().reads(op) {
            while self.presence[tensor.index()] != PRESENT {
                if !self.upload_one()? && !self.finish_one()? {
                    return Err(Stuck::NoMemory);
                }
            }
        }
        let arrived =
            self.sequence().reads(op).iter().map(|tensor| self.arrived_ns[tensor.index()]);
        Ok(arrived.fold(0, u64::max))
    }

    /// Evicts the next tensor in flight; returns the later of its end time and `finished_ns`.
    fn finish_next(&mut self, finished_ns: u64) -> Result<u64, Stuck> {
        let next_ns = self.leaving_ns.get(self.leaving_front).copied().unwrap_or(0);
        match self.finish_one()? {
            true => Ok(finished_ns.max(next_ns)),
            false => Err(Stuck::NoMemory),
        }
    }

    /// Frees the objects that an op takes; returns the time at which their offloads end.
    fn free_for(&mut self, op: LaunchId) -> Result<u64, Stuck> {
        let mut finished_ns = 0;
        for &tensor in self.sequence().operands_of(op) {
            let class = self.classes.of_tensor(tensor);
            let is_new = self.planned[tensor.index()] == 0;
            self.taken[class] = self.taken[class].saturating_add(is_new.into());
            self.planned[tensor.index()] = 1;
            self.presence[tensor.index()] = PRESENT;
            while self.taken[class] > self.freed[class] {
                finished_ns = self.finish_next(finished_ns)?;
            }
        }
        if let Some(class) =
            self.classes.of_workspace(self.sequence().graph(), self.sequence().op(op))
        {
            self.taken[class] = self.taken[class].saturating_add(1);
            while self.taken[class] > self.freed[class] {
                finished_ns = self.finish_next(finished_ns)?;
            }
        }
        Ok(finished_ns)
    }

    /// Evicts and offloads the operands of an op that has run, as chosen.
    fn end(&mut self, op: LaunchId) -> Result<(), Stuck> {
        let sequence = self.sequence();
        for &tensor in sequence.writes(op) {
            let is_input = sequence.tensor(tensor).kind == Kind::Input;
            self.copied[tensor.index()] = u8::from(is_input && self.uses.is_read_out(tensor, op));
            let is_output = sequence.tensor(tensor).kind == Kind::Output;
            if is_output && self.uses.is_last_write(tensor, op) {
                self.offload(tensor);
            }
        }
        for &tensor in sequence.reads(op) {
            let is_input = sequence.tensor(tensor).kind == Kind::Input;
            if is_input && self.uses.is_read_out(tensor, op) {
                self.copied[tensor.index()] = 1;
            }
        }
        let now_ns = self.free_ns[Stream::Compute];
        if let Some(class) = self.classes.of_workspace(sequence.graph(), sequence.op(op)) {
            self.free(class, now_ns);
        }
        let first = sequence.first_slot(op);
        for (slot, &tensor) in (first..).zip(sequence.operands_of(op)) {
            let after_use = self.choice.after_use(slot);
            if after_use != AfterUse::Stays {
                self.planned[tensor.index()] = 0;
            }
            match after_use {
                AfterUse::Stays => {}
                AfterUse::Leaves if self.copied[tensor.index()] == 0 => self.copy(tensor)?,
                AfterUse::Leaves | AfterUse::Dies => self.evict(tensor, now_ns)?,
            }
        }
        Ok(())
    }

    /// Offloads a tensor, and evicts it once that is done.
    fn copy(&mut self, tensor: TensorId) -> Result<(), Stuck> {
        let end_ns = self.offload(tensor);
        self.presence[tensor.index()] = LEAVING;
        let back = self.leaving_slot(self.leaving_len);
        (self.leaving[back], self.leaving_ns[back]) = (tensor.0, end_ns);
        self.leaving_len = self.leaving_len.saturating_add(1);
        Ok(())
    }

    /// Offloads a tensor; returns the end time.
    fn offload(&mut self, tensor: TensorId) -> u64 {
        let free_ns = self.free_ns[Stream::Compute].max(self.free_ns[Stream::Download]);
        let duration_ns = self.transfer_ns(Direction::DeviceToHost, tensor);
        let end_ns = free_ns.saturating_add(duration_ns);
        self.free_ns[Stream::Download] = end_ns;
        self.copied[tensor.index()] = 1;
        self.list.push(Step::Offload(Part::whole(tensor)));
        end_ns
    }

    /// Lists the states resident at the start; all other tensors have been evicted.
    fn finish(mut self) -> Result<Lengths, Stuck> {
        let at_start = self.sequence().tensor_ids().filter(|&id| self.choice.is_at_start(id));
        for tensor in at_start {
            let host_copy = self.copied_at_start[tensor.index()] == 1;
            self.list.add_resident(Resident { part: Part::whole(tensor), host_copy });
        }
        self.list.finish()
    }
}
