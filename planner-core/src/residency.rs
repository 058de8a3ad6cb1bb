//! Which pieces are on the device as a list is walked, and how many objects that takes.

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
    state: Flags<'a>,
    /// Objects that are resident, by tensor.
    objects: &'a mut [u64],
}

impl<'a> Residency<'a> {
    pub(crate) const fn scratch_words(limits: &Limits) -> usize {
        Flags::scratch_words(limits) + words::<u64>(limits.tensors)
    }

    /// What is resident when an iteration starts.
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

    /// Makes a part resident that must not be; the objects that takes.
    pub(crate) fn allocate(
        &mut self,
        pieces: &Pieces<'_>,
        part: Part,
        location: Location,
    ) -> Result<u64, PlanError> {
        if pieces.in_arena(part.tensor) {
            return Ok(0);
        }
        let span = pieces.span(part);
        let [_, any] = self.state.look(span);
        if any & NOW != 0 {
            return Err(PlanError::AlreadyResident(location, part.tensor));
        }
        self.state.change(span, 0, NOW);
        let objects = pieces.part_objects(part);
        self.objects[part.tensor.index()] += objects;
        Ok(objects)
    }

    /// Makes what is missing of a written tensor resident; the objects that takes.
    pub(crate) fn write(&mut self, pieces: &Pieces<'_>, tensor: TensorId) -> u64 {
        let resident = &mut self.objects[tensor.index()];
        if pieces.in_arena(tensor) || *resident == pieces.objects(tensor) {
            return 0;
        }
        self.state.change(pieces.whole(tensor), 0, NOW);
        pieces.objects(tensor) - core::mem::replace(resident, pieces.objects(tensor))
    }

    /// Gives back a part that must be resident; the objects that frees.
    pub(crate) fn release(
        &mut self,
        pieces: &Pieces<'_>,
        part: Part,
        location: Location,
    ) -> Result<u64, PlanError> {
        if pieces.in_arena(part.tensor) {
            return Err(PlanError::ArenaStep(location, part.tensor));
        }
        let span = pieces.span(part);
        let [all, _] = self.state.look(span);
        if all & NOW == 0 {
            return Err(PlanError::NotResident(location, part.tensor));
        }
        self.state.change(span, NOW, 0);
        let objects = pieces.part_objects(part);
        self.objects[part.tensor.index()] -= objects;
        Ok(objects)
    }

    /// Whether the end of the list is its start.
    pub(crate) fn check_end(
        &mut self,
        pieces: &Pieces<'_>,
        tensors: impl Iterator<Item = TensorId>,
    ) -> Result<(), PlanError> {
        for tensor in tensors {
            for piece in pieces.of(tensor) {
                match self.state.look(pieces.span_of(tensor, piece)) {
                    [NOW, _] => return Err(PlanError::AlreadyResident(Location::End, tensor)),
                    [AT_START, _] => return Err(PlanError::NotResident(Location::End, tensor)),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}
