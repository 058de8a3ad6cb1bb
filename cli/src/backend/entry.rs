//! The interface between the program and a backend.

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
    /// Its name in commands and tables.
    pub(crate) name: &'static str,
    /// Its description, with the variables that select its device.
    pub(crate) help: &'static str,
    /// Finds its devices. `None` if they are not part of this machine.
    pub(crate) devices: Option<FindDevices>,
    /// How it runs plans. `None` if it cannot.
    pub(crate) runs: Option<Runs>,
    /// Runs the conformance suite, with its own chunks or with chunks of this many bytes.
    pub(crate) conformance: fn(Option<u64>) -> Result<suite::Report, Failure>,
}

/// Finds the devices of a backend, or says why there are no devices.
pub(crate) type FindDevices = fn() -> Result<Vec<Device>, Unavailable>;

/// A device of this machine.
#[derive(Debug)]
pub(crate) struct Device {
    /// The fields that `--json` prints.
    pub(crate) fields: serde_json::Value,
    /// The lines of the list of devices.
    pub(crate) text: String,
}

/// How a backend runs plans.
#[derive(Debug)]
pub(crate) struct Runs {
    /// Whether it takes seeds.
    pub(crate) seeds: bool,
    /// Whether it runs iterations as graphs.
    pub(crate) graphs: bool,
    /// Selects its device.
    pub(crate) open: fn(Options) -> Result<Box<dyn Runner>, Failure>,
}

/// Options of a run that only some backends take.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    /// The seed of the order of work. Without a seed, work runs in the order of submission.
    pub(crate) seed: Option<u64>,
    /// The seed of the delays of copies. Without a seed, copies are not delayed.
    pub(crate) delays: Option<u64>,
    /// Whether iterations run as graphs.
    pub(crate) graph: bool,
}

/// A device that runs plans.
pub(crate) trait Runner {
    /// The device's name. A simulated device has the name of its machine.
    fn device(&self, machine: &str) -> Result<String, Failure>;

    /// Runs a plan.
    fn run(
        &self,
        verified: &Verified<'_>,
        names: &Names<'_>,
        job: Job<'_>,
    ) -> Result<Outcome, Stopped>;

    /// The predicted period, if it differs from the plan's own.
    fn predicted_ns(&self, _verified: &Verified<'_>, _iterations: u64) -> Option<u64> {
        None
    }
}

/// How many iterations to run, and how to observe them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'j> {
    pub(crate) iterations: u64,
    /// It advances by 1 per iteration.
    pub(crate) progress: &'j ProgressBar,
    /// Whether to time the steps of the last iterations.
    pub(crate) timed: bool,
}

impl Job<'_> {
    /// The first iteration whose steps are timed, counted from 1.
    pub(crate) const fn first_timed(&self) -> u64 {
        self.iterations.saturating_sub(PREDICTED_ITERATIONS) + 1
    }
}

/// The results of a run.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// Virtual ranges reserved before the first iteration.
    pub(crate) ranges: u64,
    /// Calls of `map` before the first iteration.
    pub(crate) set_up_maps: u64,
    /// The host's time for reserving these ranges and for these calls.
    pub(crate) mapping_ns: u64,
    /// The time from one iteration to the next.
    pub(crate) period_ns: u64,
    /// Calls of `map` per iteration, averaged over all iterations after the first.
    pub(crate) map_calls: f64,
    /// The digest of all states after the last iteration.
    pub(crate) digest: u64,
    /// The start and the end of each step of the last iterations, if the run timed them.
    pub(crate) steps_ns: Option<StepTimes>,
}

/// The start and the end of each step of each stream, one iteration after the other.
pub(crate) type StepTimes = PerStream<Vec<[u64; 2]>>;

/// Why a plan did not run to its end.
#[derive(Clone, Debug)]
pub(crate) struct Stopped {
    pub(crate) reason: String,
    /// Whether the device is too small for the plan.
    pub(crate) too_large: bool,
}

impl From<String> for Stopped {
    fn from(reason: String) -> Self {
        Self { reason, too_large: false }
    }
}
