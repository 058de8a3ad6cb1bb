//! Runs proved plans on the simulated device.

use super::entry::{Entry, Job, Outcome, Runner, Runs, StepTimes, Stopped};
use super::suite;
use crate::failure::Failure;
use backend_sim::{Counters, Fault, Sim, SimDevice, SimError, SimKernels};
use planner_core::timeline::PREDICTED_ITERATIONS;
use planner_core::{ExecuteError, PerStream, Stream, Verified};
use spillway::names::Names;
use spillway::planning;

pub(super) const ENTRY: Entry = Entry {
    name: "sim",
    help: "A simulated device",
    devices: None,
    runs: Some(Runs {
        seeds: true,
        graphs: false,
        open: |options| Ok(Box::new(Simulated { seed: options.seed, delays: options.delays })),
    }),
    conformance: |chunk_bytes| suite::report(Sim::default(), chunk_bytes),
};

/// A simulated device.
struct Simulated {
    /// The seed of the order of work.
    seed: Option<u64>,
    /// The seed of the delays of copies.
    delays: Option<u64>,
}

impl Runner for Simulated {
    fn device(&self, machine: &str) -> Result<String, Failure> {
        Ok(format!("simulated {machine}"))
    }

    fn run(
        &self,
        verified: &Verified<'_>,
        names: &Names<'_>,
        job: Job<'_>,
    ) -> Result<Outcome, Stopped> {
        Ok(run(verified, names, job, self)?)
    }
}

/// Runs a plan on a device with exactly the memory of the plan's budget.
fn run(
    verified: &Verified<'_>,
    names: &Names<'_>,
    job: Job<'_>,
    &Simulated { seed, delays }: &Simulated,
) -> Result<Outcome, String> {
    let machine = verified.machine().with_device_bytes(verified.plan().budget_bytes);
    let mut device = match seed {
        Some(seed) => SimDevice::adversarial(machine, seed),
        None => SimDevice::new(machine),
    };
    if let Some(seed) = delays {
        device = device.failing(Fault::Delays, seed);
    }
    let mut kernels = SimKernels::new(*verified.graph());
    let ran = iterate(verified, &mut device, &mut kernels, job);
    let Measured { set_up, period_ns, map_calls, steps_ns } =
        ran.map_err(|error| names.execute_error(&error))?;
    let digest = kernels.digest(&device).map_err(|error| names.device_error(&error))?;
    let Counters { ranges, map_calls: set_up_maps, mapping_ns, .. } = set_up;
    Ok(Outcome { ranges, set_up_maps, mapping_ns, period_ns, map_calls, digest, steps_ns })
}

/// The measurements of all iterations.
struct Measured {
    /// The counters before the first iteration.
    set_up: Counters,
    period_ns: u64,
    /// Calls of `map` per iteration.
    map_calls: f64,
    steps_ns: Option<StepTimes>,
}

/// Runs all iterations.
fn iterate(
    verified: &Verified<'_>,
    device: &mut SimDevice,
    kernels: &mut SimKernels<'_>,
    job: Job<'_>,
) -> Result<Measured, ExecuteError<SimError>> {
    let iterations = job.iterations;
    planning::with_executor(verified, device, kernels, |mut executor, device, kernels| {
        let set_up = device.counters();
        let mut first_maps = set_up.map_calls;
        let mut busy_ns = 0;
        let mut signals = PerStream::all(0);
        for iteration in 1..=iterations {
            if iteration == job.first_timed() {
                signals = PerStream::from_fn(|stream| device.steps_ns(stream).len());
            }
            let before_ns = transfers_ns(device);
            executor.run(device, kernels, 1)?;
            let after_ns = transfers_ns(device);
            busy_ns = (after_ns[0] - before_ns[0]).max(after_ns[1] - before_ns[1]);
            if iteration == 1 && iterations > 1 {
                first_maps = device.counters().map_calls;
            }
            job.progress.inc(1);
        }
        let maps = device.counters().map_calls - first_maps;
        let map_calls = maps as f64 / iterations.saturating_sub(1).max(1) as f64;
        let steps_ns =
            PerStream::from_fn(|stream| device.steps_ns(stream)[signals[stream]..].to_vec());
        let steps_ns = job.timed.then_some(steps_ns);
        executor.save_states(device)?;
        let period_ns = period_ns(device, iterations).max(busy_ns);
        Ok(Measured { set_up, period_ns, map_calls, steps_ns })
    })
}

/// The time for which each of the two links has been busy.
fn transfers_ns(device: &SimDevice) -> [u64; 2] {
    [Stream::Upload, Stream::Download].map(|stream| device.busy_ns(stream))
}

/// The mean period of iterations 5 to 8, as in predictions. With fewer than 8 iterations, the mean
/// of all iterations after the first. With one iteration, its own time.
fn period_ns(device: &SimDevice, iterations: u64) -> u64 {
    let steady = device
        .period_ns(PREDICTED_ITERATIONS / 2, PREDICTED_ITERATIONS)
        .filter(|_| iterations >= PREDICTED_ITERATIONS);
    let period_ns = steady.or_else(|| device.period_ns(1, iterations));
    period_ns.unwrap_or_else(|| device.iteration_ends_ns().last().copied().unwrap_or(0))
}
