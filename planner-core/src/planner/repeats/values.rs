//! The values of a sequence: the launches that write and last read each value, and the launches
//! that compute it again.

#![expect(
    clippy::indexing_slicing,
    reason = "slots, values and launches are those of the sequence, and the arrays have an entry \
              for each"
)]

use crate::graph::Kind;
use crate::planner::gaps::Gaps;
use crate::planner::memory::Memory;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::{LaunchId, Sequence};
use heapless::Vec;

/// The most ops that are run again for one value.
const MOST_OPS: usize = 256;

/// The most values that are held for one value.
const MOST_HELD: usize = 64;

/// No launch, or no operand.
pub(super) const NONE: u32 = u32::MAX;

/// The values of temporaries. A value is named by the slot that writes it.
#[derive(Debug)]
pub(in crate::planner) struct Values<'a> {
    /// The last launch that reads each value.
    last_read: &'a mut [u32],
    /// For each slot, the first later launch that writes the tensor.
    overwritten: &'a mut [u32],
    /// For each launch, the number of the last closure that contains it.
    marks: &'a mut [u32],
    mark: u32,
}

impl<'a> Values<'a> {
    pub(in crate::planner) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u32>(limits.operands).saturating_mul(2),
            words::<u32>(limits.ops),
            words::<u32>(limits.tensors),
        ])
    }

    /// Walks the sequence backwards. O(operands).
    pub(in crate::planner) fn new(
        sequence: &Sequence<'_>,
        gaps: &Gaps<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let operands = sequence.operands().len();
        let last_read = scratch.take(operands, NONE)?;
        let overwritten = scratch.take(operands, NONE)?;
        let marks = scratch.take(sequence.len(), 0)?;
        let next_write = scratch.reborrow().take(sequence.tensors().len(), NONE)?;
        for launch in sequence.launches().rev() {
            let first_write = sequence.first_write(launch);
            for (slot, tensor) in sequence.slots(launch).zip(sequence.operands_of(launch)) {
                overwritten[slot] = next_write[tensor.index()];
                let version = gaps.version(slot);
                if slot < first_write && version != NONE && last_read[version as usize] == NONE {
                    last_read[version as usize] = launch.0;
                }
            }
            for tensor in sequence.writes(launch) {
                next_write[tensor.index()] = launch.0;
            }
        }
        Ok(Self { last_read, overwritten, marks, mark: 0 })
    }

    /// Whether a launch at or after `at` reads a value.
    pub(super) fn is_read_from(&self, value: u32, at: LaunchId) -> bool {
        let last = self.last_read[value as usize];
        last != NONE && last >= at.0
    }

    /// Whether the value of a state or an input that a slot reads still exists at a launch.
    pub(super) fn is_unchanged(&self, slot: usize, at: LaunchId) -> bool {
        self.overwritten[slot] >= at.0
    }

    /// Whether an op may run again just before a launch, if the temporaries that it reads exist.
    pub(in crate::planner) fn can_run_again(
        &self,
        sequence: &Sequence<'_>,
        gaps: &Gaps<'_>,
        maker: LaunchId,
        at: LaunchId,
    ) -> bool {
        let is_temporary =
            |slot: usize| sequence.graph().is_written_again(sequence.operands()[slot]);
        sequence.is_repeatable(maker)
            && repeat_reads(sequence, gaps, maker)
                .all(|slot| is_temporary(slot) || self.is_unchanged(slot, at))
    }

    /// The last launch that reads a value.
    pub(super) fn last_read(&self, value: u32) -> Option<LaunchId> {
        let last = self.last_read[value as usize];
        (last != NONE).then_some(LaunchId(last))
    }

    /// Keeps a value until a launch that will read it.
    pub(in crate::planner) fn hold(&mut self, value: u32, until: LaunchId) {
        let last = &mut self.last_read[value as usize];
        *last = if *last == NONE { until.0 } else { until.0.max(*last) };
    }

    /// The launches that compute a value again just before a launch: its op, and the ops that
    /// compute values it reads and that no later launch reads, unless it `is_better_held`. `None`
    /// if the value cannot be computed again.
    pub(super) fn closure(
        &mut self,
        Base { sequence, gaps, memory }: Base<'_>,
        value: u32,
        at: LaunchId,
        mut is_better_held: impl FnMut(&Self, u32, u64) -> bool,
    ) -> Option<Closure> {
        self.mark = self.mark.saturating_add(1);
        let mut closure = Closure { time_ns: 0, makers: Vec::new(), held: Vec::new() };
        let first = gaps.launch(value as usize);
        self.marks[first.index()] = self.mark;
        closure.makers.push(first).ok()?;
        let mut looked_at = 0usize;
        while let Some(&launch) = closure.makers.get(looked_at) {
            looked_at = looked_at.saturating_add(1);
            if !sequence.is_repeatable(launch) {
                return None;
            }
            closure.time_ns = closure.time_ns.saturating_add(sequence.repeat_ns(launch));
            for slot in repeat_reads(sequence, gaps, launch) {
                let tensor = sequence.operands()[slot];
                let is_unchanged = self.is_unchanged(slot, at);
                if sequence.tensor(tensor).kind != Kind::Temporary {
                    if !is_unchanged {
                        return None;
                    }
                    continue;
                }
                let version = gaps.version(slot);
                let maker = gaps.launch(version as usize);
                let is_there = self.is_read_from(version, at)
                    || (memory.in_arena(tensor) && is_unchanged)
                    || self.marks[maker.index()] == self.mark;
                if is_there {
                    continue;
                }
                let can_be_made = sequence.is_repeatable(maker);
                if is_unchanged && (!can_be_made || is_better_held(self, version, closure.time_ns))
                {
                    if !closure.held.contains(&version) {
                        closure.held.push(version).ok()?;
                    }
                } else {
                    self.marks[maker.index()] = self.mark;
                    closure.makers.push(maker).ok()?;
                }
            }
        }
        Some(closure)
    }
}

/// The sequence whose values are computed again.
#[derive(Clone, Copy)]
pub(super) struct Base<'b> {
    pub(super) sequence: &'b Sequence<'b>,
    pub(super) gaps: &'b Gaps<'b>,
    pub(super) memory: &'b Memory<'b>,
}

/// The launches that compute a value again.
#[derive(Debug)]
pub(super) struct Closure {
    /// The time of all ops.
    pub(super) time_ns: u64,
    /// The launches whose ops run again, the last one first.
    pub(super) makers: Vec<LaunchId, MOST_OPS>,
    /// Values that must be kept longer than their last reads.
    pub(super) held: Vec<u32, MOST_HELD>,
}

/// The slots that a repeat of a launch would read: all reads, except of states and inputs that the
/// launch overwrites. O(reads).
pub(super) fn repeat_reads<'s>(
    sequence: &'s Sequence<'_>,
    gaps: &'s Gaps<'_>,
    launch: LaunchId,
) -> impl Iterator<Item = usize> + use<'s> {
    let is_kept = move |&slot: &usize| {
        let is_temporary = sequence.graph().is_written_again(sequence.operands()[slot]);
        is_temporary || !gaps.is_overwritten_by_own_op(slot)
    };
    (sequence.first_slot(launch)..sequence.first_write(launch)).filter(is_kept)
}
