//! The addresses of a plan in one allocation of device memory.

use crate::error::Error;
use crate::growth::buffer;
use planner_core::placement::{self, AddressError, Holder, Run};
use planner_core::{Limits, Scratch, TensorId, Verified};

/// The offsets of all memory that the steps of a plan touch. They lie in one slab: an allocation that the
/// runtime makes once and never remaps. The arena comes first, then each pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    slab_bytes: u64,
    /// The number of steps in an iteration.
    steps: usize,
    iterations: u32,
    /// All runs, in the order of the steps.
    runs: Vec<Run>,
    /// The end in `runs` of the runs at the start, then of the runs of each step.
    ends: Vec<usize>,
    /// For each tensor, whether it always lies in one piece.
    is_contiguous: Vec<bool>,
}

impl Addresses {
    /// Finds all offsets.
    ///
    /// # Errors
    /// [`Error::NotPlaced`] if the plan does not fix its objects; [`Error::OutOfMemory`].
    pub fn of(verified: &Verified<'_>) -> Result<Self, Error> {
        let (graph, plan) = (verified.graph(), verified.plan());
        let limits = Limits::of_plan(graph, plan);
        let mut memory = buffer(placement::addresses_scratch_words(&limits), 0)?;
        let mut runs: Vec<Run> = Vec::new();
        let slab_bytes =
            placement::addresses(verified, &mut Scratch::new(&mut memory), |run| runs.push(run))
                .map_err(|error| match error {
                    AddressError::Scratch(error) => Error::OutOfMemory(error),
                    // A verified plan breaks no rule.
                    _ => Error::NotPlaced,
                })?;
        let mut is_contiguous = vec![true; graph.tensors().len()];
        for pair in runs.windows(2) {
            let [one, other] = pair else { continue };
            if let Holder::Tensor(tensor) = one.holder
                && (one.entry, one.holder) == (other.entry, other.holder)
            {
                is_contiguous[tensor.index()] = false;
            }
        }
        let end = |entry| runs.partition_point(|run| run.entry < Some(entry));
        let ends = (0..=limits.entries() as u32).map(end).collect();
        let (steps, iterations) = (limits.steps, plan.iterations());
        Ok(Self { slab_bytes, steps, iterations, runs, ends, is_contiguous })
    }

    /// The size of the slab. It is at most the budget.
    #[must_use]
    pub const fn slab_bytes(&self) -> u64 {
        self.slab_bytes
    }

    /// The number of iterations after which the offsets repeat.
    #[must_use]
    pub const fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Returns the memory that a step touches in an iteration. Positions and iterations count from 0. A copy
    /// touches a part of a tensor. A launch touches each of its tensors, then its workspace. The result is
    /// empty for an evict and for a position after the last step.
    #[must_use]
    pub fn at(&self, iteration: u64, position: usize) -> &[Run] {
        if position >= self.steps {
            return &[];
        }
        let entry = (iteration % u64::from(self.iterations)) as usize * self.steps + position;
        &self.runs[self.ends[entry]..self.ends[entry + 1]]
    }

    /// Returns the runs of all tensors that are on the device when the first iteration starts.
    #[must_use]
    pub fn at_start(&self) -> &[Run] {
        &self.runs[..self.ends[0]]
    }

    /// Returns all runs: first the runs at the start, then the runs of the steps of all iterations.
    #[must_use]
    pub fn all(&self) -> &[Run] {
        &self.runs
    }

    /// Returns whether a tensor lies at consecutive offsets at each launch and copy that touches it, so that
    /// one address is enough. Without virtual memory, every tensor that kernels take as one address must be
    /// contiguous.
    ///
    /// # Panics
    /// The graph does not have the tensor.
    #[must_use]
    pub fn is_contiguous(&self, tensor: TensorId) -> bool {
        self.is_contiguous[tensor.index()]
    }
}
