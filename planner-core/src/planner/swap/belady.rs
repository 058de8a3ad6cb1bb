//! Chooses the evicts: Belady's choice within a size class (section 4.2).
//!
//! The ops are scanned twice. The first scan begins with an empty device; the states that it leaves
//! there are resident at the start of the second scan. If the second scan meets pressure that the
//! first one did not, a state that no op has used yet is evicted: it is not resident at the start.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors and slots are those of the sequence, and classes are those of the tables \
              that `check` has checked"
)]

use super::recent::{Recent, Unused};
use super::{Classes, Threshold};
use crate::graph::{Kind, TensorId};
use crate::plan::Pool;
use crate::planner::request::Task;
use crate::planner::uses::{Use, Uses};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::{LaunchId, Sequence};

const NONE: u32 = u32::MAX;

/// The fate of the tensor of an operand after the op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterUse {
    Stays,
    /// It is evicted for another tensor, and its value is needed again.
    Leaves,
    /// Its value is not needed again.
    Dies,
}

/// The evicts after each operand, and the states resident at the start.
#[derive(Debug)]
pub(super) struct Choice<'a> {
    after_use: &'a mut [u8],
    at_start: &'a mut [u8],
}

impl<'a> Choice<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u8>(limits.operands).saturating_add(words::<u8>(limits.tensors))
    }

    pub(super) fn new(
        sequence: &Sequence<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        Ok(Self {
            after_use: scratch.take(sequence.operands().len(), AfterUse::Stays as u8)?,
            at_start: scratch.take(sequence.tensors().len(), 0u8)?,
        })
    }

    /// The fate of the tensor of an operand, given by its slot. If an op reads and writes a tensor,
    /// the write decides.
    pub(super) fn after_use(&self, slot: usize) -> AfterUse {
        match self.after_use[slot] {
            after_use if after_use == AfterUse::Leaves as u8 => AfterUse::Leaves,
            after_use if after_use == AfterUse::Dies as u8 => AfterUse::Dies,
            _ => AfterUse::Stays,
        }
    }

    /// Whether a state is on the device when an iteration starts.
    pub(super) fn is_at_start(&self, tensor: TensorId) -> bool {
        self.at_start[tensor.index()] == 1
    }

    /// Scans twice. Each op must find enough objects. O(operands + evictions × tensors of a class
    /// on the device).
    pub(super) fn choose(
        &mut self,
        task: &Task<'_>,
        classes: &Classes<'_>,
        uses: &Uses<'_>,
        threshold: Threshold,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), OutOfScratch> {
        let mut scratch = scratch.reborrow();
        let sequence = task.sequence;
        let pressed =
            scratch.take(sequence.operands().len().saturating_add(sequence.len()), 0u8)?;
        let mut scan = Scan::new(task, classes, uses, threshold, &mut scratch)?;
        scan.run(self, |slot| {
            pressed[slot] = 1;
            false
        });
        for tensor in sequence.tensor_ids() {
            self.at_start[tensor.index()] = scan.present[tensor.index()];
        }
        scan.run(self, |slot| pressed[slot] == 0);
        for tensor in sequence.tensor_ids() {
            let stays = self.is_at_start(tensor) && scan.is_present(tensor);
            self.at_start[tensor.index()] = u8::from(stays);
            if scan.is_present(tensor) && !stays {
                self.after_use[scan.last_slot[tensor.index()] as usize] = AfterUse::Leaves as u8;
            }
        }
        Ok(())
    }
}

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    words::<u8>(limits.operands.saturating_add(limits.ops))
        .saturating_add(Scan::scratch_words(limits))
}

/// One scan of the ops.
struct Scan<'s> {
    task: &'s Task<'s>,
    classes: &'s Classes<'s>,
    uses: &'s Uses<'s>,
    threshold: Threshold,
    /// The number of free objects of each class.
    free: &'s mut [u64],
    recent: Recent<'s>,
    rested: Unused<'s>,
    present: &'s mut [u8],
    /// The next [`Use`] of each tensor.
    upcoming: &'s mut [u32],
    /// The last operand that used each tensor; no operand before the first use.
    last_slot: &'s mut [u32],
    /// The time at which the op of that operand ended, in compute time alone.
    last_ns: &'s mut [u64],
    /// The last op that uses each tensor as an operand.
    touched_by: &'s mut [u32],
    now_ns: u64,
}

impl<'s> Scan<'s> {
    const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u64>(limits.pools),
            Recent::scratch_words(limits),
            Unused::scratch_words(limits),
            words::<u8>(limits.tensors),
            words::<u32>(limits.tensors).saturating_mul(3),
            words::<u64>(limits.tensors),
        ])
    }

    fn new(
        task: &'s Task<'s>,
        classes: &'s Classes<'s>,
        uses: &'s Uses<'s>,
        threshold: Threshold,
        scratch: &mut Scratch<'s>,
    ) -> Result<Self, OutOfScratch> {
        let (tensors, pools) = (task.sequence.tensors().len(), classes.pools.len());
        Ok(Self {
            task,
            classes,
            uses,
            threshold,
            free: scratch.take(pools, 0u64)?,
            recent: Recent::new(tensors, pools, scratch)?,
            rested: Unused::new(task.sequence, classes, scratch)?,
            present: scratch.take(tensors, 0u8)?,
            upcoming: scratch.take(tensors, 0u32)?,
            last_slot: scratch.take(tensors, NONE)?,
            last_ns: scratch.take(tensors, 0u64)?,
            touched_by: scratch.take(tensors, NONE)?,
            now_ns: 0,
        })
    }

    fn is_present(&self, tensor: TensorId) -> bool {
        self.present[tensor.index()] == 1
    }

    /// Scans all ops, from the states resident at the start. Under pressure at an operand, or at a
    /// workspace (numbered after all operands), `spares` says whether a tensor that no op has used
    /// yet must be evicted.
    fn run(&mut self, choice: &mut Choice<'_>, mut spares: impl FnMut(usize) -> bool) {
        let sequence = self.task.sequence;
        self.start(choice);
        for op in sequence.launches() {
            let operands = sequence.operands_of(op);
            let first = sequence.first_slot(op);
            for &tensor in operands {
                self.touched_by[tensor.index()] = op.0;
            }
            for (slot, &tensor) in (first..).zip(operands) {
                if self.is_present(tensor) {
                    continue;
                }
                let class = self.classes.of_tensor(tensor);
                self.take(choice, class, op, || spares(slot));
                self.present[tensor.index()] = 1;
                self.recent.push(class, tensor);
            }
            let workspace = self.classes.of_workspace(sequence.graph(), sequence.op(op));
            if let Some(class) = workspace {
                let slot = sequence.operands().len().saturating_add(op.index());
                self.take(choice, class, op, || spares(slot));
                self.free[class] = self.free[class].saturating_add(1);
            }
            self.leave(choice, op);
        }
    }

    fn start(&mut self, choice: &mut Choice<'_>) {
        choice.after_use.fill(AfterUse::Stays as u8);
        for (free, &Pool { count, .. }) in self.free.iter_mut().zip(self.classes.pools) {
            *free = count;
        }
        self.recent.clear();
        self.rested.clear();
        self.last_slot.fill(NONE);
        self.last_ns.fill(0);
        self.touched_by.fill(NONE);
        self.now_ns = 0;
        for tensor in self.task.sequence.tensor_ids() {
            self.upcoming[tensor.index()] = self.uses.first(tensor).0;
            self.present[tensor.index()] = choice.at_start[tensor.index()];
            if choice.is_at_start(tensor) {
                let class = self.classes.of_tensor(tensor);
                self.free[class] = self.free[class].saturating_sub(1);
                self.recent.push(class, tensor);
            }
        }
    }

    /// Takes an object of a class. One can be freed, since the op itself does not take all.
    fn take(
        &mut self,
        choice: &mut Choice<'_>,
        class: usize,
        op: LaunchId,
        spares: impl FnOnce() -> bool,
    ) {
        if let Some(left) = self.free[class].checked_sub(1) {
            self.free[class] = left;
            return;
        }
        let untouched = if spares() { self.untouched(class, op) } else { None };
        let Some(victim) = untouched.or_else(|| self.victim(class, op)) else { return };
        match self.last_slot[victim.index()] {
            NONE => choice.at_start[victim.index()] = 0,
            slot => choice.after_use[slot as usize] = AfterUse::Leaves as u8,
        }
        self.present[victim.index()] = 0;
        self.recent.remove(class, victim);
    }

    /// Among tensors last used at least a threshold ago, the tensor whose next use is last. If
    /// there is no such tensor, the least recently used tensor.
    fn victim(&mut self, class: usize, op: LaunchId) -> Option<TensorId> {
        self.collect_unused(class);
        let mut rested = core::mem::take(&mut self.rested);
        let latest = rested.with(class, |heap| {
            while let Some((key, tensor)) = heap.top() {
                let tensor = TensorId(tensor);
                if self.is_present(tensor) && self.key(tensor) == key {
                    return Some(tensor);
                }
                heap.pop();
            }
            None
        });
        self.rested = rested;
        let is_free = |tensor: &TensorId| self.touched_by[tensor.index()] != op.0;
        // The op's own operands have the earliest next use of all.
        latest.filter(is_free).or_else(|| self.recent.of(class).find(is_free))
    }

    /// Moves the tensors that have not been used for a threshold of time to [`Unused`].
    fn collect_unused(&mut self, class: usize) {
        let object_bytes = self.classes.pools[class].object_bytes;
        let threshold_ns = self.threshold.ns(self.task.machine, object_bytes);
        loop {
            let (slots, times, now_ns) = (&*self.last_slot, &*self.last_ns, self.now_ns);
            let rests = self.recent.next_unused(class, |tensor| {
                let at = tensor.index();
                slots[at] == NONE || times[at].saturating_add(threshold_ns) <= now_ns
            });
            let Some(tensor) = rests else { return };
            let key = self.key(tensor);
            self.rested.with(class, |heap| heap.push(key, tensor.0));
        }
    }

    /// A tensor with a later next use has a smaller key; among equals, one with an earlier last
    /// use.
    fn key(&self, tensor: TensorId) -> u64 {
        let latest = u64::from(u32::MAX);
        let last = match self.last_slot[tensor.index()] {
            NONE => 0,
            slot => u64::from(slot) + 1,
        };
        (latest.saturating_sub(self.next_use(tensor)) << 32) | last
    }

    /// Among tensors resident at the start and not used yet, the tensor whose next use is last.
    fn untouched(&self, class: usize, op: LaunchId) -> Option<TensorId> {
        let untouched = self.recent.of(class);
        let untouched = untouched.take_while(|tensor| self.last_slot[tensor.index()] == NONE);
        let others = untouched.filter(|tensor| self.touched_by[tensor.index()] != op.0);
        others.max_by_key(|&tensor| self.next_use(tensor))
    }

    /// The position of the next use, in this iteration or the next one.
    fn next_use(&self, tensor: TensorId) -> u64 {
        let position = |op: LaunchId| u64::from(op.0);
        let upcoming = Use(self.upcoming[tensor.index()]);
        upcoming.op().map_or_else(
            || {
                let first = self.uses.first(tensor).op().map_or(0, position);
                first.saturating_add(self.task.sequence.len() as u64)
            },
            position,
        )
    }

    /// Removes the operands of an op whose values are dead; the others become most recently used.
    fn leave(&mut self, choice: &mut Choice<'_>, op: LaunchId) {
        let sequence = self.task.sequence;
        self.now_ns = self.now_ns.saturating_add(sequence.time_ns(op));
        let first = sequence.first_slot(op);
        for (slot, &tensor) in (first..).zip(sequence.operands_of(op)) {
            self.upcoming[tensor.index()] = self.uses.next(slot).0;
            self.last_slot[tensor.index()] = slot as u32;
            self.last_ns[tensor.index()] = self.now_ns;
        }
        for &tensor in sequence.operands_of(op) {
            if !self.is_present(tensor) {
                continue;
            }
            let class = self.classes.of_tensor(tensor);
            self.recent.remove(class, tensor);
            let upcoming = Use(self.upcoming[tensor.index()]);
            let is_state = sequence.tensor(tensor).kind == Kind::State;
            if upcoming.reads() || (upcoming.is_none() && is_state) {
                self.recent.push(class, tensor);
            } else {
                choice.after_use[self.last_slot[tensor.index()] as usize] = AfterUse::Dies as u8;
                self.present[tensor.index()] = 0;
                self.free[class] = self.free[class].saturating_add(1);
                let count = self.classes.pools[class].count;
                debug_assert!(self.free[class] <= count, "a class has that many objects");
            }
        }
    }
}
