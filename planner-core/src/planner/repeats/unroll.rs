//! Writes the list of launches in which dropped values are computed again before their next read.

#![expect(
    clippy::indexing_slicing,
    reason = "slots, tensors and launches are those of the sequence, and the arrays have an entry \
              for each"
)]

use super::cover::Dropped;
use super::values::{NONE, Values, repeat_reads};
use crate::graph::OpId;
use crate::planner::gaps::Gaps;
use crate::planner::memory::Memory;
use crate::scratch::{Limits, MOST_LAUNCHES, OutOfScratch, Scratch, total, words};
use crate::sequence::{LaunchId, Sequence};

pub(in crate::planner) const fn scratch_words(limits: &Limits) -> usize {
    total([words::<u32>(limits.tensors), words::<u32>(limits.ops).saturating_mul(2)])
}

/// The state of writing a list.
struct Unrolling<'u, 's> {
    sequence: &'u Sequence<'s>,
    gaps: &'u Gaps<'u>,
    memory: &'u Memory<'u>,
    values: &'u Values<'u>,
    /// The value that each temporary holds; no value after it was dropped.
    holds: &'u mut [u32],
    /// Launches that wait for their operands.
    stack: &'u mut [u32],
    /// Launches that were repeated for the next launch.
    again: &'u mut [u32],
    launches: &'u mut [OpId],
    len: usize,
    /// The number of operands that further launches may have.
    operands_left: usize,
}

/// Buffers for a list of launches.
#[derive(Debug)]
pub(in crate::planner) struct Unrolled<'u> {
    /// The ops to launch.
    pub(in crate::planner) launches: &'u mut [OpId],
    /// The position in `launches` of each launch of the sequence.
    pub(in crate::planner) positions: &'u mut [u32],
}

/// What came of writing a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::planner) enum Outcome {
    /// The number of launches in the list.
    Written(usize),
    /// A value that a launch reads, which was dropped and cannot be computed again.
    Lost(u32),
    /// There are too many launches.
    TooLong,
}

/// Writes the ops to launch, in order: each launch of the sequence, after repeats of the values
/// that it reads and that were dropped.
pub(in crate::planner) fn unroll(
    sequence: &Sequence<'_>,
    gaps: &Gaps<'_>,
    memory: &Memory<'_>,
    values: &Values<'_>,
    dropped: &Dropped<'_>,
    Unrolled { launches, positions }: Unrolled<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Outcome, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let mut unrolling = Unrolling {
        sequence,
        gaps,
        memory,
        values,
        holds: scratch.take(sequence.tensors().len(), NONE)?,
        stack: scratch.take(sequence.len(), 0)?,
        again: scratch.take(sequence.len(), 0)?,
        launches,
        len: 0,
        operands_left: sequence.graph().operands().len().saturating_mul(MOST_LAUNCHES),
    };
    for launch in sequence.launches() {
        if let Err(outcome) = unrolling.launch(launch, dropped) {
            return Ok(outcome);
        }
        positions[launch.index()] = (unrolling.len as u32).saturating_sub(1);
    }
    Ok(Outcome::Written(unrolling.len))
}

impl Unrolling<'_, '_> {
    /// Launches an op after the repeats that it needs, and drops values as chosen.
    fn launch(&mut self, launch: LaunchId, dropped: &Dropped<'_>) -> Result<(), Outcome> {
        let sequence = self.sequence;
        let reads = sequence.first_slot(launch)..sequence.first_write(launch);
        let mut made = 0;
        // The launches that compute one value may overwrite another.
        while let Some(slot) = reads.clone().find(|&slot| !self.is_there(slot)) {
            if !self.make(slot, launch, &mut made).ok_or(Outcome::TooLong)? {
                return Err(Outcome::Lost(self.gaps.version(slot)));
            }
        }
        self.push(launch).ok_or(Outcome::TooLong)?;
        for at in 0..made {
            let maker = LaunchId(self.again[at]);
            for slot in self.sequence.written_slots(maker) {
                self.drop_dead(slot as u32, launch);
            }
        }
        for (slot, &tensor) in sequence.slots(launch).zip(sequence.operands_of(launch)) {
            if !sequence.graph().is_written_again(tensor) {
                continue;
            }
            if slot >= sequence.first_write(launch) {
                self.holds[tensor.index()] = slot as u32;
            }
            if dropped.is_dropped(slot) {
                self.holds[tensor.index()] = NONE;
                continue;
            }
            let value = self.gaps.version(slot);
            if value != NONE {
                self.drop_dead(value, launch);
            }
        }
        Ok(())
    }

    /// Drops a value that no later launch of the sequence reads and that takes pool memory.
    fn drop_dead(&mut self, value: u32, launch: LaunchId) {
        let tensor = self.sequence.operands()[value as usize];
        let is_held = self.holds[tensor.index()] == value;
        let is_over = !self.values.is_read_from(value, launch.next());
        if is_held && is_over && !self.memory.in_arena(tensor) {
            self.holds[tensor.index()] = NONE;
        }
    }

    fn push(&mut self, launch: LaunchId) -> Option<()> {
        let operands = self.sequence.operands_of(launch).len();
        self.operands_left = self.operands_left.checked_sub(operands)?;
        *self.launches.get_mut(self.len)? = self.sequence.op(launch);
        self.len = self.len.saturating_add(1);
        Some(())
    }

    fn is_there(&self, slot: usize) -> bool {
        let tensor = self.sequence.operands()[slot];
        !self.sequence.graph().is_written_again(tensor)
            || self.holds[tensor.index()] == self.gaps.version(slot)
    }

    /// Repeats the launches that compute a missing operand of a launch. Returns whether the operand
    /// is there then; `None` if there are too many launches.
    fn make(&mut self, slot: usize, launch: LaunchId, made: &mut usize) -> Option<bool> {
        let mut depth = 0usize;
        self.wait_for(slot, &mut depth)?;
        while let Some(top) = depth.checked_sub(1) {
            let maker = LaunchId(self.stack[top]);
            let mut reads = repeat_reads(self.sequence, self.gaps, maker);
            if let Some(slot) = reads.find(|&slot| !self.is_there(slot)) {
                self.wait_for(slot, &mut depth)?;
                continue;
            }
            if !self.values.can_run_again(self.sequence, self.gaps, maker, launch) {
                return Some(false);
            }
            depth = top;
            self.push(maker)?;
            for slot in self.sequence.written_slots(maker) {
                let tensor = self.sequence.operands()[slot];
                if self.sequence.graph().is_written_again(tensor) {
                    self.holds[tensor.index()] = slot as u32;
                }
            }
            *self.again.get_mut(*made)? = maker.0;
            *made = made.saturating_add(1);
        }
        Some(self.is_there(slot))
    }

    fn wait_for(&mut self, slot: usize, depth: &mut usize) -> Option<()> {
        let maker = self.gaps.launch(self.gaps.version(slot) as usize);
        *self.stack.get_mut(*depth)? = maker.0;
        *depth = depth.saturating_add(1);
        Some(())
    }
}
