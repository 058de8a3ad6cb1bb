//! Plans: by one strategy, or by all of them in the better of several orders of the ops.

use super::error::PlanningError;
use super::memory::{self, Memory};
use super::recipe::{Auto, Order};
use super::request::{LeastMemory, Lists, Output, PoolTables, Request, Task, Written};
use super::strategy::{Need, Strategy};
use super::trials::{Basis, Candidate, Search, Trials};
use super::uses::Uses;
use super::{checkpoint, hosting, order, repeats, slabs};
use crate::host::HostLayout;
use crate::hosted::Hosted;
use crate::plan::{ArenaPlacement, Plan, PlanError, Prediction};
use crate::scratch::{Buffer, BufferTooShort, Scratch};
use crate::sequence::Sequence;

/// What more lists gain over a sample of them, as a fraction of the period, at most as a rule.
const GAIN: u64 = 10;

/// Plans. The same input gives the same plan.
///
/// # Errors
/// An infeasible budget, with the smallest feasible one; buffers or scratch that are too small.
pub fn plan<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Plan<'o>, PlanningError> {
    hosting::plan(request, strategy, output, scratch)
}

/// Plans with some of the ops on the host.
pub(super) fn plan_ops<'o>(
    request: &Request<'_>,
    hosted: Option<&Hosted<'_>>,
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
    let given = Sequence::as_given(request.graph, hosted, &mut scratch)?;
    strategy.rule().check(&given, &mut scratch)?;
    let task = |sequence| Task::new(request, sequence);
    if given.len() == 0 {
        // The host runs everything.
        return plan_task(&task(&given), Strategy::InCore, output, &mut scratch);
    }
    let order = match strategy {
        Strategy::Auto(Auto { order: Order::Free, .. }) if !strategy.takes_first() => {
            order::best(&given, &mut scratch, |sequence, scratch| {
                sample(&Task::new(request, sequence), output.reborrow(), scratch)
            })?
        }
        _ => None,
    };
    if strategy.rule().has_segments() {
        return plan_segments(&task(&given), strategy, output, &mut scratch);
    }
    let best = order.as_ref().unwrap_or(&given);
    let lists = strategy.lists_with_repeats(request.graph);
    let repeated = match lists {
        0 => None,
        _ => repeats::search::best(&task(best), lists, &mut output, &mut scratch)?,
    };
    let repeated_ns = repeated.as_ref().map_or(u64::MAX, |(_, sampled)| sampled.period_ns);
    let (segments, segments_ns) = match lists {
        0 | 1 => (None, u64::MAX),
        _ => repeats::search::best_of_segments(
            &task(&given),
            repeated_ns,
            lists,
            &mut output,
            &mut scratch,
        )?,
    };
    let mut contest = Contest { output, best: None, written: None, shortage: None };
    let half = strategy.shared(request.graph.ops().len());
    if let (Some(_), Some(half)) = (&order, half) {
        contest.enter(&task(&given), half, &mut scratch)?;
    }
    let strategy = order.as_ref().and(half).unwrap_or(strategy);
    contest.enter(&task(best), strategy, &mut scratch)?;
    for (repeated, sampled) in [&segments, &repeated].into_iter().flatten() {
        if contest.may_lose_to(sampled) {
            contest.enter(&task(repeated), half.unwrap_or(strategy), &mut scratch)?;
        }
    }
    let given = task(&given);
    let better = contest.beaten_by_segments(&given, segments_ns, &mut scratch)?;
    if let Some(segments) = better {
        return plan_segments(&given, segments, contest.output, &mut scratch);
    }
    contest.winner(&mut scratch)
}

/// Plans with each number of segments, and keeps the best plan.
fn plan_segments<'o>(
    task: &Task<'_>,
    strategy: Strategy,
    mut output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Plan<'o>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let memory = checkpoint::memory(task, output.arena, &mut scratch)?;
    let mut best: Option<((u64, u64), usize)> = None;
    let mut shortage: Option<PlanningError> = None;
    let mut tried = 0;
    let mut look = |sequence: &Sequence<'_>, scratch: &mut Scratch<'_>| {
        let task = Task { sequence, ..*task };
        match plan_task(&task, strategy, output.reborrow(), scratch) {
            Ok(plan) => {
                let cost = plan.predicted.cost();
                best = best.filter(|&(least, _)| least <= cost).or(Some((cost, tried)));
            }
            Err(error) if error.is_of_one_list() => shortage = Some(error.less(shortage)),
            Err(error) => return Err(error),
        }
        tried += 1;
        Ok(())
    };
    look(task.sequence, &mut scratch)?;
    checkpoint::each(task, &memory, &mut scratch, look)?;
    let Some((_, best)) = best else {
        return Err(shortage.unwrap_or(PlanningError::Stuck));
    };
    let (mut tried, mut written) = (0, None);
    let mut write = |sequence: &Sequence<'_>, scratch: &mut Scratch<'_>| {
        if tried == best {
            let task = Task { sequence, ..*task };
            let plan = plan_task(&task, strategy, output.reborrow(), scratch)?;
            written = Some(Written::of(&plan));
        }
        tried += 1;
        Ok(())
    };
    write(task.sequence, &mut scratch)?;
    checkpoint::each(task, &memory, &mut scratch, write)?;
    written.map(|written| output.written(written)).ok_or(PlanningError::Stuck)
}

/// The smallest budget that any number of segments allows; its tensors are left in the arena.
pub(super) fn least_with_segments(
    task: &Task<'_>,
    strategy: Strategy,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<LeastMemory, PlanningError> {
    let mut scratch = scratch.reborrow();
    let memory = checkpoint::memory(task, arena, &mut scratch)?;
    let mut least =
        memory::smallest(task, strategy.rule().need(task.sequence), arena, &mut scratch)?;
    checkpoint::each(task, &memory, &mut scratch, |sequence, scratch| {
        let task = Task { sequence, ..*task };
        let segments =
            memory::smallest(&task, strategy.rule().need(task.sequence), arena, scratch)?;
        if segments.bytes < least.bytes {
            least = segments;
        }
        Ok(())
    })?;
    Ok(least)
}

/// Plans of the same work, of which the best is kept.
struct Contest<'o, 't> {
    output: Output<'o>,
    /// The period of the best plan, and what it is a plan of.
    best: Option<(u64, Task<'t>, Strategy)>,
    /// The plan that was written last, if that is the best.
    written: Option<Written>,
    /// What the first one that there is no plan of needs more of.
    shortage: Option<PlanningError>,
}

impl<'o, 't> Contest<'o, 't> {
    /// Plans, and keeps the plan if it is better than those before, or as good where it runs each
    /// op once.
    fn enter(
        &mut self,
        task: &Task<'t>,
        strategy: Strategy,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        self.written = None;
        let plan = match plan_task(task, strategy, self.output.reborrow(), scratch) {
            Err(error) if error.is_of_one_list() => {
                self.shortage = self.shortage.or(Some(error));
                return Ok(());
            }
            plan => plan?,
        };
        let Prediction { period_ns, repeat_ns, .. } = plan.predicted;
        let is_better = self.best.is_none_or(|(least_ns, ..)| {
            period_ns < least_ns || (period_ns == least_ns && repeat_ns == 0)
        });
        if is_better {
            self.best = Some((period_ns, *task, strategy));
            self.written = Some(Written::of(&plan));
        }
        Ok(())
    }

    /// Whether a plan that a sample of is known could be better than the best so far: more lists
    /// may gain a little.
    fn may_lose_to(&self, sampled: &Prediction) -> bool {
        let least_ns = sampled.period_ns - sampled.period_ns / GAIN;
        self.best.is_none_or(|(best_ns, ..)| least_ns < best_ns)
    }

    /// The strategy of checkpointing that has a better plan, if one has. Few works come so far
    /// that it has to be planned: no plan takes less than its launches.
    fn beaten_by_segments(
        &mut self,
        task: &Task<'_>,
        launches_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Strategy>, PlanningError> {
        let mut least_ns = self.best.map_or(u64::MAX, |(period_ns, ..)| period_ns);
        let mut better = None;
        for strategy in [Strategy::Checkpoint, Strategy::CheckpointOffload] {
            if launches_ns >= least_ns {
                break;
            }
            self.written = None;
            match plan_segments(task, strategy, self.output.reborrow(), scratch) {
                Ok(plan) if plan.predicted.period_ns < least_ns => {
                    (least_ns, better) = (plan.predicted.period_ns, Some(strategy));
                }
                Err(error) if !error.is_of_one_list() => return Err(error),
                _ => {}
            }
        }
        Ok(better)
    }

    /// The best plan, written once more where another came after it.
    fn winner(self, scratch: &mut Scratch<'_>) -> Result<Plan<'o>, PlanningError> {
        match (self.written, self.best, self.shortage) {
            (Some(written), ..) => Ok(self.output.written(written)),
            (None, Some((_, task, strategy)), _) => {
                plan_task(&task, strategy, self.output, scratch)
            }
            (None, None, Some(error)) => Err(error),
            (None, None, None) => Err(PlanError::TooManySteps.into()),
        }
    }
}

/// What the best of a sample of lists comes to; none where none of them fits.
pub(super) fn sample(
    task: &Task<'_>,
    output: Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Prediction>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let Output { steps, resident, arena, pools, tensor_pool } = output;
    let mut trials = Trials::new(task, steps, resident, PoolTables { pools, tensor_pool });
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
    let mut trials = Trials::new(task, steps, resident, PoolTables { pools, tensor_pool });
    let memory = Memory::new(task, strategy.rule().need(task.sequence), arena, &mut scratch)?;
    let uses = Uses::new(task.sequence, &mut scratch)?;
    let mut search = Search::of_rule(strategy.rule(), task.sequence, &mut scratch)?;
    let basis = Basis { memory: &memory, uses: &uses, arena: &arena[..memory.placed] };
    let Some(best) = trials.best(&strategy, &basis, &mut search, &mut scratch)? else {
        if let Some(needed) = trials.steps_needed {
            let len = trials.steps.len();
            return Err(BufferTooShort { buffer: Buffer::Steps, needed, len }.into());
        }
        if let Some(needed_bytes) = trials.host_shortage_bytes {
            let host_bytes = task.machine.host_bytes;
            return Err(PlanError::HostMemory { needed_bytes, host_bytes }.into());
        }
        let need = strategy.rule().need(task.sequence);
        let least = memory::smallest(task, need, arena, &mut scratch)?;
        let LeastMemory { bytes: min_feasible_bytes, op, .. } = least;
        return Err(PlanningError::Infeasible { min_feasible_bytes, op });
    };
    let Divided { best, memory } = match strategy {
        Strategy::Auto(_) if !strategy.takes_first() => {
            let whole = Divided { best, memory };
            let unsettled =
                with_slabs(&mut trials, &strategy, whole, &uses, arena, &mut search, &mut scratch)?;
            settle(&mut trials, &strategy, unsettled, &uses, arena, &mut search, &mut scratch)?
        }
        _ => Divided { best, memory },
    };
    let Trials { steps, resident, tables, .. } = trials;
    let Candidate { lengths, predicted, .. } = best;
    let lists = Lists { steps: &steps[..lengths.steps], resident: &resident[..lengths.resident] };
    let plan = memory.plan(task, &arena[..memory.placed], lists, tables)?;
    let host = HostLayout::new(task.sequence.graph(), task.machine, &plan, &mut scratch)?;
    let predicted = Prediction { host_bytes: host.moved_bytes(), ..predicted };
    Ok(Plan { predicted, ..plan })
}

/// The best list so far, and the memory that it is for.
struct Divided<'s, 'm> {
    best: Candidate<'s>,
    memory: Memory<'m>,
}

/// A list and its memory once what is small has slabs of its own; or the same again, written,
/// where that is no better. Only where no op waits for memory anyway: chunks serve all
/// tensors in turn, so where memory is short a part of it for some alone costs more time than
/// their half-empty chunks do (0.5 to 3 % on recorded training steps).
fn with_slabs<'m, 's>(
    trials: &mut Trials<'_, '_>,
    strategy: &'s Strategy,
    Divided { best, memory }: Divided<'s, 'm>,
    uses: &Uses<'_>,
    arena: &[ArenaPlacement],
    search: &mut Search<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Divided<'s, 'm>, PlanningError> {
    if !best.is_ideal {
        return Ok(Divided { best, memory });
    }
    let Some(divided) = slabs::divide(trials.task, &memory, trials.lists(best.lengths), scratch)?
    else {
        return Ok(Divided { best, memory });
    };
    let bases =
        [&memory, &divided].map(|memory| Basis { memory, uses, arena: &arena[..memory.placed] });
    let (best, is_other) = trials.keep_better(strategy, best, bases, search, scratch)?;
    Ok(Divided { best, memory: if is_other { divided } else { memory } })
}

/// A list and its memory once the states that stay for good lie in the arena; or the same
/// again, written, where that is no better.
fn settle<'m, 's>(
    trials: &mut Trials<'_, '_>,
    strategy: &'s Strategy,
    Divided { best, memory }: Divided<'s, 'm>,
    uses: &Uses<'_>,
    arena: &mut [ArenaPlacement],
    search: &mut Search<'_>,
    scratch: &mut Scratch<'m>,
) -> Result<Divided<'s, 'm>, PlanningError> {
    let lists = trials.lists(best.lengths);
    let Some(settled) = memory.settle(trials.task, lists, arena, scratch)? else {
        return Ok(Divided { best, memory });
    };
    let bases =
        [&memory, &settled].map(|memory| Basis { memory, uses, arena: &arena[..memory.placed] });
    let (best, is_other) = trials.keep_better(strategy, best, bases, search, scratch)?;
    Ok(Divided { best, memory: if is_other { settled } else { memory } })
}
