//! A list of steps that is being written, and the parts that are resident at its start.

use crate::plan::{Resident, Step};
use crate::scratch::OutOfScratch;

/// A list of steps that is being written.
#[derive(Debug)]
pub(super) struct List<'l> {
    steps: &'l mut [Step],
    resident: &'l mut [Resident],
    lengths: Lengths,
}

/// The lengths of a plan's lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lengths {
    pub(super) steps: usize,
    pub(super) resident: usize,
}

/// Why a list cannot be finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stuck {
    /// The strategy needs more device memory than there is.
    NoMemory,
    /// The list is longer than the buffer for steps.
    ManySteps {
        /// The number of steps of the list.
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

    /// The number of steps that fit into the buffer.
    pub(super) const fn room(&self) -> usize {
        self.steps.len()
    }

    /// Removes all steps.
    pub(super) fn clear(&mut self) {
        self.lengths = Lengths::default();
    }

    /// Adds a step. Counts steps that do not fit, so that the error has the length of the whole
    /// list.
    pub(super) fn push(&mut self, step: Step) {
        if let Some(slot) = self.steps.get_mut(self.lengths.steps) {
            *slot = step;
        }
        self.lengths.steps = self.lengths.steps.saturating_add(1);
    }

    /// Adds a part that is resident at the start. The buffer must be long enough.
    pub(super) fn add_resident(&mut self, resident: Resident) {
        debug_assert!(self.lengths.resident < self.resident.len(), "the caller checked the length");
        if let Some(slot) = self.resident.get_mut(self.lengths.resident) {
            *slot = resident;
            self.lengths.resident = self.lengths.resident.saturating_add(1);
        }
    }

    /// The lengths of the finished list.
    pub(super) fn finish(self) -> Result<Lengths, Stuck> {
        match self.lengths.steps {
            needed if needed > self.steps.len() => Err(Stuck::ManySteps { needed }),
            _ => Ok(self.lengths),
        }
    }
}
