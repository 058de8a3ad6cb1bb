//! Runs a proved plan on a real device with integrity kernels, and measures wall-clock time.

use super::entry::{Job, Outcome, Runner, StepTimes, Stopped};
use super::stopwatch::Stopwatch;
use crate::failure::Failure;
use integrity::{Backend, states_digest};
use middleware::{Layered, LayeredKernels};
use planner_core::backend::{BackendError, ErrorKind, ErrorType, Paging, Transfers};
use planner_core::executor::Moment;
use planner_core::{ExecuteError, Executor, Stream, Verified};
use spillway::names::Names;
use spillway::planning;
use std::time::{Duration, Instant};
use workloads::Shown;

/// A device's memory counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mapping {
    /// Virtual ranges reserved.
    pub(super) ranges: u64,
    /// Calls of `map`.
    pub(super) calls: u64,
    /// The host's time for reserving these ranges and for these calls.
    pub(super) ns: u64,
}

/// A backend with real devices.
pub(super) trait Real: Backend {
    /// A point of a stream, with the device's time at this point.
    type Timestamp;

    /// Records the device's time after all work enqueued so far on a stream. `None` if the device
    /// has no timestamps.
    fn timestamp(
        device: &Self::Device,
        stream: Stream,
    ) -> Result<Option<Self::Timestamp>, Self::Error>;

    /// The time from one point to another. Blocks until both are reached.
    fn ns_between(start: &Self::Timestamp, end: &Self::Timestamp) -> Result<f64, Self::Error>;

    /// The device's memory counters so far.
    fn mapping(device: &Self::Device) -> Mapping;

    /// Blocks until a device has done everything.
    fn wait_idle(device: &mut Self::Device) -> Result<(), Self::Error>;

    /// Whether a device has too few addresses.
    fn lacks_addresses(error: &Self::Error) -> bool;
}

/// The measurements of all iterations.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    /// The counters before the first iteration.
    pub(super) set_up: Mapping,
    pub(super) period: Duration,
    /// Calls of `map` per iteration.
    pub(super) map_calls: f64,
    /// The digest of all states after the last iteration.
    pub(super) digest: u64,
    /// The step times of the last iterations, if the run timed them.
    pub(super) steps_ns: Option<StepTimes>,
}

impl<B: Real> Runner for B {
    fn device(&self, _machine: &str) -> Result<String, Failure> {
        device(self)
    }

    fn run(
        &self,
        verified: &Verified<'_>,
        names: &Names<'_>,
        job: Job<'_>,
    ) -> Result<Outcome, Stopped> {
        run(verified, names, self, |device, kernels| iterate::<B>(verified, device, kernels, job))
    }
}

/// The names of the device and its driver.
pub(super) fn device<B: Real>(backend: &B) -> Result<String, Failure> {
    match backend.find() {
        Ok(found) => Ok(found.device),
        Err(reason) => Err(Failure::cannot(Shown::message(reason).to_string())),
    }
}

/// Runs a plan with `iterate`, on a device that creates no more chunks than the plan has.
pub(super) fn run<'g, B: Real>(
    verified: &Verified<'g>,
    names: &Names<'_>,
    backend: &B,
    iterate: impl FnOnce(B::Device, B::Kernels<'g>) -> Result<Measured, ExecuteError<B::Error>>,
) -> Result<Outcome, Stopped> {
    let device = backend.open(*verified.machine(), 0);
    let mut device = device.map_err(|reason| Shown::message(reason).to_string())?;
    let kernels = backend.kernels(&mut device, *verified.graph());
    let kernels = kernels.map_err(|error| ExecuteError::Device { at: Moment::SetUp, error });
    let ran = kernels.and_then(|kernels| iterate(device, kernels));
    let Measured { set_up, period, map_calls, digest, steps_ns } =
        ran.map_err(|error| stopped::<B>(names, &error))?;
    let Mapping { ranges, calls: set_up_maps, ns: mapping_ns } = set_up;
    let period_ns = period.as_nanos() as u64;
    Ok(Outcome { ranges, set_up_maps, mapping_ns, period_ns, map_calls, digest, steps_ns })
}

fn stopped<B: Real>(names: &Names<'_>, error: &ExecuteError<B::Error>) -> Stopped {
    let too_large = match error {
        ExecuteError::Device { error, .. } => {
            let kind = error.kind();
            B::lacks_addresses(error)
                || matches!(kind, ErrorKind::OutOfDeviceMemory | ErrorKind::OutOfHostMemory)
        }
        _ => false,
    };
    Stopped { reason: names.execute_error(error), too_large }
}

/// Returns the digest of all states, which `executor` has saved.
pub(super) fn digest<D: Transfers + Paging>(
    verified: &Verified<'_>,
    executor: &Executor<'_>,
    device: &mut D,
) -> Result<u64, ExecuteError<<D as ErrorType>::Error>> {
    states_digest(verified.graph(), device, executor.host_layout())
        .map_err(|error| ExecuteError::Device { at: Moment::Save, error })
}

/// Blocks until a device has done everything.
pub(super) fn idle<B: Real>(device: &mut B::Device) -> Result<(), ExecuteError<B::Error>> {
    B::wait_idle(device).map_err(|error| ExecuteError::Device { at: Moment::Save, error })
}

/// Runs all iterations. The period leaves out the first iteration, unless it is the only one.
fn iterate<B: Real>(
    verified: &Verified<'_>,
    device: B::Device,
    kernels: B::Kernels<'_>,
    job: Job<'_>,
) -> Result<Measured, ExecuteError<B::Error>> {
    let iterations = job.iterations;
    let mut device = Layered::new(device, Stopwatch::<B>::new());
    let mut kernels = LayeredKernels(kernels);
    let at_save = |error| ExecuteError::Device { at: Moment::Save, error };
    let (device, kernels) = (&mut device, &mut kernels);
    planning::with_executor(verified, device, kernels, |mut executor, device, kernels| {
        let set_up = B::mapping(&device.device);
        let mut start = Instant::now();
        let mut first_maps = set_up.calls;
        for iteration in 1..=iterations {
            if job.timed && iteration == job.first_timed() {
                device.layer.start(&device.device).map_err(at_save)?;
            }
            executor.run(device, kernels, 1)?;
            if iteration == 1 && iterations > 1 {
                idle::<B>(&mut device.device)?;
                start = Instant::now();
                first_maps = B::mapping(&device.device).calls;
            }
            job.progress.inc(1);
        }
        idle::<B>(&mut device.device)?;
        let steady = iterations.saturating_sub(1).max(1);
        let period = start.elapsed().div_f64(steady as f64);
        let map_calls = (B::mapping(&device.device).calls - first_maps) as f64 / steady as f64;
        let steps_ns = device.layer.steps_ns().map_err(at_save)?;
        executor.save_states(device)?;
        let digest = digest(verified, &executor, device)?;
        Ok(Measured { set_up, period, map_calls, digest, steps_ns })
    })
}
