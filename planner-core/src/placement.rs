//! Fixed physical objects for everything that a plan allocates, so that nothing is mapped or
//! unmapped once it runs.

mod free;
mod place;
mod sweep;
mod walk;

use crate::plan::PlanError;

pub use place::{Over, PlacementError, Room, place, scratch_words, slots};
pub(crate) use walk::{Event, NO_SLOT, Taker, scratch_words as walk_scratch_words, walk};

/// The objects of every allocation of a plan, over one or more iterations. Allocations are
/// numbered in list order: first one for each entry of `resident_at_start`, then, iteration
/// after iteration, one for each prefetch and, at a launch, one for each written tensor of
/// which something is not resident, in the op's order, and one for its workspace. Arena
/// tensors have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placements<'a> {
    /// Iterations that the objects are given for before they repeat, from 1 to
    /// [`Placements::MOST_ITERATIONS`].
    pub iterations: u32,
    /// Object numbers within their pools, one allocation after the other; the first of an
    /// allocation holds its first newly allocated object, and so on.
    pub objects: &'a [u64],
    /// For each allocation, where its numbers end in `objects`.
    pub ends: &'a [u32],
}

impl<'a> Placements<'a> {
    /// The most iterations that objects are given for.
    pub const MOST_ITERATIONS: u32 = 64;

    /// Checks that objects may be given for this many iterations.
    pub(crate) fn check_iterations(iterations: u32) -> Result<(), PlanError> {
        match iterations {
            1..=Self::MOST_ITERATIONS => Ok(()),
            _ => Err(PlanError::PlacementIterations(iterations)),
        }
    }

    /// The objects of one allocation; none where there is no such allocation.
    #[must_use]
    pub fn of(&self, allocation: u32) -> &'a [u64] {
        let end = |at: u32| self.ends.get(at as usize).map_or(0, |&end| end as usize);
        let first = allocation.checked_sub(1).map_or(0, end);
        self.objects.get(first..end(allocation)).unwrap_or_default()
    }

    /// Whether the ends are those of all numbers, one allocation behind the other.
    pub(crate) fn is_table(&self) -> bool {
        let last = self.ends.last().map_or(0, |&end| end as usize);
        self.ends.is_sorted() && last == self.objects.len()
    }
}
