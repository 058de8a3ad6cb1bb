//! The core's functions with allocation added. Results own their data, and buffers grow until the work fits.

use crate::growth::{buffer, grow, grow_steps, lengthen};
use planner_core::backend::{Kernels, Paging, Transfers};
use planner_core::bounds::BoundOrder;
use planner_core::executor::Mappings;
use planner_core::footprint::Footprint;
use planner_core::graph::{OpId, TensorId};
use planner_core::plan::{ArenaPlacement, Part, Plan, PlanError, Pool, Prediction, Resident, Step};
use planner_core::planner::{
    self, Helper, LeastMemory, Made, Output, PlanningError, Request, Strategy,
};
use planner_core::schedule::{PerStream, Schedule, Scheduled};
use planner_core::scratch::{Limits, OutOfScratch, Scratch};
use planner_core::verify::VerifyError;
use planner_core::{
    ExecuteError, Executor, Graph, Machine, Verified, bounds, executor, lower, timeline, verify,
};
use std::num::NonZero;
use std::ops::ControlFlow::{Break, Continue};
use std::thread;
use workloads::OwnedPlan;

const STEP: Step = Step::launch(OpId(0));
const RESIDENT: Resident = Resident { part: Part::whole(TensorId(0)), host_copy: false };
const PLACEMENT: ArenaPlacement = ArenaPlacement { tensor: TensorId(0), offset_bytes: 0 };

/// The steps that a buffer holds at first. They cost little memory and suffice for small work.
const LEAST_STEPS: usize = 32768;

/// A schedule that owns its steps.
#[derive(Clone, Debug)]
pub struct OwnedSchedule {
    /// The steps.
    pub steps: Vec<Scheduled>,
    /// The number of steps of each stream in an iteration.
    pub stream_steps: PerStream<u32>,
    /// Iterations after which the steps repeat.
    pub iterations: u32,
}

impl OwnedSchedule {
    /// The schedule for the core.
    #[must_use]
    pub fn schedule(&self) -> Schedule<'_> {
        let Self { steps, stream_steps, iterations } = self;
        Schedule { steps, stream_steps: *stream_steps, iterations: *iterations }
    }
}

/// Buffers for plans. Later plans reuse them without an allocation.
#[derive(Debug, Default)]
pub struct Buffers {
    own: BuffersOfThread,
    /// The buffers of a second thread. They stay empty until a plan needs such a thread.
    helper: BuffersOfThread,
}

/// Plans for fewer ops take too little time to gain from a second thread.
const OPS_FOR_TWO: usize = 128;

impl Buffers {
    /// Plans, with as many steps as necessary.
    ///
    /// # Errors
    /// The errors of [`planner::plan`], except for buffers that are too short.
    pub fn plan(
        &mut self,
        request: &Request<'_>,
        strategy: Strategy,
    ) -> Result<Plan<'_>, PlanningError> {
        self.make(request, strategy).map(|made| made.plan)
    }

    /// Plans, and returns the source of the plan. [`Strategy::Auto`] uses a second thread for large graphs if
    /// the machine has several processors. The thread does not change the plan.
    ///
    /// # Errors
    /// The errors of [`planner::make`], except for buffers that are too short.
    pub fn make(
        &mut self,
        request: &Request<'_>,
        strategy: Strategy,
    ) -> Result<Made<'_>, PlanningError> {
        let Self { own, helper } = self;
        let is_large = request.graph.ops().len() >= OPS_FOR_TWO;
        let takes_two = is_large && matches!(strategy, Strategy::Auto(_)) && processors() > 1;
        let made = own.write(request.graph, |limits, output, scratch| {
            if !takes_two {
                return planner::make(request, strategy, output, scratch).map(Some);
            }
            let (output_of_helper, memory) = helper.grow(limits)?;
            let mut helper = Helper {
                output: output_of_helper,
                scratch: Scratch::new(memory),
                run_both: &run_both,
            };
            planner::make_with_helper(request, strategy, output, &mut helper, scratch).map(Some)
        });
        made?.ok_or(PlanningError::Stuck)
    }

    /// Plans like [`Buffers::make`], but returns `None` if no plan takes less than `below_ns`; see
    /// [`planner::make_below`].
    ///
    /// # Errors
    /// The errors of [`planner::make_below`], except for buffers that are too short.
    pub fn make_below(
        &mut self,
        request: &Request<'_>,
        strategy: Strategy,
        below_ns: u64,
    ) -> Result<Option<Made<'_>>, PlanningError> {
        self.own.write(request.graph, |_, output, scratch| {
            planner::make_below(request, strategy, below_ns, output, scratch)
        })
    }
}

/// Runs two functions at the same time; only the first one if the process can start no thread.
pub(crate) fn run_both(one: &mut (dyn FnMut() + Send), other: &mut (dyn FnMut() + Send)) {
    thread::scope(|scope| {
        let started = thread::Builder::new().spawn_scoped(scope, other);
        one();
        drop(started);
    });
}

pub(crate) fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// The buffers of one thread.
#[derive(Debug, Default)]
struct BuffersOfThread {
    steps: Vec<Step>,
    resident: Vec<Resident>,
    arena: Vec<ArenaPlacement>,
    pools: Vec<Pool>,
    tensor_pool: Vec<u32>,
    memory: Vec<u64>,
}

impl BuffersOfThread {
    fn write(
        &mut self,
        graph: &Graph<'_>,
        mut make: impl for<'o> FnMut(
            &Limits,
            Output<'o>,
            &mut Scratch<'_>,
        ) -> Result<Option<Made<'o>>, PlanningError>,
    ) -> Result<Option<Made<'_>>, PlanningError> {
        let limits = Limits::of_graph(graph);
        let whole = limits.ops + limits.operands + limits.tensors;
        let steps = self.steps.len().max(whole).max(LEAST_STEPS);
        let made = grow_steps(&limits, steps, |limits| {
            let (output, memory) = self.grow(limits)?;
            let made = make(limits, output, &mut Scratch::new(memory))?;
            Ok(made.map(|made| {
                let plan = made.plan;
                let lists = (plan.steps.len(), plan.resident_at_start.len(), plan.arena.len());
                let pools = (plan.pools.len(), plan.tensor_pool.len());
                (Made { plan: plan.without_lists(), ..made }, lists, pools)
            }))
        })?;
        let Some((bare, (steps, resident, arena), (pools, named))) = made else { return Ok(None) };
        let plan = Plan {
            arena: &self.arena[..arena],
            pools: &self.pools[..pools],
            tensor_pool: &self.tensor_pool[..named],
            resident_at_start: &self.resident[..resident],
            steps: &self.steps[..steps],
            ..bare.plan
        };
        Ok(Some(Made { plan, ..bare }))
    }

    /// Makes the buffers as long as these limits require, and returns them.
    fn grow(&mut self, limits: &Limits) -> Result<(Output<'_>, &mut [u64]), OutOfScratch> {
        let Self { steps, resident, arena, pools, tensor_pool, memory } = self;
        lengthen(steps, limits.steps, STEP)?;
        lengthen(resident, 2 * limits.tensors, RESIDENT)?;
        lengthen(arena, limits.tensors, PLACEMENT)?;
        lengthen(pools, limits.pools, Pool { object_bytes: 1, count: 0 })?;
        lengthen(tensor_pool, limits.tensors, 0)?;
        lengthen(memory, planner::scratch_words(limits), 0)?;
        Ok((Output { steps, resident, arena, pools, tensor_pool }, memory))
    }
}

/// Plans once; see [`Buffers::plan`]. The strategy of the result is its [source](Made::by); its names are
/// empty.
///
/// # Errors
/// The errors of [`planner::make`], except for buffers that are too short.
pub fn plan(request: &Request<'_>, strategy: Strategy) -> Result<OwnedPlan, PlanningError> {
    Buffers::default().make(request, strategy).map(|made| owned(&made))
}

/// Copies a plan into lists of its own. The strategy of the copy is the source of the plan.
pub(crate) fn owned(made: &Made<'_>) -> OwnedPlan {
    let mut plan = OwnedPlan::from(&made.plan);
    made.by.clone_into(&mut plan.strategy);
    plan
}

/// Plans for a larger budget. `less` is a plan by the same strategy for a smaller one. If it is shorter than
/// the new plan of `auto`, it also becomes the plan for the larger budget, so that more memory never makes
/// `auto` slower.
///
/// # Errors
/// The errors of [`plan`], if there is no plan for less memory either or the device is too small.
pub fn plan_with_more(
    request: &Request<'_>,
    strategy: Strategy,
    less: Option<&OwnedPlan>,
) -> Result<OwnedPlan, PlanningError> {
    let planned = plan(request, strategy);
    match faster_with_less(request, strategy, less, planned.as_ref().ok()) {
        Some(less) => Ok(less),
        None => planned,
    }
}

/// Returns a plan of `auto` for less memory as a plan for this budget, if it is faster than `planned` or if
/// planning failed.
pub(crate) fn faster_with_less(
    request: &Request<'_>,
    strategy: Strategy,
    less: Option<&OwnedPlan>,
    planned: Option<&OwnedPlan>,
) -> Option<OwnedPlan> {
    let budget_bytes = request.budget_bytes;
    let less = less.filter(|less| {
        matches!(strategy, Strategy::Auto(_))
            && (less.budget_bytes..=request.machine.device_bytes).contains(&budget_bytes)
            && planned.is_none_or(|plan| less.predicted.period_ns < plan.predicted.period_ns)
    })?;
    let mut plan = less.clone();
    plan.budget_bytes = budget_bytes;
    Some(plan)
}

/// Returns the least memory with which a strategy can plan, and the tensors in its arena.
///
/// # Errors
/// The errors of [`planner::least_memory`], except for buffers that are too short.
pub fn least_memory(
    request: &Request<'_>,
    strategy: Strategy,
) -> Result<(LeastMemory, Vec<TensorId>), PlanningError> {
    let limits = Limits::of_graph(request.graph);
    let mut arena = buffer(limits.tensors, PLACEMENT)?;
    let mut memory = buffer(planner::scratch_words(&limits), 0)?;
    let scratch = &mut Scratch::new(&mut memory);
    let least = planner::least_memory(request, strategy, &mut arena, scratch)?;
    Ok((least, arena[..least.placed].iter().map(|placement| placement.tensor).collect()))
}

/// Returns the smallest budget with which a strategy can plan, and the op that needs it.
///
/// # Errors
/// The errors of [`planner::min_feasible`], except for buffers that are too short.
pub fn min_feasible(
    request: &Request<'_>,
    strategy: Strategy,
) -> Result<(u64, OpId), PlanningError> {
    let (least, _) = least_memory(request, strategy)?;
    Ok((least.bytes, least.op))
}

/// Returns the length of one cycle by the published schedule of a chain strategy; see [`planner::cycle_ns`].
///
/// # Errors
/// The errors of [`planner::cycle_ns`], except for buffers that are too short.
pub fn cycle_ns(request: &Request<'_>, strategy: Strategy) -> Result<Option<u64>, PlanningError> {
    let limits = Limits::of_graph(request.graph);
    let mut arena = buffer(limits.tensors, PLACEMENT)?;
    let mut memory = buffer(planner::scratch_words(&limits), 0)?;
    planner::cycle_ns(request, strategy, &mut arena, &mut Scratch::new(&mut memory))
}

/// Lowers a plan.
///
/// # Errors
/// The errors of [`lower`](planner_core::lower()), except for buffers that are too short.
pub fn schedule(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
) -> Result<OwnedSchedule, PlanError> {
    plan.check_iterations()?;
    let limits = Limits::of_plan(graph, plan);
    let mut steps = buffer(limits.entries(), Scheduled::EMPTY)?;
    let mut memory = buffer(lower::scratch_words(&limits), 0)?;
    let scratch = &mut Scratch::new(&mut memory);
    let Schedule { stream_steps, iterations, .. } =
        lower(graph, machine, plan, &mut steps, scratch)?;
    Ok(OwnedSchedule { steps, stream_steps, iterations })
}

/// Predicts a plan's times and memory.
///
/// # Errors
/// The errors of [`timeline::predict`], except for buffers that are too short.
pub fn predict(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    schedule: &Schedule<'_>,
) -> Result<(Prediction, Footprint), PlanError> {
    let mut memory = buffer(timeline::scratch_words(&Limits::of_plan(graph, plan)), 0)?;
    timeline::predict(graph, machine, plan, schedule, &mut Scratch::new(&mut memory))
}

/// Predicts, and checks that the prediction in the plan is equal.
///
/// # Errors
/// The errors of [`timeline::check`], except for buffers that are too short.
pub fn check_prediction(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    schedule: &Schedule<'_>,
) -> Result<(Prediction, Footprint), PlanError> {
    let mut memory = buffer(timeline::scratch_words(&Limits::of_plan(graph, plan)), 0)?;
    timeline::check(graph, machine, plan, schedule, &mut Scratch::new(&mut memory))
}

/// Proves a schedule safe.
///
/// # Errors
/// The errors of [`verify`](planner_core::verify()), except for buffers that are too short.
pub fn prove<'a>(
    graph: &Graph<'a>,
    machine: &Machine,
    plan: &Plan<'a>,
    schedule: &Schedule<'a>,
) -> Result<Verified<'a>, VerifyError> {
    let mut memory = buffer(verify::scratch_words(&Limits::of_plan(graph, plan)), 0)?;
    verify(graph, machine, plan, schedule, &mut Scratch::new(&mut memory))
}

/// Runs iterations of a verified plan, then saves all states to the host block.
///
/// # Errors
/// The errors of the [`Executor`], except for buffers that are too short.
pub fn execute<B: Transfers + Paging, K: Kernels<B>>(
    verified: &Verified<'_>,
    device: &mut B,
    kernels: &mut K,
    iterations: u64,
) -> Result<(), ExecuteError<B::Error>> {
    with_executor(verified, device, kernels, |mut executor, device, kernels| {
        executor.run(device, kernels, iterations)?;
        executor.save_states(device)
    })
}

/// Starts a verified plan, and passes the executor to `then`.
///
/// # Errors
/// The errors of [`Executor::start`], except for buffers that are too short; the errors of `then`.
pub fn with_executor<B: Transfers + Paging, K: Kernels<B>, T>(
    verified: &Verified<'_>,
    device: &mut B,
    kernels: &mut K,
    then: impl FnOnce(Executor<'_>, &mut B, &mut K) -> Result<T, ExecuteError<B::Error>>,
) -> Result<T, ExecuteError<B::Error>> {
    grow(executor_words(verified), then, |then, words| {
        let mut memory = match buffer(words, 0) {
            Ok(memory) => memory,
            Err(error) => return Break(Err(error.into())),
        };
        match Executor::start(verified, device, kernels, &mut Scratch::new(&mut memory)) {
            // After this error, the device has not been called.
            Err(ExecuteError::Scratch(_)) => Continue((then, 0)),
            Err(error) => Break(Err(error)),
            Ok(executor) => Break(then(executor, device, kernels)),
        }
    })
}

/// Returns the words of scratch that usually suffice for an [`Executor`]. A plan that maps as it runs gets
/// one run per object, up to some millions; a plan with fixed objects gets one per object number.
pub(crate) fn executor_words(verified: &Verified<'_>) -> usize {
    let (limits, runs) = limits_and_runs(verified);
    executor::scratch_words(&limits, runs)
}

/// Counts the mappings of an executor for a plan that has the device to itself.
///
/// # Errors
/// The process has too little memory.
pub(crate) fn mappings(verified: &Verified<'_>) -> Result<Mappings, PlanError> {
    grow(executor_words(verified), (), |(), words| {
        let mut memory = match buffer(words, 0) {
            Ok(memory) => memory,
            Err(error) => return Break(Err(error.into())),
        };
        match executor::mappings(verified, &mut Scratch::new(&mut memory)) {
            Err(PlanError::Scratch(_)) => Continue(((), 0)),
            counted => Break(counted),
        }
    })
}

/// Returns the words of scratch for an executor that follows another one in a switch, with chunks in this
/// many runs.
pub(crate) fn switch_words(from: &Executor<'_>, to: &Verified<'_>, chunks: usize) -> usize {
    let (limits, runs) = limits_and_runs(to);
    executor::switch_scratch_words(&limits, runs, chunks, from.address_ranges())
}

fn limits_and_runs(verified: &Verified<'_>) -> (Limits, usize) {
    const MOST_RUNS: u64 = 1 << 21;
    let plan = verified.plan();
    let limits = Limits::of_plan(verified.graph(), plan);
    let objects = plan.pools.iter().fold(0u64, |sum, pool| sum.saturating_add(pool.count));
    let runs = objects.min(MOST_RUNS) as usize;
    (limits, runs.max(limits.objects))
}

fn with_bounds_scratch<T>(
    graph: &Graph<'_>,
    measure: impl FnOnce(&mut Scratch<'_>) -> Result<T, OutOfScratch>,
) -> Result<T, OutOfScratch> {
    let mut memory = buffer(bounds::scratch_words(&Limits::of_graph(graph)), 0)?;
    measure(&mut Scratch::new(&mut memory))
}

/// Returns the device memory with everything resident; see [`bounds::in_core_peak_bytes`].
///
/// # Errors
/// The process has too little memory.
pub fn in_core_peak_bytes(graph: &Graph<'_>, machine: &Machine) -> Result<u64, OutOfScratch> {
    with_bounds_scratch(graph, |scratch| bounds::in_core_peak_bytes(graph, machine, scratch))
}

/// Returns a lower bound on the period of plans in such an order that run each op once; see
/// [`bounds::period_ns`].
///
/// # Errors
/// The process has too little memory.
pub fn lower_bound_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
    order: BoundOrder,
) -> Result<u64, OutOfScratch> {
    with_bounds_scratch(graph, |scratch| {
        bounds::period_ns(graph, machine, budget_bytes, order, scratch)
    })
}

/// Returns a lower bound on the period of plans in such an order with any number of repeats; see
/// [`bounds::period_with_repeats_ns`].
///
/// # Errors
/// The process has too little memory.
pub fn lower_bound_repeats_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
    order: BoundOrder,
) -> Result<u64, OutOfScratch> {
    with_bounds_scratch(graph, |scratch| {
        bounds::period_with_repeats_ns(graph, machine, budget_bytes, order, scratch)
    })
}
