//! The simulated device, and proved plans on it.

use super::entry::{Entry, Outcome, Runner, Runs, Stopped};
use super::suite;
use crate::failure::Failure;
use crate::names::{self, Names};
use backend_sim::{Counters, Sim, SimDevice, SimError, SimKernels};
use indicatif::ProgressBar;
use planner_core::timeline::PREDICTED_ITERATIONS;
use planner_core::{ExecuteError, Stream, Verified};
use spillway::names::Mentions;
use spillway::planning;

pub(super) const ENTRY: Entry = Entry {
    name: "sim",
    help: "A simulated device",
    devices: None,
    runs: Some(Runs {
        seeds: true,
        graphs: false,
        open: |options| Ok(Box::new(Simulated { seed: options.seed })),
    }),
    conformance: || Ok(suite::report(&Sim::default())),
};

/// A simulated device, in an order drawn from a seed if there is one.
struct Simulated {
    seed: Option<u64>,
}

impl Runner for Simulated {
    fn device(&self, machine: &str) -> Result<String, Failure> {
        Ok(format!("simulated {machine}"))
    }

    fn run(
        &self,
        verified: &Verified<'_>,
        names: &Names<'_>,
        iterations: u64,
        progress: &ProgressBar,
    ) -> Result<Outcome, Stopped> {
        Ok(run(verified, names, iterations, self.seed, progress)?)
    }
}

/// Runs a plan on a device that has just its budget.
fn run(
    verified: &Verified<'_>,
    names: &Names<'_>,
    iterations: u64,
    seed: Option<u64>,
    progress: &ProgressBar,
) -> Result<Outcome, String> {
    let machine = verified.machine().with_device_bytes(verified.plan().budget_bytes);
    let mut device = match seed {
        Some(seed) => SimDevice::adversarial(machine, seed),
        None => SimDevice::new(machine),
    };
    let mut kernels = SimKernels::new(*verified.graph());
    let ran = iterate(verified, &mut device, &mut kernels, iterations, progress);
    let (set_up, period_ns, map_calls) =
        ran.map_err(|error| names.execute_error(&error, mentioned))?;
    let digest = kernels.digest(&device).map_err(|error| names.device_error(&error, mentioned))?;
    let Counters { ranges, map_calls: set_up_maps, mapping_ns, .. } = set_up;
    Ok(Outcome { ranges, set_up_maps, mapping_ns, period_ns, map_calls, digest })
}

/// Runs all iterations; what it took before them, the period, and the map calls in one
/// iteration.
fn iterate(
    verified: &Verified<'_>,
    device: &mut SimDevice,
    kernels: &mut SimKernels<'_>,
    iterations: u64,
    progress: &ProgressBar,
) -> Result<(Counters, u64, f64), ExecuteError<SimError>> {
    planning::with_executor(verified, device, kernels, |mut executor, device, kernels| {
        let set_up = device.counters();
        let mut first_maps = set_up.map_calls;
        let mut busy_ns = 0;
        for iteration in 1..=iterations {
            let before_ns = transfers_ns(device);
            executor.run(device, kernels, 1)?;
            let after_ns = transfers_ns(device);
            busy_ns = (after_ns[0] - before_ns[0]).max(after_ns[1] - before_ns[1]);
            if iteration == 1 && iterations > 1 {
                first_maps = device.counters().map_calls;
            }
            progress.inc(1);
        }
        let maps = device.counters().map_calls - first_maps;
        let map_calls = maps as f64 / iterations.saturating_sub(1).max(1) as f64;
        executor.save_states(device)?;
        Ok((set_up, period_ns(device, iterations).max(busy_ns), map_calls))
    })
}

/// What the two links have been busy for.
fn transfers_ns(device: &SimDevice) -> [u64; 2] {
    [Stream::Upload, Stream::Download].map(|stream| device.busy_ns(stream))
}

/// From the fourth iteration to the eighth, as predictions have it; over all but the first
/// where there are fewer; the first where it is alone.
fn period_ns(device: &SimDevice, iterations: u64) -> u64 {
    let steady = device
        .period_ns(PREDICTED_ITERATIONS / 2, PREDICTED_ITERATIONS)
        .filter(|_| iterations >= PREDICTED_ITERATIONS);
    let period_ns = steady.or_else(|| device.period_ns(1, iterations));
    period_ns.unwrap_or_else(|| device.iteration_ends_ns().last().copied().unwrap_or(0))
}

/// The ids in an error.
fn mentioned(error: &SimError) -> Mentions {
    let (op, tensor) = match *error {
        SimError::Refused(ref refused) => return names::refused_mentions(refused),
        SimError::WrongContent { op, tensor, .. } | SimError::MixedVersions { op, tensor, .. } => {
            (Some(op), Some(tensor))
        }
        SimError::HostCopy { tensor, .. } => (None, Some(tensor)),
        // The others name only addresses and chunks.
        _ => (None, None),
    };
    Mentions { location: None, op, tensors: [tensor, None] }
}
