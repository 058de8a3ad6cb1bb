//! A plan lowered to three streams and the waits between them.

use crate::plan::Step;
use core::fmt;

/// The three streams. Each takes its steps in list order; all three run at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Launches.
    Compute = 0,
    /// Prefetches, host to device.
    Upload = 1,
    /// Offloads, device to host.
    Download = 2,
}

impl Stream {
    /// All streams, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Compute, Self::Upload, Self::Download];

    /// The stream that takes a step; none for an evict.
    #[must_use]
    pub const fn of(step: &Step) -> Option<Self> {
        match step {
            Step::Launch(_) => Some(Self::Compute),
            Step::Prefetch(_) => Some(Self::Upload),
            Step::Offload(_) => Some(Self::Download),
            Step::Evict(_) => None,
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Compute => "compute",
            Self::Upload => "upload",
            Self::Download => "download",
        })
    }
}

/// "Start after step `index` of that stream, `laps` iterations back." Where that iteration
/// lies before the first, there is nothing to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wait {
    /// Position among the steps of the awaited stream, within an iteration.
    pub index: u32,
    /// How many iterations back.
    pub laps: u32,
}

/// When one step of a plan runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scheduled {
    /// The stream that takes it; none for an evict.
    pub stream: Option<Stream>,
    /// Its position within its stream and iteration (for an evict, without meaning).
    pub index: u32,
    /// What must have ended before it starts, by stream. For an evict, which is on no
    /// stream: what must have ended before its memory is free.
    pub waits: [Option<Wait>; 3],
}

impl Scheduled {
    /// What room for a schedule is filled with.
    pub const EMPTY: Self = Self { stream: None, index: 0, waits: [None; 3] };
}

/// When the steps run, in list order, which is the order of submission: those of one
/// iteration, or of as many as the plan's placements cover, since what waits for an object
/// differs from one to the next.
#[derive(Clone, Copy, Debug)]
pub struct Schedule<'a> {
    /// Entry `i` of an iteration says when step `i` of the plan runs; one iteration behind
    /// the other.
    pub steps: &'a [Scheduled],
    /// Number of steps of each stream in an iteration.
    pub stream_steps: [u32; 3],
    /// Iterations after which the entries repeat, at least 1.
    pub iterations: u32,
}

impl<'a> Schedule<'a> {
    /// The entries of an iteration, counted from 0.
    #[must_use]
    pub fn of_iteration(&self, iteration: u64) -> &'a [Scheduled] {
        let iterations = u64::from(self.iterations.max(1));
        let steps = self.steps.len() / iterations as usize;
        // Below the number of iterations, of which each has so many entries.
        let first = (iteration % iterations) as usize * steps;
        &self.steps[first..first + steps]
    }
}
