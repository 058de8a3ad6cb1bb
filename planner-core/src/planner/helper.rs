//! A second thread of the caller, on which a planner runs one of two independent searches.
//!
//! The core has no threads. The caller passes a function that runs two functions at once, and
//! buffers for the second one. A helper changes no plan.

use super::error::PlanningError;
use super::request::Output;
use crate::scratch::{Buffer, BufferTooShort, Scratch};
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Runs two functions, if possible at the same time, and returns after both.
pub type RunBoth<'r> = dyn Fn(&mut (dyn FnMut() + Send), &mut (dyn FnMut() + Send)) + 'r;

/// Buffers of a second thread, and the function that runs it.
pub struct Helper<'h> {
    /// As many entries as in the planner's own output; more are not used.
    pub output: Output<'h>,
    /// As many words as in the planner's own scratch.
    pub scratch: Scratch<'h>,
    /// Calls both functions.
    pub run_both: &'h RunBoth<'h>,
}

impl fmt::Debug for Helper<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { output, scratch, run_both: _ } = self;
        f.debug_struct("Helper")
            .field("output", output)
            .field("scratch", scratch)
            .finish_non_exhaustive()
    }
}

impl Helper<'_> {
    /// The same helper, for a shorter time.
    pub(super) const fn reborrow(&mut self) -> Helper<'_> {
        let Self { output, scratch, run_both } = self;
        Helper { output: output.reborrow(), scratch: scratch.reborrow(), run_both: *run_both }
    }

    /// The same helper, with room for as many steps as the planner's own output: a list that is too
    /// long for one must be too long for the other.
    pub(super) fn beside(&mut self, own: &Output<'_>) -> Result<Helper<'_>, BufferTooShort> {
        let Helper { output, scratch, run_both } = self.reborrow();
        let steps = Buffer::Steps.first(output.steps, own.steps.len())?;
        Ok(Helper { output: Output { steps, ..output }, scratch, run_both })
    }
}

/// Jobs that two threads share, so that both work until no job is left.
pub(super) struct Jobs {
    /// The number of the next job.
    next: AtomicUsize,
}

impl Jobs {
    pub(super) const fn new() -> Self {
        Self { next: AtomicUsize::new(0) }
    }

    /// The jobs that this thread takes, each with its number. Both threads iterate over the same jobs, and
    /// each job is taken once.
    pub(super) fn of<J>(&self, jobs: impl Iterator<Item = J>) -> impl Iterator<Item = (usize, J)> {
        jobs.enumerate().filter(|&(number, _)| {
            let after = number.saturating_add(1);
            self.next.compare_exchange(number, after, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
    }
}

/// Calls two functions and returns both results. A helper runs the second function at the same time.
/// Without a helper, both functions use the same buffers, one after the other.
///
/// # Errors
/// The error of the first function that fails.
pub(super) fn both<A: Send, B: Send>(
    helper: Option<&mut Helper<'_>>,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
    one: impl FnOnce(&mut Output<'_>, &mut Scratch<'_>) -> Result<A, PlanningError> + Send,
    other: impl FnOnce(&mut Output<'_>, &mut Scratch<'_>) -> Result<B, PlanningError> + Send,
) -> Result<(A, B), PlanningError> {
    let Some(helper) = helper else {
        return Ok((one(output, scratch)?, other(output, scratch)?));
    };
    let Helper { output: other_output, scratch: other_scratch, run_both } = helper;
    let (mut one, mut other) = (Some(one), Some(other));
    let (mut first, mut second) = (Ok(None), Ok(None));
    let mut run_one = || {
        if let Some(one) = one.take() {
            first = one(output, scratch).map(Some);
        }
    };
    let mut run_other = || {
        if let Some(other) = other.take() {
            second = other(other_output, other_scratch).map(Some);
        }
    };
    run_both(&mut run_one, &mut run_other);
    // The caller's function may have failed to run one of them.
    run_one();
    run_other();
    match (first?, second?) {
        (Some(first), Some(second)) => Ok((first, second)),
        _ => Err(PlanningError::Stuck),
    }
}
