//! Which pieces are on the device as a list is walked, and how many objects that takes.

use crate::graph::TensorId;
use crate::pieces::Pieces;
use crate::plan::{Part, Place, Plan, PlanError};
use crate::scratch::{Limits, Scratch, words};

const NOW: u8 = 1;
const AT_START: u8 = 2;

/// The residency of every piece outside the arena.
#[derive(Debug)]
pub(crate) struct Residency<'a> {
    state: &'a mut [u8],
}

impl<'a> Residency<'a> {
    pub(crate) const fn scratch_words(limits: &Limits) -> usize {
        words::<u8>(limits.pieces)
    }

    /// What is resident when an iteration starts.
    pub(crate) fn at_start(
        plan: &Plan<'_>,
        pieces: &Pieces<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let mut residency = Self { state: scratch.take(pieces.len(), 0u8)? };
        for (at, entry) in plan.resident_at_start.iter().enumerate() {
            residency.allocate(pieces, entry.part, Place::Start(at as u32))?;
        }
        for state in residency.state.iter_mut().filter(|state| **state == NOW) {
            *state = NOW | AT_START;
        }
        Ok(residency)
    }

    /// Makes a part resident that must not be; the objects that takes.
    pub(crate) fn allocate(
        &mut self,
        pieces: &Pieces<'_>,
        part: Part,
        place: Place,
    ) -> Result<u64, PlanError> {
        let mut objects = 0;
        if !pieces.in_arena(part.tensor) {
            for piece in pieces.of_part(part) {
                if self.state[piece] & NOW != 0 {
                    return Err(PlanError::AlreadyResident(place, part.tensor));
                }
                self.state[piece] |= NOW;
                objects += pieces.range(part.tensor, piece).1;
            }
        }
        Ok(objects)
    }

    /// Makes what is missing of a written tensor resident; the objects that takes.
    pub(crate) fn write(&mut self, pieces: &Pieces<'_>, tensor: TensorId) -> u64 {
        let mut objects = 0;
        if !pieces.in_arena(tensor) {
            for piece in pieces.of(tensor) {
                if self.state[piece] & NOW == 0 {
                    self.state[piece] |= NOW;
                    objects += pieces.range(tensor, piece).1;
                }
            }
        }
        objects
    }

    /// Gives back a part that must be resident; the objects that frees.
    pub(crate) fn release(
        &mut self,
        pieces: &Pieces<'_>,
        part: Part,
        place: Place,
    ) -> Result<u64, PlanError> {
        if pieces.in_arena(part.tensor) {
            return Err(PlanError::ArenaStep(place, part.tensor));
        }
        let mut objects = 0;
        for piece in pieces.of_part(part) {
            if self.state[piece] & NOW == 0 {
                return Err(PlanError::NotResident(place, part.tensor));
            }
            self.state[piece] &= !NOW;
            objects += pieces.range(part.tensor, piece).1;
        }
        Ok(objects)
    }

    /// Whether the end of the list is its start.
    pub(crate) fn check_end(
        &self,
        pieces: &Pieces<'_>,
        tensors: impl Iterator<Item = TensorId>,
    ) -> Result<(), PlanError> {
        for tensor in tensors {
            for piece in pieces.of(tensor) {
                match self.state[piece] {
                    NOW => return Err(PlanError::AlreadyResident(Place::End, tensor)),
                    AT_START => return Err(PlanError::NotResident(Place::End, tensor)),
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Whether one piece is resident.
    pub(crate) fn holds(&self, piece: usize) -> bool {
        self.state[piece] & NOW != 0
    }
}
