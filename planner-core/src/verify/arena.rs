//! Proves that no two tensors that are in use at the same time share bytes of the arena
//! (`docs/format.md`, 3.3).
//!
//! A temporary owns its bytes from a launch that writes it without reading it until another tensor
//! takes the bytes in the same way. A launch that uses the temporary after that is an error. The
//! tensors of collectives, like states, own their bytes forever: launches on different streams that
//! use different tensors may run in any order.

#![expect(
    clippy::indexing_slicing,
    reason = "the table of pieces has checked the arena's tensors; ranks are positions in \
              `by_offset`"
)]

use crate::graph::{Kind, Launched, TensorId};
use crate::index_set::IndexSet;
use crate::pieces::Pieces;
use crate::plan::{ArenaPlacement, PlanError, Step};
use crate::scratch::{Limits, Scratch, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    words::<u32>(limits.tensors)
        .saturating_mul(4)
        .saturating_add(words::<u8>(limits.tensors))
        .saturating_add(IndexSet::scratch_words(limits.tensors))
}

/// No rank, no step, or no tensor: not in the arena, not used yet, or not displaced.
const NONE: u32 = u32::MAX;

/// Follows the list with the set of tensors that own their bytes. O(steps + operands + n log n).
pub(super) fn check(pieces: &Pieces<'_>, scratch: &mut Scratch<'_>) -> Result<(), PlanError> {
    let (graph, plan) = (pieces.graph(), pieces.plan());
    let tensors = graph.tensors().len();
    let by_offset = scratch.take(plan.arena.len(), 0u32)?;
    for (position, slot) in (0..).zip(&mut *by_offset) {
        *slot = position;
    }
    by_offset.sort_unstable_by_key(|&position| plan.arena[position as usize].offset_bytes);
    let rank = scratch.take(tensors, NONE)?;
    for (at, &position) in (0..).zip(&*by_offset) {
        rank[plan.arena[position as usize].tensor.index()] = at;
    }
    let fixed = scratch.take(tensors, 0u8)?;
    graph.mark_exchanged(fixed);
    for tensor in graph.tensor_ids().filter(|&it| graph.tensor(it).kind != Kind::Temporary) {
        fixed[tensor.index()] = 1;
    }
    let fixed = &*fixed;
    let mut owners = Owners {
        pieces,
        fixed,
        arena: plan.arena,
        by_offset,
        rank,
        touched: scratch.take(tensors, NONE)?,
        taken_by: scratch.take(tensors, NONE)?,
        owning: IndexSet::new(plan.arena.len(), scratch)?,
    };
    let is_fixed = |tensor: TensorId| fixed[tensor.index()] == 1;
    for placement in plan.arena.iter().filter(|placement| is_fixed(placement.tensor)) {
        owners.take(placement.tensor, 0)?;
    }
    for (at, step) in (0..).zip(plan.steps) {
        if let Step::Launch(launched) = *step {
            owners.launch(launched, at)?;
        }
    }
    // Temporaries that no launch uses may share bytes with each other, but not with states and
    // inputs.
    let untouched = plan.arena.iter().filter(|placement| !is_fixed(placement.tensor));
    for &ArenaPlacement { tensor, .. } in untouched {
        if owners.touched[tensor.index()] == NONE {
            owners.take(tensor, plan.steps.len() as u32)?;
            // No step uses it, so the next unused temporary may take the same bytes.
            owners.touched[tensor.index()] = NONE;
        }
    }
    Ok(())
}

/// The tensors that own their bytes. No two of them overlap.
struct Owners<'w> {
    pieces: &'w Pieces<'w>,
    /// 1 for each tensor that owns its bytes forever.
    fixed: &'w [u8],
    arena: &'w [ArenaPlacement],
    /// Positions in the arena's list by offset, and the rank of each tensor in this order.
    by_offset: &'w [u32],
    rank: &'w [u32],
    /// The last step that used each tensor.
    touched: &'w mut [u32],
    /// The tensor that took the bytes of each tensor.
    taken_by: &'w mut [u32],
    owning: IndexSet<'w>,
}

impl Owners<'_> {
    fn placement(&self, rank: usize) -> ArenaPlacement {
        self.arena[self.by_offset[rank] as usize]
    }

    fn end_bytes(&self, placement: ArenaPlacement) -> u64 {
        // The table of pieces has checked that every tensor ends inside the arena.
        placement.offset_bytes.saturating_add(self.pieces.graph().tensor(placement.tensor).bytes)
    }

    /// A temporary that a launch writes without reading takes its bytes; every other operand must
    /// own its bytes.
    fn launch(&mut self, launched: Launched, at: u32) -> Result<(), PlanError> {
        let graph = self.pieces.graph();
        for tensor in self.pieces.read_by(launched) {
            if self.rank[tensor.index()] != NONE {
                self.find(tensor, at)?;
            }
        }
        for tensor in graph.written_by(launched) {
            let is_read = self.touched[tensor.index()] == at;
            if self.rank[tensor.index()] == NONE || is_read {
                continue;
            }
            match self.fixed[tensor.index()] {
                0 => self.take(tensor, at)?,
                _ => self.find(tensor, at)?,
            }
        }
        Ok(())
    }

    /// Records a use of a tensor, which must own its bytes.
    fn find(&mut self, tensor: TensorId, at: u32) -> Result<(), PlanError> {
        self.touched[tensor.index()] = at;
        match self.taken_by[tensor.index()] {
            NONE => Ok(()),
            other => Err(PlanError::ArenaOverlap(tensor, TensorId(other))),
        }
    }

    /// Takes the bytes of a tensor from all their owners, which must be temporaries that the same
    /// launch does not use.
    fn take(&mut self, tensor: TensorId, at: u32) -> Result<(), PlanError> {
        let rank = self.rank[tensor.index()] as usize;
        let new = self.placement(rank);
        let end = self.end_bytes(new);
        while let Some(other) = self.overlapping(rank, end) {
            let placement = self.placement(other);
            let index = placement.tensor.index();
            if self.fixed[index] == 1 || self.touched[index] == at {
                return Err(PlanError::ArenaOverlap(placement.tensor, tensor));
            }
            self.taken_by[index] = tensor.0;
            self.owning.remove(other);
        }
        self.owning.insert(rank);
        self.taken_by[tensor.index()] = NONE;
        self.touched[tensor.index()] = at;
        Ok(())
    }

    /// The rank of another tensor that owns some of the bytes of a tensor.
    fn overlapping(&self, rank: usize, end: u64) -> Option<usize> {
        let start = self.placement(rank).offset_bytes;
        let before = self.owning.before(rank);
        let before = before.filter(|&other| self.end_bytes(self.placement(other)) > start);
        let after = self.owning.next(rank.saturating_add(1));
        let after = after.filter(|&other| self.placement(other).offset_bytes < end);
        before.or(after)
    }
}
