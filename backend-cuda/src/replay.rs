//! Runs iterations of a plan as graphs.

use crate::driver::Event;
use crate::error::CudaError;
use crate::{CudaDevice, Graph};
use planner_core::backend::{InputWriter, Kernels};
use planner_core::executor::Moment;
use planner_core::pieces::Pieces;
use planner_core::timeline::{PREDICTED_ITERATIONS, Timeline, durations};
use planner_core::{ExecuteError, Executor, Kind, Plan, PlanError, Scratch, Verified};

/// How a plan's iterations are divided into graphs.
///
/// A launch of a graph waits for the whole launch before it. With several iterations in one graph,
/// this barrier is rarer. If ops read inputs, each graph has one iteration, since the host fills
/// the two input slots between launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cycle {
    /// The number of iterations in each graph.
    pub iterations: u64,
    /// The number of graphs that are launched in turn until addresses and slots repeat.
    pub graphs: u64,
    /// Whether the host fills inputs before each launch.
    pub fills_inputs: bool,
}

impl Cycle {
    /// The number of iterations until all graphs have been launched.
    #[must_use]
    pub const fn length(&self) -> u64 {
        self.iterations * self.graphs
    }

    /// The period in nanoseconds of a plan that runs in this way: each graph starts when the one
    /// before has ended, and its steps wait for no earlier graph. `None` if a graph has more
    /// iterations than a prediction covers. O(steps).
    #[must_use]
    pub fn predicted_ns(&self, verified: &Verified<'_>) -> Option<u64> {
        let last = usize::try_from(self.iterations.checked_sub(1)?).ok()?;
        if self.iterations > PREDICTED_ITERATIONS {
            return None;
        }
        let mut words = 1 << 12;
        let makespan_ns = loop {
            match makespan_ns(verified, last, &mut vec![0; words]) {
                Err(PlanError::Scratch(_)) => words *= 2,
                found => break found.ok()?,
            }
        };
        Some(makespan_ns.div_ceil(self.iterations))
    }
}

/// The time at which all work of the iterations up to `last`, counted from 0, has ended.
fn makespan_ns(verified: &Verified<'_>, last: usize, memory: &mut [u64]) -> Result<u64, PlanError> {
    let scratch = &mut Scratch::new(memory);
    let (graph, machine, plan) = (verified.graph(), verified.machine(), verified.plan());
    let schedule = verified.schedule();
    let pieces = Pieces::new(graph, machine, plan, scratch)?;
    let durations_ns = scratch.take(plan.steps.len(), 0u64)?;
    durations(machine, &pieces, durations_ns)?;
    let timeline = Timeline::new(schedule, durations_ns, scratch)?;
    let streams = schedule.stream_steps.into_iter();
    let ends = streams
        .filter_map(|(stream, steps)| Some(timeline.end_ns(last, stream, steps.checked_sub(1)?)));
    Ok(ends.max().unwrap_or(0))
}

/// How a plan is divided into graphs. `None` for a plan that is mapped as it runs.
#[must_use]
pub fn cycle(graph: &planner_core::Graph<'_>, plan: &Plan<'_>) -> Option<Cycle> {
    let period = u64::from(plan.placements?.iterations);
    let has = |kind| graph.tensors().iter().any(|tensor| tensor.kind == kind);
    let fills_inputs = has(Kind::Input);
    // Inputs and outputs have two slots on the host, which they use in turn.
    let takes_turns = fills_inputs || has(Kind::Output);
    let period = if takes_turns && !period.is_multiple_of(2) { 2 * period } else { period };
    Some(if fills_inputs {
        Cycle { iterations: 1, graphs: period, fills_inputs }
    } else {
        // As many iterations as a prediction covers.
        Cycle {
            iterations: (PREDICTED_ITERATIONS / period).max(1) * period,
            graphs: 1,
            fills_inputs,
        }
    })
}

/// Captured iterations, and how far their launches are.
#[derive(Debug)]
pub(crate) struct Recorded {
    graphs: Vec<Graph>,
    pub(crate) cycle: Cycle,
    /// The number of iterations that were enqueued.
    iterations: u64,
    /// The number of iterations since the first captured iteration.
    since_captured: u64,
    /// The last iteration whose inputs are filled.
    filled: u64,
    /// If there are inputs, the ends of the last two launches, the later one last.
    ends: [Option<Event>; 2],
}

fn at(at: Moment) -> impl Fn(CudaError) -> ExecuteError<CudaError> {
    move |error| ExecuteError::Device { at, error }
}

impl Recorded {
    /// Captures and launches the executor's next iterations, for the length of the cycle. The
    /// executor must run no further iteration by itself.
    pub(crate) fn new<K: Kernels<CudaDevice>>(
        executor: &mut Executor<'_>,
        device: &mut CudaDevice,
        kernels: &mut K,
        cycle: Cycle,
    ) -> Result<Self, ExecuteError<CudaError>> {
        let iterations = executor.last_iteration();
        let mut recorded = Self {
            graphs: Vec::new(),
            cycle,
            iterations,
            since_captured: cycle.length(),
            // Captured iterations have their inputs filled, and the next one its own.
            filled: iterations + cycle.length() + 1,
            ends: [None, None],
        };
        for _ in 0..cycle.graphs {
            device.begin_capture().map_err(at(Moment::SetUp))?;
            let ran = executor.run(device, kernels, cycle.iterations);
            let graph = device.end_capture().map_err(at(Moment::SetUp));
            ran?;
            let graph = graph?;
            recorded.launch(device, &graph, 0).map_err(at(Moment::SetUp))?;
            recorded.graphs.push(graph);
        }
        Ok(recorded)
    }

    /// Launches a whole cycle of the iterations that the executor ran at the capture.
    pub(crate) fn run<K: Kernels<CudaDevice>>(
        &mut self,
        executor: &Executor<'_>,
        device: &mut CudaDevice,
        kernels: &mut K,
    ) -> Result<(), ExecuteError<CudaError>> {
        let graphs = std::mem::take(&mut self.graphs);
        let ran = graphs.iter().try_for_each(|graph| self.step(executor, device, kernels, graph));
        self.graphs = graphs;
        self.since_captured += self.cycle.length();
        ran
    }

    /// Launches one graph after the inputs that it copies are filled.
    fn step<K: Kernels<CudaDevice>>(
        &mut self,
        executor: &Executor<'_>,
        device: &mut CudaDevice,
        kernels: &mut K,
        graph: &Graph,
    ) -> Result<(), ExecuteError<CudaError>> {
        let failed = at(Moment::Inputs(self.iterations + 1));
        device.check_graph(graph).map_err(&failed)?;
        let [copies_own, copies_next] = executor.input_slots_used();
        let needed = self.iterations + 1 + u64::from(copies_next);
        if self.cycle.fills_inputs && needed > self.filled {
            self.free_slots(device, copies_own && copies_next).map_err(&failed)?;
            let (graph, layout) = (executor.verified().graph(), executor.host_layout());
            kernels
                .fill_inputs(&mut InputWriter::new(graph, device, layout, needed))
                .map_err(|error| ExecuteError::from_fill(error, Moment::Inputs(needed)))?;
            self.filled = needed;
        }
        self.launch(device, graph, self.since_captured).map_err(&failed)
    }

    /// Blocks until the launch before the last has ended, or the last launch.
    fn free_slots(&mut self, device: &mut CudaDevice, is_last: bool) -> Result<(), CudaError> {
        let [before_last, last] = &mut self.ends;
        let end = if is_last { last.take().or(before_last.take()) } else { before_last.take() };
        end.map_or(Ok(()), |end| device.wait_for_end(end))
    }

    fn launch(
        &mut self,
        device: &mut CudaDevice,
        graph: &Graph,
        iterations_later: u64,
    ) -> Result<(), CudaError> {
        device.launch_graph(graph, iterations_later)?;
        self.iterations += self.cycle.iterations;
        if self.cycle.fills_inputs {
            let [before_last, last] = &mut self.ends;
            *before_last = last.replace(device.end_of_graph()?);
        }
        Ok(())
    }
}

/// An executor whose further iterations all run as graphs.
#[derive(Debug)]
pub struct Replay<'p> {
    executor: Executor<'p>,
    recorded: Recorded,
}

impl<'p> Replay<'p> {
    /// Captures and launches the next iterations of an executor, for the length of the cycle.
    ///
    /// # Errors
    /// The errors of the executor and of the driver.
    pub fn record<K: Kernels<CudaDevice>>(
        mut executor: Executor<'p>,
        device: &mut CudaDevice,
        kernels: &mut K,
        cycle: Cycle,
    ) -> Result<Self, ExecuteError<CudaError>> {
        let recorded = Recorded::new(&mut executor, device, kernels, cycle)?;
        Ok(Self { executor, recorded })
    }

    /// Launches a whole cycle. If there are inputs, fills them before each launch, and for that blocks
    /// until their slots are free. The slots are free once the launch before the last has ended, or
    /// once the last has ended if an iteration copies its own inputs and the next iteration's.
    ///
    /// # Errors
    /// The iterations were not captured on this device, and the errors of the driver.
    pub fn run<K: Kernels<CudaDevice>>(
        &mut self,
        device: &mut CudaDevice,
        kernels: &mut K,
    ) -> Result<(), ExecuteError<CudaError>> {
        self.recorded.run(&self.executor, device, kernels)
    }

    /// Copies all states to the host, as [`Executor::save_states`] does.
    ///
    /// # Errors
    /// The errors of [`Executor::save_states`].
    pub fn save_states(&mut self, device: &mut CudaDevice) -> Result<(), ExecuteError<CudaError>> {
        self.executor.save_states(device)
    }

    /// The executor: its layout of the host block, and its inputs' slots.
    #[must_use]
    pub const fn executor(&self) -> &Executor<'p> {
        &self.executor
    }
}
