//! Which values launches read and write. A value of a tensor has a number: the first launches
//! before it that wrote the tensor in the iteration. A repeat reads and makes the values that the
//! first launch of its op did.

use crate::graph::{Graph, Kind, Launched, TensorId};
use crate::plan::{Plan, Step};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

/// No value.
pub(super) const NOTHING: u32 = u32::MAX;

const UNREAD: u32 = u32::MAX;

/// The values of one iteration.
#[derive(Debug)]
pub(super) struct Versions<'a> {
    /// The value that each operand of the graph reads or writes.
    of_operand: &'a [u32],
    /// Where the values of each tensor begin in `last_read`.
    first: &'a [u32],
    /// The last step that reads each value.
    last_read: &'a [u32],
}

impl<'a> Versions<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u32>(limits.operands),
            words::<u32>(limits.tensors.saturating_add(1)),
            words::<u32>(limits.tensors.saturating_add(limits.operands)),
            words::<u32>(limits.tensors),
        ])
    }

    /// Numbers the values of a list that launches every op, and none again before. O(steps +
    /// operands).
    pub(super) fn new(
        graph: &Graph<'_>,
        plan: &Plan<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        let of_operand = scratch.take(graph.operands().len(), 0u32)?;
        let first = scratch.take(tensors + 1, 0u32)?;
        // One value at the start, and one for each write.
        first[1..].fill(1);
        for tensor in graph.op_ids().flat_map(|op| graph.writes(op)) {
            first[tensor.index() + 1] += 1;
        }
        for at in 0..tensors {
            first[at + 1] += first[at];
        }
        let last_read = scratch.take(first[tensors] as usize, UNREAD)?;
        let current = scratch.reborrow().take(tensors, 0u32)?;
        for (at, step) in (0..).zip(plan.steps) {
            let Step::Launch(launched) = *step else { continue };
            for (slot, tensor) in reads(graph, launched) {
                let version = &mut of_operand[slot];
                if !launched.is_repeat {
                    *version = current[tensor.index()];
                }
                last_read[(first[tensor.index()] + *version) as usize] = at;
            }
            for (slot, tensor) in writes(graph, launched) {
                if !launched.is_repeat {
                    current[tensor.index()] += 1;
                    of_operand[slot] = current[tensor.index()];
                }
            }
        }
        Ok(Self { of_operand, first, last_read })
    }

    /// The value that an operand of the graph reads or writes.
    pub(super) fn of_operand(&self, slot: usize) -> u32 {
        self.of_operand[slot]
    }

    /// The value that a tensor has after all launches.
    pub(super) fn last(&self, tensor: TensorId) -> u32 {
        let index = tensor.index();
        self.first[index + 1] - self.first[index] - 1
    }

    /// Whether a step after this one reads a value.
    pub(super) fn is_read_after(&self, tensor: TensorId, version: u32, at: u32) -> bool {
        let slot = self.first[tensor.index()].checked_add(version);
        let last = slot.and_then(|slot| self.last_read.get(slot as usize));
        version <= self.last(tensor) && last.is_some_and(|&last| last != UNREAD && last > at)
    }

    /// The last step that reads any value of a tensor.
    pub(super) fn last_read(&self, tensor: TensorId) -> Option<u32> {
        let [from, to] = [tensor.index(), tensor.index() + 1].map(|at| self.first[at] as usize);
        self.last_read[from..to].iter().copied().filter(|&last| last != UNREAD).max()
    }
}

/// What a launch reads, each with its operand of the graph.
pub(super) fn reads(
    graph: &Graph<'_>,
    launched: Launched,
) -> impl Iterator<Item = (usize, TensorId)> {
    let first = graph.op(launched.op).first_operand as usize;
    let (reads, writes) = (graph.reads(launched.op), graph.writes(launched.op));
    (first..).zip(reads.iter().copied()).filter(move |(_, tensor)| {
        !launched.is_repeat
            || graph.tensor(*tensor).kind == Kind::Temporary
            || !writes.contains(tensor)
    })
}

/// What a launch writes, each with its operand of the graph.
pub(super) fn writes(
    graph: &Graph<'_>,
    launched: Launched,
) -> impl Iterator<Item = (usize, TensorId)> {
    let first = graph.op(launched.op).first_operand as usize + graph.reads(launched.op).len();
    (first..).zip(graph.writes(launched.op).iter().copied()).filter(move |(_, tensor)| {
        !launched.is_repeat || graph.tensor(*tensor).kind == Kind::Temporary
    })
}
