//! A list of steps in the making, and what is resident at its start.

use crate::plan::{Resident, Step};
use crate::scratch::OutOfScratch;

/// A list of steps in the making.
#[derive(Debug)]
pub(super) struct List<'l> {
    steps: &'l mut [Step],
    resident: &'l mut [Resident],
    lengths: Lengths,
}

/// How long the lists of a plan are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lengths {
    pub(super) steps: usize,
    pub(super) resident: usize,
}

/// Why a list cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stuck {
    /// The strategy needs more device memory than there is.
    NoMemory,
    /// The list is longer than the buffer for steps.
    ManySteps {
        /// The steps of the list.
        needed: usize,
    },
    /// The working memory is too small.
    Scratch(OutOfScratch),
}

impl From<OutOfScratch> for Stuck {
    fn from(error: OutOfScratch) -> Self {
        Self::Scratch(error)
    }
}

impl<'l> List<'l> {
    /// An empty list in these buffers.
    pub(super) fn new(steps: &'l mut [Step], resident: &'l mut [Resident]) -> Self {
        Self { steps, resident, lengths: Lengths::default() }
    }

    /// Steps that there is room for.
    pub(super) const fn room(&self) -> usize {
        self.steps.len()
    }

    /// Forgets all steps.
    pub(super) fn clear(&mut self) {
        self.lengths = Lengths::default();
    }

    /// Adds a step. A step that does not fit is counted, so that the error says how many steps
    /// the whole list has.
    pub(super) fn push(&mut self, step: Step) {
        if let Some(slot) = self.steps.get_mut(self.lengths.steps) {
            *slot = step;
        }
        self.lengths.steps += 1;
    }

    /// Adds a part that is resident at the start. The buffer is long enough.
    pub(super) fn add_resident(&mut self, resident: Resident) {
        debug_assert!(self.lengths.resident < self.resident.len(), "the caller checked the length");
        if let Some(slot) = self.resident.get_mut(self.lengths.resident) {
            *slot = resident;
            self.lengths.resident += 1;
        }
    }

    /// The lengths of a list that is complete.
    pub(super) fn finish(self) -> Result<Lengths, Stuck> {
        match self.lengths.steps {
            needed if needed > self.steps.len() => Err(Stuck::ManySteps { needed }),
            _ => Ok(self.lengths),
        }
    }
}
