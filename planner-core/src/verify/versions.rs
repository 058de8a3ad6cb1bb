//! The version of its operands that each launch reads and writes.
//!
//! The versions of a tensor are numbered: version 0 is its value at the start of the iteration, and
//! each first launch that writes the tensor creates the next version. A repeat reads and writes the
//! versions of the first launch.

#![expect(
    clippy::indexing_slicing,
    reason = "versions of a tensor are below the number of its writes and one, which `first` \
              counts"
)]

use super::copies::Held;
use crate::graph::{Graph, Launched, TensorId};
use crate::pieces::Pieces;
use crate::plan::{Plan, Step};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

pub(super) struct Versions<'g, 'a> {
    pieces: &'g Pieces<'g>,
    /// The version of each operand that the first launch reads or writes.
    of_operand: &'a [u32],
    /// The index in `valid_until` at which each tensor's versions begin, and at the end their
    /// number.
    first: &'a [u32],
    /// The last step that reads each version, or the first launch that replaces it if that comes
    /// later. A copy may be used at earlier steps: it holds the current value, or a value that a
    /// later launch reads.
    valid_until: &'a mut [u32],
    /// The last step that reads each tensor.
    last_read: &'a mut [u32],
}

const UNREAD: u32 = u32::MAX;

impl<'g, 'a> Versions<'g, 'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u32>(limits.operands),
            words::<u32>(limits.tensors.saturating_add(1)),
            words::<u32>(limits.operands.saturating_add(limits.tensors)),
            words::<u32>(limits.tensors),
            // Counters while versions are numbered, and later the version needed next of each
            // tensor.
            words::<u32>(limits.tensors),
        ])
    }

    /// Walks the list once. The list must launch every op for the first time exactly once. O(steps
    /// + operands).
    pub(super) fn new(
        pieces: &'g Pieces<'g>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let (graph, plan) = (pieces.graph(), pieces.plan());
        let of_operand = scratch.take(graph.operands().len(), 0u32)?;
        let first = scratch.take(graph.tensors().len().saturating_add(1), 0u32)?;
        let counts = &mut first[1..];
        for &tensor in graph.op_ids().flat_map(|op| graph.writes(op)) {
            counts[tensor.index()] = counts[tensor.index()].saturating_add(1);
        }
        let mut count = 0u32;
        for end in counts {
            // Tensors and operands together fit into 32 bits.
            count = count.saturating_add(*end).saturating_add(1);
            *end = count;
        }
        let valid_until = scratch.take(count as usize, 0u32)?;
        let last_read = scratch.take(graph.tensors().len(), UNREAD)?;
        number(graph, plan, of_operand, &mut scratch.reborrow())?;
        let mut versions = Self { pieces, of_operand, first, valid_until, last_read };
        versions.find_ends();
        Ok(versions)
    }

    fn find_ends(&mut self) {
        let (pieces, of_operand) = (self.pieces, self.of_operand);
        for (at, step) in (0..).zip(pieces.plan().steps) {
            let Some(launched) = step.launched() else { continue };
            for (tensor, version) in reads(pieces, of_operand, launched) {
                self.last_read[tensor.index()] = at;
                self.extend(tensor, version, at);
            }
            if !launched.is_repeat {
                for (tensor, version) in writes(pieces.graph(), of_operand, launched) {
                    debug_assert!(version > 0, "a first launch makes a version after the start's");
                    self.extend(tensor, version.saturating_sub(1), at);
                }
            }
        }
        for tensor in pieces.graph().tensor_ids() {
            self.extend(tensor, self.last(tensor), u32::MAX);
        }
    }

    fn extend(&mut self, tensor: TensorId, version: u32, at: u32) {
        let slot = self.slot(tensor, version);
        self.valid_until[slot] = self.valid_until[slot].max(at);
    }

    /// The version of a tensor that the last first launch writes.
    pub(super) fn last(&self, tensor: TensorId) -> u32 {
        let (first, end) =
            (self.first[tensor.index()], self.first[tensor.index().saturating_add(1)]);
        // Every tensor has version 0.
        end.saturating_sub(first).saturating_sub(1)
    }

    /// A copy of a version.
    pub(super) fn held(&self, tensor: TensorId, version: u32) -> Held {
        Held { version, valid_until: self.valid_until[self.slot(tensor, version)] }
    }

    fn slot(&self, tensor: TensorId, version: u32) -> usize {
        (self.first[tensor.index()] as usize).saturating_add(version as usize)
    }

    /// Whether no launch reads the tensor.
    pub(super) fn is_unread(&self, tensor: TensorId) -> bool {
        self.last_read[tensor.index()] == UNREAD
    }

    /// Whether this step is the last one that reads the tensor.
    pub(super) fn is_last_read(&self, tensor: TensorId, at: u32) -> bool {
        !self.is_unread(tensor) && self.last_read[tensor.index()] == at
    }

    /// Whether no step from this step on reads the tensor.
    pub(super) fn is_after_reads(&self, tensor: TensorId, at: u32) -> bool {
        self.is_unread(tensor) || self.last_read[tensor.index()] < at
    }

    /// The tensors that a launch reads, with the version of each.
    pub(super) fn reads(&self, launched: Launched) -> impl Iterator<Item = (TensorId, u32)> {
        reads(self.pieces, self.of_operand, launched)
    }

    /// The tensors that a launch writes, with the version of each.
    pub(super) fn writes(&self, launched: Launched) -> impl Iterator<Item = (TensorId, u32)> {
        writes(self.pieces.graph(), self.of_operand, launched)
    }

    /// For each evict, the version that the next launch with this tensor as an operand reads; the
    /// version of [`Held::NONE`] if that launch does not read it.
    pub(super) fn find_needed(
        &self,
        needed: &mut [u32],
        scratch: &mut Scratch<'_>,
    ) -> Result<(), OutOfScratch> {
        let mut scratch = scratch.reborrow();
        let next = scratch.take(self.pieces.graph().tensors().len(), Held::NONE.version)?;
        for (step, needed) in self.pieces.plan().steps.iter().zip(needed).rev() {
            if let Step::Evict(part) = *step {
                *needed = next[part.tensor.index()];
            }
            let Some(launched) = step.launched() else { continue };
            for (tensor, _) in self.writes(launched) {
                next[tensor.index()] = Held::NONE.version;
            }
            for (tensor, version) in self.reads(launched) {
                next[tensor.index()] = version;
            }
        }
        Ok(())
    }
}

/// Numbers the versions that the first launches read and write.
fn number(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    of_operand: &mut [u32],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let current = scratch.take(graph.tensors().len(), 0u32)?;
    for step in plan.steps {
        let Some(Launched { op, is_repeat: false }) = step.launched() else { continue };
        let first_read = graph.op(op).first_operand as usize;
        let first_write = graph.op(op).first_write();
        for (tensor, version) in graph.reads(op).iter().zip(&mut of_operand[first_read..]) {
            *version = current[tensor.index()];
        }
        for (tensor, version) in graph.writes(op).iter().zip(&mut of_operand[first_write..]) {
            let current = &mut current[tensor.index()];
            *current = current.saturating_add(1);
            *version = *current;
        }
    }
    Ok(())
}

fn reads(
    pieces: &Pieces<'_>,
    of_operand: &[u32],
    launched: Launched,
) -> impl Iterator<Item = (TensorId, u32)> {
    pieces.reads_at(launched).map(|(at, tensor)| (tensor, of_operand[at]))
}

fn writes(
    graph: &Graph<'_>,
    of_operand: &[u32],
    launched: Launched,
) -> impl Iterator<Item = (TensorId, u32)> {
    let first = graph.op(launched.op).first_write();
    let writes = graph.writes(launched.op);
    let versions = writes.iter().copied().zip(of_operand[first..].iter().copied());
    versions.filter(move |&(tensor, _)| graph.is_written_by(launched, tensor))
}
