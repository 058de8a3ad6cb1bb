//! Plans: by one strategy, or by all of them in the better of several orders of the ops.

use super::error::PlanningError;
use super::memory::{self, Memory};
use super::request::{LeastMemory, Output, Request, Task};
use super::strategy::{Auto, Need, Order, Strategy};
use super::trials::{Basis, Candidate, Search, Trials};
use super::uses::Uses;
use super::{order, slabs, weights};
use crate::host::HostLayout;
use crate::plan::{ArenaPlacement, Plan, PlanError, Prediction};
use crate::scratch::{Buffer, BufferTooShort, Scratch};
use crate::sequence::Sequence;

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
    let mut trials = Trials::new(task, steps, resident, (pools, tensor_pool));
    let memory = Memory::new(task, Need::LargestOp, arena, &mut scratch)?;
    let uses = Uses::new(task.sequence, &mut scratch)?;
    let basis = Basis { memory: &memory, uses: &uses, arena: &arena[..memory.placed] };
    trials.sample(&basis, &mut scratch)
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
    let mut trials = Trials::new(task, steps, resident, pools);
    let memory = Memory::new(task, Need::of(strategy), arena, &mut scratch)?;
    let uses = Uses::new(task.sequence, &mut scratch)?;
    let mut search = match strategy {
        Strategy::Auto(_) => Some(Search::new(task.sequence, &mut scratch)?),
        _ => None,
    };
    let basis = Basis { memory: &memory, uses: &uses, arena: &arena[..memory.placed] };
    let Some(best) = trials.best(strategy, &basis, &mut search, &mut scratch)? else {
        if let Some(needed) = trials.steps_needed {
            let len = trials.steps.len();
            return Err(BufferTooShort { buffer: Buffer::Steps, needed, len }.into());
        }
        if let Some(needed_bytes) = trials.host_shortage_bytes {
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
                with_slabs(&mut trials, strategy, whole, &uses, arena, &mut search, &mut scratch)?;
            settle(&mut trials, strategy, unsettled, &uses, arena, &mut search, &mut scratch)?
        }
        _ => (best, memory),
    };
    let Trials { steps, resident, pools, tensor_pool, .. } = trials;
    let Candidate { lengths, predicted, .. } = best;
    let lists = (&steps[..lengths.steps], &resident[..lengths.resident]);
    let plan = memory.plan(task, &arena[..memory.placed], lists, (pools, tensor_pool))?;
    let rooms = HostLayout::new(task.sequence.graph(), task.machine, &plan, &mut scratch)?;
    let predicted = Prediction { host_bytes: rooms.moved_bytes(), ..predicted };
    Ok(Plan { predicted, ..plan })
}

/// A list and its memory once what is small has slabs of its own; or the same again, written,
/// where that is no better. Only where no op waits for memory anyway: chunks serve all
/// tensors in turn, so where memory is short a part of it for some alone costs more time than
/// their half-empty chunks do (0.5 to 3 % on recorded training steps).
fn with_slabs<'m>(
    trials: &mut Trials<'_, '_>,
    strategy: Strategy,
    (best, memory): (Candidate, Memory<'m>),
    uses: &Uses<'_>,
    arena: &[ArenaPlacement],
    search: &mut Option<Search<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<(Candidate, Memory<'m>), PlanningError> {
    let lists = (&trials.steps[..best.lengths.steps], &trials.resident[..best.lengths.resident]);
    if !best.is_ideal() {
        return Ok((best, memory));
    }
    let Some(divided) = slabs::divide(trials.task, &memory, lists, scratch)? else {
        return Ok((best, memory));
    };
    let bases =
        [&memory, &divided].map(|memory| Basis { memory, uses, arena: &arena[..memory.placed] });
    let (best, is_other) = trials.keep_better(strategy, best, bases, search, scratch)?;
    Ok((best, if is_other { divided } else { memory }))
}

/// A list and its memory once the states that stay for good lie in the arena; or the same
/// again, written, where that is no better.
fn settle<'m>(
    trials: &mut Trials<'_, '_>,
    strategy: Strategy,
    (best, memory): (Candidate, Memory<'m>),
    uses: &Uses<'_>,
    arena: &mut [ArenaPlacement],
    search: &mut Option<Search<'_>>,
    scratch: &mut Scratch<'m>,
) -> Result<(Candidate, Memory<'m>), PlanningError> {
    let lists = (&trials.steps[..best.lengths.steps], &trials.resident[..best.lengths.resident]);
    let Some(settled) = memory.settle(trials.task, lists, arena, scratch)? else {
        return Ok((best, memory));
    };
    let bases =
        [&memory, &settled].map(|memory| Basis { memory, uses, arena: &arena[..memory.placed] });
    let (best, is_other) = trials.keep_better(strategy, best, bases, search, scratch)?;
    Ok((best, if is_other { settled } else { memory }))
}
