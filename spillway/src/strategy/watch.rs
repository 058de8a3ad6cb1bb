//! The limit of a search, and its observer.

use std::fmt;
use std::sync::atomic::AtomicBool;
#[cfg(feature = "search")]
use std::{sync::atomic::Ordering, time::Instant};

/// The limit of a search. It stops at the first of these limits, or on an interruption.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Limit {
    /// The most time.
    pub seconds: Option<f64>,
    /// The most generations or rounds.
    pub rounds: Option<u64>,
    /// A lower bound on the period. A search stops when its plan reaches it.
    pub bound_ns: u64,
}

impl Limit {
    /// No limit.
    #[must_use]
    pub const fn new() -> Self {
        Self { seconds: None, rounds: None, bound_ns: 0 }
    }
}

planner_core::setters!(Limit {
    seconds: f64 as Some => with_seconds,
    rounds: u64 as Some => with_rounds,
    bound_ns: u64 => with_bound_ns,
});

/// The progress of a search.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Progress {
    /// Time since the start.
    pub seconds: f64,
    /// The number of generations or rounds.
    pub rounds: u64,
    /// The number of individuals judged.
    pub evaluations: u64,
    /// The shortest period so far.
    pub best_ns: Option<u64>,
}

/// The observer of a search. The default observes nothing.
#[derive(Default)]
#[non_exhaustive]
pub struct Watch<'w> {
    /// Set to end the search with the best plan so far.
    pub interrupted: Option<&'w AtomicBool>,
    /// Receives progress.
    pub progress: Option<&'w mut (dyn FnMut(&Progress) + Send)>,
}

impl fmt::Debug for Watch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("interrupted", &self.interrupted).finish_non_exhaustive()
    }
}

#[cfg(feature = "search")]
impl Watch<'_> {
    pub(crate) fn show(&mut self, progress: &Progress) {
        if let Some(show) = &mut self.progress {
            show(progress);
        }
    }
}

#[cfg(feature = "search")]
impl Limit {
    /// Returns whether time is up or the search was interrupted.
    pub(crate) fn is_over(&self, started: Instant, interrupted: Option<&AtomicBool>) -> bool {
        interrupted.is_some_and(|it| it.load(Ordering::Relaxed))
            || self.seconds.is_some_and(|most| started.elapsed().as_secs_f64() >= most)
    }

    /// Returns whether the search ends after this many rounds, with this period.
    pub(crate) fn is_reached(
        &self,
        started: Instant,
        rounds: u64,
        best_ns: Option<u64>,
        interrupted: Option<&AtomicBool>,
    ) -> bool {
        self.is_over(started, interrupted)
            || self.rounds.is_some_and(|most| rounds >= most)
            || best_ns.is_some_and(|best_ns| best_ns <= self.bound_ns)
    }
}
