//! Planners: each turns a graph into a plan and knows no backend.
//!
//! A strategy only chooses what moves when. All share the division of memory (`memory`) and
//! the `builder`, which keeps residency, host copies and occupancy, decides whether an evict
//! needs an offload, and closes the cycle.

mod builder;
mod cache;
mod chance;
mod choice;
mod desk;
mod error;
mod fit;
mod gaps;
mod heap;
mod in_core;
mod lms;
mod memory;
mod on_demand;
mod order;
mod paced;
mod pressure;
mod queue;
mod recipe;
mod residents;
mod slabs;
mod strategy;
pub mod swap;
mod threshold;
mod tree;
mod uses;
mod vdnn;
mod weights;
mod window;

use crate::graph::{Graph, OpId};
use crate::host::HostRooms;
use crate::lower;
use crate::machine::Machine;
use crate::plan::{ArenaPlacement, Plan, PlanError, Pool, Prediction, Resident, Step};
use crate::schedule::Scheduled;
use crate::scratch::{Buffer, BufferTooShort, Limits, Scratch, larger, total, words};
use crate::sequence::Sequence;
use crate::timeline;
use builder::Builder;
use desk::{Candidate, Desk, Ground, Search};
use gaps::Gaps;
use memory::Memory;
use strategy::Need;
use uses::Uses;
use weights::Way;

pub use error::PlanningError;
pub use order::{Join, list_schedule, list_schedule_words};
pub use strategy::{Auto, Lms, Order, Strategy, Weights, Window};

/// What to plan for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The work.
    pub graph: &'a Graph<'a>,
    /// Where it runs.
    pub machine: &'a Machine,
    /// Device memory for the plan.
    pub budget_bytes: u64,
}

/// A request with its ops in the order in which they are to run.
#[derive(Clone, Copy, Debug)]
struct Task<'a> {
    sequence: &'a Sequence<'a>,
    machine: &'a Machine,
    budget_bytes: u64,
}

impl<'a> Task<'a> {
    const fn new(request: &Request<'a>, sequence: &'a Sequence<'a>) -> Self {
        let Request { machine, budget_bytes, .. } = *request;
        Self { sequence, machine, budget_bytes }
    }
}

/// Buffers for a plan, owned by the caller. Their lengths follow from the
/// [limits of the graph](Limits::of_graph).
#[derive(Debug)]
pub struct Output<'o> {
    /// The list; [`Limits::max_steps`] are always enough, and a fraction of that mostly is.
    pub steps: &'o mut [Step],
    /// Two for each tensor.
    pub resident: &'o mut [Resident],
    /// One for each tensor.
    pub arena: &'o mut [ArenaPlacement],
    /// Two.
    pub pools: &'o mut [Pool],
    /// One for each tensor.
    pub tensor_pool: &'o mut [u32],
}

impl Output<'_> {
    /// Checks the buffers whose lengths follow from the graph.
    fn check(&mut self, graph: &Graph<'_>) -> Result<(), BufferTooShort> {
        let tensors = graph.tensors().len();
        Buffer::Resident.first(self.resident, tensors.saturating_mul(2))?;
        Buffer::Arena.first(self.arena, tensors)?;
        Buffer::Pools.first(self.pools, memory::POOLS)?;
        Buffer::TensorPool.first(self.tensor_pool, tensors)?;
        Ok(())
    }

    /// The same buffers, for a while.
    const fn reborrow(&mut self) -> Output<'_> {
        Output {
            steps: self.steps,
            resident: self.resident,
            arena: self.arena,
            pools: self.pools,
            tensor_pool: self.tensor_pool,
        }
    }
}

/// Words of scratch that [`plan`] and its kin ask for, by the [limits of the
/// graph](Limits::of_graph) with as many [steps](Limits::with_steps) as the output has. At most
/// 79 per op, 6 per operand and 44 per tensor, or what lowering or predicting a list or its
/// host layout take beside it.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    let lower = lower::scratch_words(limits);
    let predict = timeline::scratch_words(limits);
    let judge = larger(lower, larger(predict, HostRooms::scratch_words(limits)));
    let judge = judge.saturating_add(words::<Scheduled>(limits.steps));
    let strategies = larger(window::scratch_words(limits), vdnn::scratch_words(limits));
    let strategies = larger(strategies, fit::scratch_words(limits));
    let strategies = larger(strategies, cache::scratch_words(limits));
    let strategies = larger(strategies, weights::scratch_words(limits));
    let paced = larger(choice::scratch_words(limits), paced::scratch_words(limits));
    let write = Builder::scratch_words(limits).saturating_add(larger(strategies, paced));
    let write = larger(write, Gaps::working_words(limits));
    let write = larger(write, slabs::scratch_words(limits));
    let list = total([
        memory::scratch_words(limits),
        Uses::scratch_words(limits),
        Search::scratch_words(limits),
        larger(write, judge),
    ]);
    let sequences = Sequence::scratch_words(limits).saturating_add(order::kept_words(limits));
    sequences.saturating_add(larger(list_schedule_words(limits), list))
}

/// The least memory with which a strategy can plan, and what takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastMemory {
    /// The smallest feasible budget.
    pub bytes: u64,
    /// The op that needs it.
    pub op: OpId,
    /// What of it is the arena, before rounding up to chunks.
    pub arena_bytes: u64,
    /// How many tensors lie in the arena.
    pub placed: usize,
}

/// The smallest budget with which a strategy can plan at all, and the op that needs it:
/// the least, over the arenas that are tried, of the arena and what the largest op needs
/// beside it (in-core: what the peak needs). That arena is left in `arena`.
///
/// # Errors
/// Scratch that is too small.
pub fn least_memory(
    request: &Request<'_>,
    strategy: Strategy,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<LeastMemory, PlanningError> {
    let mut scratch = scratch.reborrow();
    let given = Sequence::as_given(request.graph, &mut scratch)?;
    let task = Task::new(request, &given);
    if strategy.is_for_chains() {
        weights::check(&given, &mut scratch)?;
    }
    memory::smallest(&task, Need::of(strategy), arena, &mut scratch)
}

/// The figures of [`least_memory`] that an error names.
///
/// # Errors
/// Scratch that is too small.
pub fn min_feasible(
    request: &Request<'_>,
    strategy: Strategy,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<(u64, OpId), PlanningError> {
    let LeastMemory { bytes, op, .. } = least_memory(request, strategy, arena, scratch)?;
    Ok((bytes, op))
}

/// The length of a cycle as the published algorithm of a chain strategy schedules it, with a
/// barrier at its end; none for other strategies, and where activations move.
///
/// # Errors
/// Those of [`plan`], but for room in its output; `arena` has an entry for each tensor.
pub fn cycle_ns(
    request: &Request<'_>,
    strategy: Strategy,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<Option<u64>, PlanningError> {
    let way = match strategy {
        Strategy::Weights(weights) if !weights.moves_activations() => Way::published(true),
        Strategy::WeightsUndiscounted => Way::published(false),
        Strategy::LayerToLayer => Way::LayerToLayer,
        _ => return Ok(None),
    };
    let mut scratch = scratch.reborrow();
    let given = Sequence::as_given(request.graph, &mut scratch)?;
    let task = Task::new(request, &given);
    weights::check(&given, &mut scratch)?;
    let memory = Memory::new(&task, Need::Layer, arena, &mut scratch)?;
    Ok(weights::cycle_ns(&task, &memory, way, &mut scratch)?)
}

/// Plans. The same input gives the same plan.
///
/// # Errors
/// An infeasible budget, with the smallest feasible one; buffers or scratch that are too small.
pub fn plan<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    mut output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Plan<'o>, PlanningError> {
    let (budget_bytes, device_bytes) = (request.budget_bytes, request.machine.device_bytes);
    if budget_bytes > device_bytes {
        return Err(PlanningError::BudgetAboveDevice { budget_bytes, device_bytes });
    }
    output.check(request.graph)?;
    let mut scratch = scratch.reborrow();
    let given = Sequence::as_given(request.graph, &mut scratch)?;
    if strategy.is_for_chains() {
        weights::check(&given, &mut scratch)?;
    }
    let task = |sequence| Task::new(request, sequence);
    let best = match strategy {
        Strategy::Auto(Auto { order: Order::Free, .. }) if !strategy.takes_first() => {
            order::best(&given, &mut scratch, |sequence, scratch| {
                sample(&Task::new(request, sequence), output.reborrow(), scratch)
            })?
        }
        _ => None,
    };
    match (&best, strategy.shared(request.graph.ops().len())) {
        (Some(best), Some(half)) => {
            plan_either([&given, best].map(task), half, output, &mut scratch)
        }
        (Some(best), None) => plan_task(&task(best), strategy, output, &mut scratch),
        (None, _) => plan_task(&task(&given), strategy, output, &mut scratch),
    }
}

/// Plans in the better of two orders; of equals, in the second.
fn plan_either<'o>(
    [one, other]: [Task<'_>; 2],
    strategy: Strategy,
    mut output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Plan<'o>, PlanningError> {
    let mut period_ns = |task| match plan_task(&task, strategy, output.reborrow(), scratch) {
        Ok(plan) => Ok(plan.predicted.period_ns),
        Err(PlanningError::Infeasible { .. }) => Ok(u64::MAX),
        Err(error) => Err(error),
    };
    let better = if period_ns(one)? < period_ns(other)? { one } else { other };
    plan_task(&better, strategy, output, scratch)
}

/// What the best of a sample of lists comes to; none where none of them fits.
fn sample(
    task: &Task<'_>,
    output: Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Prediction>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let Output { steps, resident, arena, pools, tensor_pool } = output;
    let mut desk = Desk::new(task, steps, resident, (pools, tensor_pool));
    let memory = Memory::new(task, Need::LargestOp, arena, &mut scratch)?;
    let uses = Uses::new(task.sequence, &mut scratch)?;
    let ground = Ground { memory: &memory, uses: &uses, arena: &arena[..memory.placed] };
    desk.sample(&ground, &mut scratch)
}

/// Plans with the ops in one order.
fn plan_task<'o>(
    task: &Task<'_>,
    strategy: Strategy,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Plan<'o>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let Output { steps, resident, arena, pools, tensor_pool } = output;
    let pools = (pools, tensor_pool);
    let mut desk = Desk::new(task, steps, resident, pools);
    let memory = Memory::new(task, Need::of(strategy), arena, &mut scratch)?;
    let uses = Uses::new(task.sequence, &mut scratch)?;
    let mut search = match strategy {
        Strategy::Auto(_) => Some(Search::new(task.sequence, &mut scratch)?),
        _ => None,
    };
    let ground = Ground { memory: &memory, uses: &uses, arena: &arena[..memory.placed] };
    let Some(best) = desk.best(strategy, &ground, &mut search, &mut scratch)? else {
        if let Some(needed) = desk.steps_needed {
            let len = desk.steps.len();
            return Err(BufferTooShort { buffer: Buffer::Steps, needed, len }.into());
        }
        if let Some(needed_bytes) = desk.host_shortage_bytes {
            let host_bytes = task.machine.host_bytes;
            return Err(PlanError::HostMemory { needed_bytes, host_bytes }.into());
        }
        let need = Need::of(strategy);
        let least = memory::smallest(task, need, arena, &mut scratch)?;
        let LeastMemory { bytes: min_feasible_bytes, op, .. } = least;
        return Err(PlanningError::Infeasible { min_feasible_bytes, op });
    };
    let (best, memory) = match strategy {
        Strategy::Auto(_) if !strategy.takes_first() => {
            let whole = (best, memory);
            let unsettled =
                with_slabs(&mut desk, strategy, whole, &uses, arena, &mut search, &mut scratch)?;
            settle(&mut desk, strategy, unsettled, &uses, arena, &mut search, &mut scratch)?
        }
        _ => (best, memory),
    };
    let Desk { steps, resident, pools, tensor_pool, .. } = desk;
    let Candidate { lengths, predicted, .. } = best;
    let lists = (&steps[..lengths.steps], &resident[..lengths.resident]);
    let plan = memory.plan(task, &arena[..memory.placed], lists, (pools, tensor_pool))?;
    let rooms = HostRooms::new(task.sequence.graph(), task.machine, &plan, &mut scratch)?;
    let predicted = Prediction { host_bytes: rooms.moved_bytes(), ..predicted };
    Ok(Plan { predicted, ..plan })
}

/// A list and its memory once what is small has slabs of its own; or the same again, written,
/// where that is no better. Only where no op waits for memory anyway: chunks serve all
/// tensors in turn, so where memory is short a part of it for some alone costs more time than
/// their half-empty chunks do (0.5 to 3 % on recorded training steps).
fn with_slabs<'m>(
    desk: &mut Desk<'_, '_>,
    strategy: Strategy,
    (best, memory): (Candidate, Memory<'m>),
    uses: &Uses<'_>,
    arena: &[ArenaPlacement],
    search: &mut Option<Search<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<(Candidate, Memory<'m>), PlanningError> {
    let lists = (&desk.steps[..best.lengths.steps], &desk.resident[..best.lengths.resident]);
    if !best.is_ideal() {
        return Ok((best, memory));
    }
    let Some(divided) = slabs::divide(desk.task, &memory, lists, scratch)? else {
        return Ok((best, memory));
    };
    let grounds =
        [&memory, &divided].map(|memory| Ground { memory, uses, arena: &arena[..memory.placed] });
    let (best, is_other) = desk.keep_better(strategy, best, grounds, search, scratch)?;
    Ok((best, if is_other { divided } else { memory }))
}

/// A list and its memory once the states that stay for good lie in the arena; or the same
/// again, written, where that is no better.
fn settle<'m>(
    desk: &mut Desk<'_, '_>,
    strategy: Strategy,
    (best, memory): (Candidate, Memory<'m>),
    uses: &Uses<'_>,
    arena: &mut [ArenaPlacement],
    search: &mut Option<Search<'_>>,
    scratch: &mut Scratch<'m>,
) -> Result<(Candidate, Memory<'m>), PlanningError> {
    let lists = (&desk.steps[..best.lengths.steps], &desk.resident[..best.lengths.resident]);
    let Some(settled) = memory.settle(desk.task, lists, arena, scratch)? else {
        return Ok((best, memory));
    };
    let grounds =
        [&memory, &settled].map(|memory| Ground { memory, uses, arena: &arena[..memory.placed] });
    let (best, is_other) = desk.keep_better(strategy, best, grounds, search, scratch)?;
    Ok((best, if is_other { settled } else { memory }))
}
