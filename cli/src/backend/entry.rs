//! What the program knows of a backend.

use super::suite;
use crate::failure::Failure;
use backend_checks::Unavailable;
use indicatif::ProgressBar;
use planner_core::timeline::PREDICTED_ITERATIONS;
use planner_core::{PerStream, Verified};
use spillway::names::Names;

/// A backend.
#[derive(Debug)]
pub(crate) struct Entry {
    /// What it is called in commands and tables.
    pub(crate) name: &'static str,
    /// What it is, and what picks its device.
    pub(crate) help: &'static str,
    /// Looks for its devices; none where they are not part of this machine.
    pub(crate) devices: Option<FindDevices>,
    /// How it runs plans; none where it does not.
    pub(crate) runs: Option<Runs>,
    /// Holds it to the conformance suite, with its own chunks or with chunks of so many bytes.
    pub(crate) conformance: fn(Option<u64>) -> Result<suite::Report, Failure>,
}

/// Finds the devices of a backend, or says why there is none.
pub(crate) type FindDevices = fn() -> Result<Vec<Device>, Unavailable>;

/// A device of this machine.
#[derive(Debug)]
pub(crate) struct Device {
    /// What `--json` prints.
    pub(crate) fields: serde_json::Value,
    /// Lines for a person.
    pub(crate) text: String,
}

/// How a backend runs plans.
#[derive(Debug)]
pub(crate) struct Runs {
    /// Whether it takes seeds.
    pub(crate) seeds: bool,
    /// Whether it runs iterations as graphs.
    pub(crate) graphs: bool,
    /// Chooses its device.
    pub(crate) open: fn(Options) -> Result<Box<dyn Runner>, Failure>,
}

/// Options of a run that not every backend takes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    /// What the order of work is drawn from; else it is the order of submission.
    pub(crate) seed: Option<u64>,
    /// What delays of copies are drawn from; else there are none.
    pub(crate) delays: Option<u64>,
    /// Whether iterations run as graphs.
    pub(crate) graph: bool,
}

/// A device that runs plans.
pub(crate) trait Runner {
    /// The device, for a person; a simulated one is called after its machine.
    fn device(&self, machine: &str) -> Result<String, Failure>;

    /// Runs a plan.
    fn run(
        &self,
        verified: &Verified<'_>,
        names: &Names<'_>,
        job: Job<'_>,
    ) -> Result<Outcome, Stopped>;

    /// The period that a plan is to have, where it is another than the plan's own.
    fn predicted_ns(&self, _verified: &Verified<'_>, _iterations: u64) -> Option<u64> {
        None
    }
}

/// What to run of a plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'j> {
    pub(crate) iterations: u64,
    /// It moves on by 1 for each.
    pub(crate) progress: &'j ProgressBar,
    /// Whether to time the steps of the last iterations.
    pub(crate) timed: bool,
}

impl Job<'_> {
    /// The first iteration, counted from 1, of those of which steps are timed.
    pub(crate) const fn first_timed(&self) -> u64 {
        self.iterations.saturating_sub(PREDICTED_ITERATIONS) + 1
    }
}

/// What a run showed.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Virtual ranges reserved before the first iteration.
    pub(crate) ranges: u64,
    /// Calls of `map` before the first iteration.
    pub(crate) set_up_maps: u64,
    /// Time that the host was busy with them.
    pub(crate) mapping_ns: u64,
    /// Time from one iteration to the next.
    pub(crate) period_ns: u64,
    /// Calls of `map` in one iteration, on average over all but the first.
    pub(crate) map_calls: f64,
    /// One number for all states after the last iteration.
    pub(crate) digest: u64,
    /// The start and the end of each step of the last iterations, where they were timed.
    pub(crate) steps_ns: Option<StepTimes>,
}

/// The start and the end of each step of each stream, one iteration after the other.
pub(crate) type StepTimes = PerStream<Vec<[u64; 2]>>;

/// Why a plan did not run to its end.
#[derive(Clone, Debug)]
pub(crate) struct Stopped {
    pub(crate) reason: String,
    /// Whether the device is too small for it.
    pub(crate) too_large: bool,
}

impl From<String> for Stopped {
    fn from(reason: String) -> Self {
        Self { reason, too_large: false }
    }
}
