//! A plan on the device, timed as its prediction is.

use crate::Bench;
use crate::judge::{Host, Timed};
use crate::kernels::Recorded;
use backend_cuda::{Counters, CudaDevice, CudaError, Cycle, Options, Replay, cycle};
use planner_core::executor::Moment;
use planner_core::{ExecuteError, Graph, Plan, Step, Stream, Verified};
use spillway::planning;
use std::time::Instant;

/// Iterations before those that are timed, as a prediction has them.
const FIRST: u64 = 4;
/// Iterations that are timed: as many as take so long, between these bounds.
const TIMED_NS: u64 = 4_000_000_000;
const FEWEST: u64 = 8;
const MOST: u64 = 64;
/// A kernel of fewer ticks may last longer by more than a tenth of its time.
const TICKS: u64 = 10;

/// How a plan is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Mapped once, step by step.
    Eager,
    /// Mapped as it goes.
    Dynamic,
    /// Mapped once, as graphs.
    Graph,
}

/// Runs a plan, named for the tables.
pub(crate) fn timed(
    bench: &Bench,
    name: String,
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    way: Way,
) -> Result<Timed, String> {
    let machine = &bench.measured.machine;
    let schedule = planning::schedule(graph, machine, plan).map_err(|error| error.to_string())?;
    let verified = planning::prove(graph, machine, plan, &schedule.schedule());
    let verified = verified.map_err(|error| error.to_string())?;
    let as_graph = (way == Way::Graph).then(|| cycle(graph, plan)).flatten();
    let predicted_ns = match as_graph {
        Some(cycle) => cycle.predicted_ns(&verified).ok_or("the graphs are too long")?,
        None => plan.predicted.period_ns,
    };
    let iterations = (TIMED_NS / predicted_ns.max(1)).clamp(FEWEST, MOST);
    let launches = plan.steps.iter().filter_map(|step| match step {
        Step::Launch(launched) => Some(graph.op(launched.op).time_ns),
        _ => None,
    });
    let launches_ns = launches.clone().sum::<u64>() as f64;
    let short_ns = TICKS * bench.measured.costs.tick_ns;
    let coarse_ns = launches.filter(|&ns| ns < short_ns).sum::<u64>() as f64;
    let (measured_ns, host) = period_ns(bench, &verified, as_graph, iterations)?;
    let predicted_ns = predicted_ns as f64;
    Ok(Timed { name, launches_ns, predicted_ns, measured_ns, coarse_ns, host })
}

/// The time, and the device's counters at that time.
struct Done(Instant, Counters);

impl Done {
    fn now(device: &CudaDevice) -> Self {
        Self(Instant::now(), device.counters())
    }

    /// The host's work for each iteration, from this time until `end`.
    fn until(&self, end: &Self, iterations: u64, steps: u64) -> Host {
        let (start, end_counters) = (&self.1, &end.1);
        let each =
            |of: fn(&Counters) -> u64| (of(end_counters) - of(start)) as f64 / iterations as f64;
        let (mapping_ns, blocked_ns) = (each(|of| of.mapping_ns), each(|of| of.blocked_ns));
        let host_ns = (end.0 - self.0).as_nanos() as f64 / iterations as f64;
        Host {
            enqueue_ns: host_ns - mapping_ns - blocked_ns,
            mapping_ns,
            blocked_ns,
            steps: steps as f64,
            events: each(|of| of.events),
            waits: each(|of| of.waits),
            copies: each(|of| of.copies),
        }
    }
}

/// The time from the end of an iteration's last op to that of a later one, and what the host
/// does, divided by the number of iterations between.
fn period_ns(
    bench: &Bench,
    verified: &Verified<'_>,
    as_graph: Option<Cycle>,
    iterations: u64,
) -> Result<(f64, Host), String> {
    let graph = *verified.graph();
    let chunk_bytes = Some(verified.machine().chunk_bytes);
    let options = Options { ordinal: bench.ordinal, chunk_bytes };
    let mut device = bench.cuda.open(&options)?;
    // A capture cannot load the kernel.
    device.occupy(Stream::Compute, 1).map_err(|error| error.to_string())?;
    let occupying = bench.occupying;
    let launch_ns = if as_graph.is_some() { occupying.graph_ns } else { occupying.eager_ns };
    let mut kernels = Recorded { graph, launch_ns };
    let now = |device: &mut CudaDevice| device.timestamp(Stream::Compute).map_err(at_end);
    let ran = planning::with_executor(
        verified,
        &mut device,
        &mut kernels,
        |mut executor, device, kernels| {
            let (before, start, end, after, iterations) = match as_graph {
                None => {
                    executor.run(device, kernels, FIRST)?;
                    let (before, start) = (Done::now(device), now(device)?);
                    executor.run(device, kernels, iterations)?;
                    let (end, after) = (now(device)?, Done::now(device));
                    executor.save_states(device)?;
                    (before, start, end, after, iterations)
                }
                Some(cycle) => {
                    let mut replay = Replay::record(executor, device, kernels, cycle)?;
                    let (before, start) = (Done::now(device), now(device)?);
                    let cycles = iterations.div_ceil(cycle.length());
                    for _ in 0..cycles {
                        replay.run(device, kernels)?;
                    }
                    let (end, after) = (now(device)?, Done::now(device));
                    replay.save_states(device)?;
                    (before, start, end, after, cycles * cycle.length())
                }
            };
            let period_ns = start.ns_until(&end).map_err(at_end)? / iterations as f64;
            let steps = verified.schedule().stream_steps.into_iter().map(|(_, steps)| steps);
            let steps = steps.map(u64::from).sum();
            Ok((period_ns, before.until(&after, iterations, steps)))
        },
    );
    ran.map_err(|error| error.to_string())
}

fn at_end(error: CudaError) -> ExecuteError<CudaError> {
    ExecuteError::Device { at: Moment::Save, error }
}
