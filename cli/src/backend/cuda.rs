//! Runs plans on CUDA devices, step by step or as CUDA graphs.

use super::entry::{Device, Entry, Job, Outcome, Runner, Runs, Stopped};
use super::real::{self, Mapping, Measured, Real};
use super::suite;
use crate::failure::Failure;
use backend_checks::Unavailable;
use backend_cuda::{
    Counters, Cuda, CudaDevice, CudaError, Cycle, Integrity, IntegrityKernels, Replay, Timestamp,
};
use planner_core::{ExecuteError, Stream, Verified};
use serde_json::json;
use spillway::names::Names;
use spillway::planning;
use spillway::units::bytes;
use std::time::Instant;
use workloads::Shown;

pub(super) const ENTRY: Entry = Entry {
    name: "cuda",
    help: "A CUDA device of this machine (SPILLWAY_CUDA_DEVICE=N selects the device by number; \
           SPILLWAY_CUDA_DRIVER=PATH selects the driver library)",
    devices: Some(devices),
    runs: Some(Runs {
        seeds: false,
        graphs: true,
        open: |options| match options.graph {
            true => Ok(Box::new(Graphs(chosen()?))),
            false => Ok(Box::new(chosen()?)),
        },
    }),
    conformance: |chunk_bytes| suite::report(chosen()?, chunk_bytes),
};

/// The CUDA device and the driver that the environment selects, or the default device and driver.
pub(crate) fn chosen() -> Result<Integrity, Failure> {
    Integrity::from_environment()
        .map_err(|reason| Failure::bad_input(Shown::message(reason.to_string()).to_string()))
}

fn devices() -> Result<Vec<Device>, Unavailable> {
    let cuda = Cuda::load(Integrity::from_environment()?.driver.as_deref())?;
    (0..cuda.count()?).map(|ordinal| listed(&cuda, ordinal)).collect()
}

/// A device with its limits, for the list of devices.
fn listed(cuda: &Cuda, ordinal: usize) -> Result<Device, Unavailable> {
    let info = cuda.device(ordinal)?;
    let fields = json!({
        "backend": ENTRY.name,
        "name": info.name,
        "driver": info.driver,
        "memory_bytes": info.memory_bytes,
        // The memory that is free now.
        "free_bytes": info.free_bytes,
        // The chunk size is a multiple of it.
        "page_bytes": info.granularity_bytes,
    });
    let text = format!(
        "{}: {}\n    driver {}, memory {}, of which {} free\n    pages of {}\n",
        ENTRY.name,
        Shown::name(&info.name),
        Shown::name(&info.driver),
        bytes(info.memory_bytes),
        bytes(info.free_bytes),
        bytes(info.granularity_bytes)
    );
    Ok(Device { fields, text })
}

/// A CUDA device that runs iterations as graphs.
struct Graphs(Integrity);

impl Runner for Graphs {
    fn device(&self, _machine: &str) -> Result<String, Failure> {
        real::device(&self.0)
    }

    fn run(
        &self,
        verified: &Verified<'_>,
        names: &Names<'_>,
        job: Job<'_>,
    ) -> Result<Outcome, Stopped> {
        let cycle = cycle(verified, job.iterations)?;
        real::run(verified, names, &self.0, |mut device, mut kernels| {
            iterate(verified, &mut device, &mut kernels, cycle, job)
        })
    }

    fn predicted_ns(&self, verified: &Verified<'_>, iterations: u64) -> Option<u64> {
        cycle(verified, iterations).ok()?.predicted_ns(verified)
    }
}

impl Real for Integrity {
    type Timestamp = Timestamp;

    fn timestamp(device: &CudaDevice, stream: Stream) -> Result<Option<Timestamp>, CudaError> {
        device.timestamp(stream).map(Some)
    }

    fn ns_between(start: &Timestamp, end: &Timestamp) -> Result<f64, CudaError> {
        start.ns_until(end)
    }

    fn mapping(device: &CudaDevice) -> Mapping {
        let Counters { ranges, map_calls: calls, mapping_ns: ns, .. } = device.counters();
        Mapping { ranges, calls, ns }
    }

    fn wait_idle(device: &mut CudaDevice) -> Result<(), CudaError> {
        device.wait_idle()
    }

    fn lacks_addresses(error: &CudaError) -> bool {
        matches!(error, CudaError::AddressSpace { .. })
    }
}

/// Runs all iterations. The iterations that do not fill a cycle run first, one by one; the others
/// run as graphs. The period leaves out the first cycle of graphs, unless it is the only cycle.
fn iterate(
    verified: &Verified<'_>,
    device: &mut CudaDevice,
    kernels: &mut IntegrityKernels<'_>,
    cycle: Cycle,
    Job { iterations, progress, .. }: Job<'_>,
) -> Result<Measured, ExecuteError<CudaError>> {
    planning::with_executor(verified, device, kernels, |mut executor, device, kernels| {
        let set_up = Integrity::mapping(device);
        let first = iterations % cycle.length();
        executor.run(device, kernels, first)?;
        real::idle::<Integrity>(device)?;
        let first_maps = Integrity::mapping(device).calls;
        let mut start = Instant::now();
        let mut replay = Replay::record(executor, device, kernels, cycle)?;
        progress.inc(first + cycle.length());
        let mut timed = cycle.length();
        let others = iterations / cycle.length() - 1;
        if others > 0 {
            real::idle::<Integrity>(device)?;
            (start, timed) = (Instant::now(), others * cycle.length());
        }
        for _ in 0..others {
            replay.run(device, kernels)?;
            progress.inc(cycle.length());
        }
        real::idle::<Integrity>(device)?;
        let period = start.elapsed().div_f64(timed as f64);
        let maps = Integrity::mapping(device).calls - first_maps;
        replay.save_states(device)?;
        let digest = real::digest(verified, replay.executor(), device)?;
        let map_calls = maps as f64 / iterations as f64;
        // CUDA does not time single steps of a graph.
        Ok(Measured { set_up, period, map_calls, digest, steps_ns: None })
    })
}

/// The division of the plan's iterations into graphs.
fn cycle(verified: &Verified<'_>, iterations: u64) -> Result<Cycle, String> {
    let cycle = backend_cuda::cycle(verified.graph(), verified.plan());
    let cycle = cycle.ok_or("a CUDA graph cannot map memory, as a plan without placements must")?;
    if iterations < cycle.length() {
        let length = cycle.length();
        return Err(format!(
            "the CUDA graphs of this plan hold {length} iterations; run at least that many"
        ));
    }
    Ok(cycle)
}
