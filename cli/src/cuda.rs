//! CUDA devices as real ones, and plans as CUDA graphs.

use crate::names::Names;
use crate::real::{self, Mapping, Measured, Real};
use backend_cuda::{Counters, CudaDevice, CudaError, Cycle, Integrity, Replay};
use indicatif::ProgressBar;
use integrity::IntegrityKernels;
use planner_core::pieces::Pieces;
use planner_core::timeline::{LAPS, Timeline, durations};
use planner_core::{ExecuteError, Graph, Limits, PlanError, Scratch, Stream, Verified};
use std::time::Instant;
use workloads::planning;

impl Real for Integrity {
    fn mapping(device: &CudaDevice<'_>) -> Mapping {
        let Counters { ranges, map_calls: calls, mapping_ns: ns, .. } = device.counters();
        Mapping { ranges, calls, ns }
    }

    fn wait_idle(device: &mut CudaDevice<'_>) -> Result<(), CudaError> {
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
pub(crate) fn iterate<'g>(
    verified: &Verified<'g>,
    device: &mut CudaDevice<'g>,
    kernels: &mut IntegrityKernels<'_, 'g, Integrity>,
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
            replay.run(device, kernels)?;
            progress.inc(cycle.length());
        }
        real::idle::<Integrity>(device)?;
        let period = start.elapsed().div_f64(timed as f64);
        let maps = Integrity::mapping(device).calls - first_maps;
        executor.finish(device)?;
        Ok(Measured { set_up, period, map_calls: maps as f64 / iterations as f64 })
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

/// The period of a plan whose graphs hold so many iterations: each starts when the one before
/// has ended. None for more iterations than a prediction looks at.
pub(crate) fn predicted_ns(verified: &Verified<'_>, cycle: Cycle) -> Option<u64> {
    if cycle.iterations > LAPS {
        return None;
    }
    let (graph, plan) = (verified.graph(), verified.plan());
    let limits = planning::limits(graph, plan);
    let mut memory = vec![0; timeline_words(&limits)];
    let makespan_ns = makespan_ns(graph, verified, cycle.iterations, &mut memory);
    makespan_ns.ok().map(|makespan_ns| makespan_ns.div_ceil(cycle.iterations))
}

fn timeline_words(limits: &Limits) -> usize {
    planner_core::timeline::scratch_words(limits)
}

/// From the start of the first iteration to the end of all work of so many.
fn makespan_ns(
    graph: &Graph<'_>,
    verified: &Verified<'_>,
    iterations: u64,
    memory: &mut [u64],
) -> Result<u64, PlanError> {
    let (machine, plan, schedule) = (verified.machine(), verified.plan(), verified.schedule());
    let mut scratch = Scratch::new(memory);
    let pieces = Pieces::new(graph, machine, plan, &mut scratch)?;
    let durations_ns = scratch.take(plan.steps.len(), 0u64)?;
    durations(graph, machine, plan, &pieces, durations_ns)?;
    let timeline = Timeline::new(schedule, durations_ns, &mut scratch)?;
    let ends = Stream::ALL.into_iter().zip(schedule.stream_steps).map(|(stream, steps)| {
        steps
            .checked_sub(1)
            .map_or(0, |last| timeline.end_ns(iterations as usize - 1, stream, last))
    });
    Ok(ends.max().unwrap_or(0))
}
