//! When a search stops, and who watches it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// When a search stops: whichever comes first, or when it is interrupted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Limit {
    /// After so much time.
    pub seconds: Option<f64>,
    /// After so many generations, or rounds.
    pub rounds: Option<u64>,
    /// With a period that no plan can beat.
    pub bound_ns: u64,
}

/// How far a search has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Since its start.
    pub seconds: f64,
    /// Generations, or rounds.
    pub rounds: u64,
    /// Individuals judged.
    pub evaluations: u64,
    /// The least period so far.
    pub best_ns: Option<u64>,
}

/// Who watches a search.
pub struct Watch<'w> {
    /// Set to end the search with the best plan so far.
    pub interrupted: &'w AtomicBool,
    /// Told of progress.
    pub progress: &'w mut (dyn FnMut(&Progress) + Send),
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("interrupted", self.interrupted).finish_non_exhaustive()
    }
}

impl Watch<'_> {
    pub(crate) fn show(&mut self, progress: &Progress) {
        (self.progress)(progress);
    }
}

impl Limit {
    /// Whether time is up, or nobody wants to wait.
    pub(crate) fn is_over(&self, started: Instant, interrupted: &AtomicBool) -> bool {
        interrupted.load(Ordering::Relaxed)
            || self.seconds.is_some_and(|most| started.elapsed().as_secs_f64() >= most)
    }

    /// Whether the search ends after so many rounds, with this period.
    pub(crate) fn is_reached(
        &self,
        started: Instant,
        rounds: u64,
        best_ns: Option<u64>,
        interrupted: &AtomicBool,
    ) -> bool {
        self.is_over(started, interrupted)
            || self.rounds.is_some_and(|most| rounds >= most)
            || best_ns.is_some_and(|best_ns| best_ns <= self.bound_ns)
    }
}
