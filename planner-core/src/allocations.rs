//! The allocations and releases of a plan over several iterations.
//!
//! The object numbers of all allocations form one array; a *slot* is a position in it. A piece
//! holds consecutive slots, so a walk keeps only one number for each piece.

#![expect(
    clippy::indexing_slicing,
    reason = "pieces are those of the table, and the arrays have an entry for each"
)]

use crate::graph::{Graph, Launched, OpId, TensorId};
use crate::index_set::IndexSet;
use crate::pieces::Pieces;
use crate::plan::{Location, Part, Plan, PlanError, Step};
use crate::scratch::{Limits, Scratch, words};
use core::ops::Range;

/// No slot.
pub(crate) const NO_SLOT: u32 = u32::MAX;

/// The owner of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taker {
    Tensor(TensorId),
    Workspace(OpId),
}

/// An event of the objects of some slots. Positions count the steps of all iterations from 1; 0 is
/// the start.
#[derive(Clone, Debug)]
pub(crate) enum Event<'e> {
    /// An allocation takes them.
    Take {
        /// The place of the allocation in the plan.
        location: Location,
        /// The position of the step.
        at: u32,
        /// The number of the allocation.
        allocation: u32,
        taker: Taker,
        pool: usize,
        slots: Range<u32>,
        /// The first slot of each piece of the tensor after this event, or [`NO_SLOT`]; for a
        /// workspace, its first slot.
        first: &'e [u32],
    },
    /// The objects are free from this position on.
    Give { at: u32, slots: Range<u32> },
    /// A piece that was in the objects of `start` at first is in the objects of `end` after the
    /// last iteration.
    End { tensor: TensorId, start: Range<u32>, end: Range<u32> },
}

/// The number of allocations and slots of a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) allocations: u32,
    pub(crate) slots: u32,
}

impl Totals {
    /// Adds an allocation of `count` objects; returns its number and its slots.
    fn add(&mut self, count: u64) -> Option<(u32, Range<u32>)> {
        let first = self.slots;
        self.slots = u64::from(first).checked_add(count).and_then(slot)?;
        let allocation = self.allocations;
        // There are no more allocations than slots.
        self.allocations = allocation.saturating_add(1);
        Some((allocation, first..self.slots))
    }
}

/// Words of scratch that [`walk`] needs.
pub(crate) const fn scratch_words(limits: &Limits) -> usize {
    words::<u32>(limits.pieces)
        .saturating_mul(2)
        .saturating_add(IndexSet::scratch_words(limits.pieces))
}

/// Walks the list a number of times. O(steps + operands + log pieces for each allocated piece),
/// times the iterations.
///
/// # Errors
/// A list that breaks a rule of residency, more than 2^32 - 2 slots or steps in all, and errors of
/// `visit`.
pub(crate) fn walk(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    iterations: u32,
    scratch: &mut Scratch<'_>,
    visit: impl FnMut(Event<'_>) -> Result<(), PlanError>,
) -> Result<Totals, PlanError> {
    let entries = (plan.steps.len() as u64).checked_mul(iterations.into());
    entries.and_then(slot).ok_or(PlanError::TooManySteps)?;
    let mut scratch = scratch.reborrow();
    let first = scratch.take(pieces.len(), NO_SLOT)?;
    let first_at_start = scratch.take(pieces.len(), NO_SLOT)?;
    let mut missing = IndexSet::new(pieces.len(), &mut scratch)?;
    (0..pieces.len()).for_each(|piece| missing.insert(piece));
    let mut walk = Walk { graph, pieces, first, missing, totals: Totals::default(), visit };
    for (entry, resident) in (0..).zip(plan.resident_at_start) {
        walk.bring(resident.part, Location::Start(entry), 0)?;
    }
    first_at_start.copy_from_slice(walk.first);
    let mut at = 0u32;
    for _ in 0..iterations {
        for (step, action) in (0..).zip(plan.steps) {
            at = at.saturating_add(1);
            walk.step(action, Location::Step(step), at)?;
        }
    }
    walk.end(first_at_start)?;
    Ok(walk.totals)
}

struct Walk<'w, S> {
    graph: &'w Graph<'w>,
    pieces: &'w Pieces<'w>,
    /// The first slot of each resident piece.
    first: &'w mut [u32],
    /// The pieces that are not resident.
    missing: IndexSet<'w>,
    totals: Totals,
    visit: S,
}

impl<S: FnMut(Event<'_>) -> Result<(), PlanError>> Walk<'_, S> {
    fn step(&mut self, step: &Step, location: Location, at: u32) -> Result<(), PlanError> {
        match *step {
            Step::Prefetch(part) => self.bring(part, location, at),
            Step::Launch(launched) => self.launch(launched, location, at),
            Step::Evict(part) => self.evict(part, location, at),
            Step::Offload(_) | Step::Host(_) => Ok(()),
        }
    }

    /// Allocates a part. No piece of the part may be resident.
    fn bring(&mut self, part: Part, location: Location, at: u32) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) {
            return Ok(());
        }
        let pieces = self.pieces.of_part(part);
        if self.first[pieces.clone()].iter().any(|&first| first != NO_SLOT) {
            return Err(PlanError::AlreadyResident(location, tensor));
        }
        self.take_pieces(tensor, pieces, location, at)
    }

    /// Allocates objects for each of these pieces that has no object.
    fn take_pieces(
        &mut self,
        tensor: TensorId,
        pieces: Range<usize>,
        location: Location,
        at: u32,
    ) -> Result<(), PlanError> {
        let mut count = 0u64;
        while let Some(piece) = self.missing.first(pieces.clone()) {
            let first = u64::from(self.totals.slots).checked_add(count).and_then(slot);
            self.first[piece] = first.ok_or(PlanError::Overflow(location))?;
            self.missing.remove(piece);
            // A tensor has no more objects than bytes, so the sum cannot overflow.
            count = count.saturating_add(self.pieces.range(tensor, piece).1);
        }
        if count > 0 {
            let (allocation, slots) =
                self.totals.add(count).ok_or(PlanError::Overflow(location))?;
            let (taker, pool) = (Taker::Tensor(tensor), self.pieces.pool(tensor));
            let first = &self.first[self.pieces.of(tensor)];
            (self.visit)(Event::Take { location, at, allocation, taker, pool, slots, first })?;
        }
        Ok(())
    }

    fn launch(&mut self, launched: Launched, location: Location, at: u32) -> Result<(), PlanError> {
        let (graph, pieces) = (self.graph, self.pieces);
        for tensor in graph.written_by(launched).filter(|&tensor| !pieces.in_arena(tensor)) {
            self.take_pieces(tensor, pieces.of(tensor), location, at)?;
        }
        let op = launched.op;
        if let Some((pool, count)) = pieces.workspace(graph, op) {
            let (allocation, given) =
                self.totals.add(count).ok_or(PlanError::Overflow(location))?;
            let (taker, slots, first) = (Taker::Workspace(op), given.clone(), &[given.start]);
            (self.visit)(Event::Take { location, at, allocation, taker, pool, slots, first })?;
            (self.visit)(Event::Give { at, slots: given })?;
        }
        Ok(())
    }

    fn evict(&mut self, part: Part, location: Location, at: u32) -> Result<(), PlanError> {
        let tensor = part.tensor;
        if self.pieces.in_arena(tensor) {
            return Err(PlanError::ArenaStep(location, tensor));
        }
        for piece in self.pieces.of_part(part) {
            let first = core::mem::replace(&mut self.first[piece], NO_SLOT);
            if first == NO_SLOT {
                return Err(PlanError::NotResident(location, tensor));
            }
            self.missing.insert(piece);
            let slots = self.slots(tensor, piece, first);
            (self.visit)(Event::Give { at, slots })?;
        }
        Ok(())
    }

    /// The slots of a piece, starting at the first one; they have been counted.
    fn slots(&self, tensor: TensorId, piece: usize, first: u32) -> Range<u32> {
        first..first.saturating_add(self.pieces.range(tensor, piece).1 as u32)
    }

    /// Checks that the end of the list matches its start.
    fn end(&mut self, first_at_start: &[u32]) -> Result<(), PlanError> {
        for tensor in self.graph.tensor_ids() {
            for piece in self.pieces.of(tensor) {
                let (start, end) = (first_at_start[piece], self.first[piece]);
                match (start, end) {
                    (NO_SLOT, NO_SLOT) => {}
                    (NO_SLOT, _) => return Err(PlanError::AlreadyResident(Location::End, tensor)),
                    (_, NO_SLOT) => return Err(PlanError::NotResident(Location::End, tensor)),
                    _ => {
                        let start = self.slots(tensor, piece, start);
                        let end = self.slots(tensor, piece, end);
                        (self.visit)(Event::End { tensor, start, end })?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// The number of a slot, which is never [`NO_SLOT`].
fn slot(number: u64) -> Option<u32> {
    u32::try_from(number).ok().filter(|&number| number != NO_SLOT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Kind, Op, Tensor};
    use crate::machine::Machine;
    use crate::plan::{Pool, Prediction, Resident};

    #[test]
    fn more_objects_than_fit_into_64_bits_are_an_error() {
        const FIRST_PIECE: u64 = u64::MAX - 39;
        let state = |bytes| Tensor { bytes, kind: Kind::State };
        let (tensors, ops) = ([state(8), state(FIRST_PIECE + 8)], [Op::new(1)]);
        let mut memory = [0; 500];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&tensors, &ops, &[], &mut scratch.reborrow()).unwrap();
        let [small, large] = [0, 1].map(|tensor| Part::whole(TensorId(tensor)));
        let again = [Step::Evict(small), Step::Prefetch(small)];
        let first_piece = Part { first: 0, count: FIRST_PIECE, ..large };
        let last = [Step::Prefetch(large), Step::Offload(first_piece)];
        let steps = [again, again, again, again, last];
        let plan = Plan {
            budget_bytes: 8,
            arena_bytes: 0,
            arena: &[],
            pools: &[Pool { object_bytes: 1, count: 8 }],
            tensor_pool: &[],
            workspace_pool: &[],
            resident_at_start: &[Resident { part: small, host_copy: true }],
            steps: steps.as_flattened(),
            placements: None,
            predicted: Prediction::default(),
        };
        let pieces = Pieces::new(&graph, &Machine::of_chunks(1), &plan, &mut scratch).unwrap();
        let totals = walk(&graph, &plan, &pieces, 1, &mut scratch, |_| Ok(()));
        // The second piece of the large tensor would begin at slot 40 + `FIRST_PIECE`, or 2^64.
        assert_eq!(totals, Err(PlanError::Overflow(Location::Step(8))));
    }
}
