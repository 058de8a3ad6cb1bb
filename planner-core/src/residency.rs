//! Tracks which pieces are on the device while a list is walked, and how many objects they take.

#![expect(
    clippy::indexing_slicing,
    reason = "tensor ids are those of the checked graph, and `objects` has an entry for each"
)]

use crate::graph::{Graph, TensorId};
use crate::pieces::Pieces;
use crate::plan::{Location, Part, Plan, PlanError};
use crate::ranges::Flags;
use crate::scratch::{Limits, Scratch, words};

const NOW: u8 = 1;
const AT_START: u8 = 2;

/// The residency of every piece outside the arena.
#[derive(Debug)]
pub(crate) struct Residency<'a> {
    /// For tensors in one piece, only [`AT_START`] is set: their count tells whether they are
    /// resident now.
    state: Flags<'a>,
    /// The number of resident objects of each tensor.
    objects: &'a mut [u64],
}

impl<'a> Residency<'a> {
    pub(crate) const fn scratch_words(limits: &Limits) -> usize {
        Flags::scratch_words(limits).saturating_add(words::<u64>(limits.tensors))
    }

    /// The residency when an iteration starts.
    pub(crate) fn at_start(
        graph: &Graph<'_>,
        plan: &Plan<'_>,
        pieces: &Pieces<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let state = Flags::new(pieces.len(), scratch)?;
        let mut residency = Self { state, objects: scratch.take(graph.tensors().len(), 0u64)? };
        for (at, entry) in plan.resident_at_start.iter().enumerate() {
            let objects = residency.allocate(pieces, entry.part, Location::Start(at as u32))?;
            if objects > 0 {
                residency.state.change(pieces.span(entry.part), 0, AT_START);
            }
        }
        Ok(residency)
    }

    /// Makes a part resident, which must not be resident yet. Returns the number of objects that
    /// this takes.
    pub(crate) fn allocate(
        &mut self,
        pieces: &Pieces<'_>,
        part: Part,
        location: Location,
    ) -> Result<u64, PlanError> {
        if pieces.in_arena(part.tensor) {
            return Ok(0);
        }
        let resident = &mut self.objects[part.tensor.index()];
        let is_resident = if *resident == 0 || !pieces.is_cut(part.tensor) {
            *resident > 0
        } else {
            let [_, any] = self.state.query(pieces.span(part));
            any & NOW != 0
        };
        if is_resident {
            return Err(PlanError::AlreadyResident(location, part.tensor));
        }
        let objects = pieces.part_objects(part);
        *resident = resident.saturating_add(objects);
        self.mark(pieces, part, 0, NOW);
        Ok(objects)
    }

    /// Makes the missing pieces of a written tensor resident. Returns the number of objects that
    /// this takes.
    pub(crate) fn write(&mut self, pieces: &Pieces<'_>, tensor: TensorId) -> u64 {
        let resident = &mut self.objects[tensor.index()];
        if pieces.in_arena(tensor) || *resident == pieces.objects(tensor) {
            return 0;
        }
        let before = core::mem::replace(resident, pieces.objects(tensor));
        self.mark(pieces, Part::whole(tensor), 0, NOW);
        pieces.objects(tensor).saturating_sub(before)
    }

    fn mark(&mut self, pieces: &Pieces<'_>, part: Part, taken: u8, given: u8) {
        if pieces.is_cut(part.tensor) {
            self.state.change(pieces.span(part), taken, given);
        }
    }

    /// Frees a part, which must be resident. Returns the number of objects that this frees.
    pub(crate) fn release(
        &mut self,
        pieces: &Pieces<'_>,
        part: Part,
        location: Location,
    ) -> Result<u64, PlanError> {
        if pieces.in_arena(part.tensor) {
            return Err(PlanError::ArenaStep(location, part.tensor));
        }
        let resident = &mut self.objects[part.tensor.index()];
        let is_resident = if pieces.is_cut(part.tensor) {
            let [all, _] = self.state.query(pieces.span(part));
            all & NOW != 0
        } else {
            *resident > 0
        };
        if !is_resident {
            return Err(PlanError::NotResident(location, part.tensor));
        }
        let objects = pieces.part_objects(part);
        *resident = resident.saturating_sub(objects);
        self.mark(pieces, part, NOW, 0);
        Ok(objects)
    }

    /// Checks that the end of the list matches its start.
    pub(crate) fn check_end(
        &mut self,
        pieces: &Pieces<'_>,
        tensors: impl Iterator<Item = TensorId>,
    ) -> Result<(), PlanError> {
        for tensor in tensors {
            let is_whole = !pieces.is_cut(tensor) && self.objects[tensor.index()] > 0;
            for piece in pieces.of(tensor) {
                let [state, _] = self.state.query(pieces.span_of(tensor, piece));
                match state | if is_whole { NOW } else { 0 } {
                    NOW => return Err(PlanError::AlreadyResident(Location::End, tensor)),
                    AT_START => return Err(PlanError::NotResident(Location::End, tensor)),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
