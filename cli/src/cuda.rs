//! CUDA devices as real ones, and plans as CUDA graphs.

use crate::names::Names;
use crate::real::{self, Mapping, Measured, Real};
use backend_cuda::{Counters, CudaDevice, CudaError, Cycle, Integrity, IntegrityKernels, Replay};
use indicatif::ProgressBar;
use planner_core::{ExecuteError, Verified};
use spillway::planning;
use std::time::Instant;

impl Real for Integrity {
    fn mapping(device: &CudaDevice) -> Mapping {
        let Counters { ranges, map_calls: calls, mapping_ns: ns, .. } = device.counters();
        Mapping { ranges, calls, ns }
    }

    fn wait_idle(device: &mut CudaDevice) -> Result<(), CudaError> {
        device.wait_idle()
    }

    fn explain(names: &Names<'_>, error: &ExecuteError<CudaError>) -> String {
        names.cuda_execute_error(error)
    }

    fn lacks_addresses(error: &CudaError) -> bool {
        matches!(error, CudaError::AddressSpace { .. })
    }
}

/// Runs all iterations, the last of them as graphs. Those that do not fill a cycle run first,
/// one by one. The period is that of all graphs but the first cycle, where there are more.
pub(crate) fn iterate(
    verified: &Verified<'_>,
    device: &mut CudaDevice,
    kernels: &mut IntegrityKernels<'_>,
    cycle: Cycle,
    iterations: u64,
    progress: &ProgressBar,
) -> Result<Measured, ExecuteError<CudaError>> {
    planning::with_executor(verified, device, kernels, |mut executor, device, kernels| {
        let set_up = Integrity::mapping(device);
        let first = iterations % cycle.length();
        executor.run(device, kernels, first)?;
        real::idle::<Integrity>(device)?;
        let first_maps = Integrity::mapping(device).calls;
        let mut start = Instant::now();
        let mut replay = Replay::record(&mut executor, device, kernels, cycle, first)?;
        progress.inc(first + cycle.length());
        let mut timed = cycle.length();
        let others = iterations / cycle.length() - 1;
        if others > 0 {
            real::idle::<Integrity>(device)?;
            (start, timed) = (Instant::now(), others * cycle.length());
        }
        for _ in 0..others {
            replay.run(&executor, device, kernels)?;
            progress.inc(cycle.length());
        }
        real::idle::<Integrity>(device)?;
        let period = start.elapsed().div_f64(timed as f64);
        let maps = Integrity::mapping(device).calls - first_maps;
        let digest = real::digest::<Integrity>(verified, &mut executor, device)?;
        Ok(Measured { set_up, period, map_calls: maps as f64 / iterations as f64, digest })
    })
}

/// How the plan's iterations are divided into graphs.
pub(crate) fn cycle(verified: &Verified<'_>, iterations: u64) -> Result<Cycle, String> {
    let cycle = backend_cuda::cycle(verified.graph(), verified.plan());
    let cycle = cycle.ok_or("a plan without placements maps as it goes, which no graph holds")?;
    if iterations < cycle.length() {
        let length = cycle.length();
        return Err(format!(
            "the graphs of this plan hold {length} iterations; run at least those"
        ));
    }
    Ok(cycle)
}
