//! Plans by one strategy, or by all of them in the better of several orders of the ops.

#![expect(
    clippy::indexing_slicing,
    reason = "lengths are those of lists and arenas in these buffers"
)]

use super::best_plan::BestPlan;
use super::checkpoint::{self, AfterLoss};
use super::comparison::Comparison;
use super::error::PlanningError;
use super::helper::Helper;
use super::memory::{self, Memory};
use super::memory_search::{BestList, MemorySearch};
use super::order::{self, Join, Orders};
use super::recipe::{Auto, Entrant, SAMPLE, Sample};
use super::repeats::search::Starts;
use super::repeats::segments;
use super::request::{LeastMemory, Lists, Output, PoolTables, Request, Task, Written};
use super::strategy::{Need, Strategy};
use super::trials::{Candidate, Context, Search, Trials};
use super::uses::Uses;
use super::{hosting, repeats};
use crate::host::HostLayout;
use crate::hosted::Hosted;
use crate::machine::Machine;
use crate::plan::{ArenaPlacement, Plan, PlanError, Prediction};
use crate::scratch::{Buffer, BufferTooShort, Scratch};
use crate::sequence::Sequence;
use core::iter;

/// All lists are usually shorter than a sample of them by at most this fraction of the period.
pub(super) const GAIN: u64 = 10;

/// The [`Made::ends_ns`] of plans without a choice of ops for the host.
const UNKNOWN: [u64; 2] = [u64::MAX; 2];

/// If no list fits the host, plans are made for a host with the least memory of the tried lists, then
/// for a host with this fraction more, then for a host with any memory. A balance: each takes as long
/// as a plan.
const MORE_HOST: u64 = 16;

/// A plan, and how it was made.
#[derive(Clone, Copy, Debug)]
pub struct Made<'o> {
    /// The plan.
    pub plan: Plan<'o>,
    /// The name of the strategy that wrote the list; for lists that only [`Strategy::Auto`] writes,
    /// `paced` or `weights in parts`.
    pub by: &'static str,
    /// For [`Strategy::Auto`], the period of the best list that only it writes; `None` if no such
    /// list fits.
    pub own_ns: Option<u64>,
    /// For [`Strategy::Auto`], a lower bound of the periods of other strategies' plans in the given
    /// order, unless fixed objects make a plan shorter.
    pub others_ns: u64,
    /// For [`Strategy::Auto`] with a choice of ops for the host, usual lower bounds of the periods
    /// of plans with none and with all of these ops on the host, unless fixed objects make a plan
    /// shorter.
    pub ends_ns: [u64; 2],
}

impl<'o> Made<'o> {
    /// A plan that was compared with no other.
    pub(super) const fn of(plan: Plan<'o>, by: &'static str) -> Self {
        Self { plan, by, own_ns: None, others_ns: 0, ends_ns: UNKNOWN }
    }

    /// The lengths of the plan in the buffers, and the name of its maker.
    pub(super) const fn written(&self) -> (Written, &'static str) {
        (Written::of(&self.plan), self.by)
    }

    /// The same without the plan, which stays in the buffers.
    pub(super) const fn kept(&self) -> Kept {
        let Self { ref plan, by, own_ns, others_ns, ends_ns } = *self;
        Kept { written: Written::of(plan), by, own_ns, others_ns, ends_ns }
    }
}

/// A [`Made`] plan that is in the buffers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    pub(super) written: Written,
    by: &'static str,
    own_ns: Option<u64>,
    others_ns: u64,
    ends_ns: [u64; 2],
}

impl Kept {
    /// The plan in the buffers.
    pub(super) fn made(self, output: Output<'_>) -> Made<'_> {
        let Self { written, by, own_ns, others_ns, ends_ns } = self;
        Made { plan: output.written(written), by, own_ns, others_ns, ends_ns }
    }
}

/// Plans; see [`make`].
///
/// # Errors
/// The errors of [`make`].
pub fn plan<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Plan<'o>, PlanningError> {
    make(request, strategy, output, scratch).map(|made| made.plan)
}

/// Plans, and tells how the plan was made. The same input always gives the same plan.
///
/// # Errors
/// An infeasible budget, with the smallest feasible one; buffers or scratch that are too small.
pub fn make<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Made<'o>, PlanningError> {
    make_within_host(request, strategy, output, None, scratch)
}

/// Plans like [`make`], in less time: the helper runs some of the searches of [`Strategy::Auto`].
/// The plan is the same.
///
/// # Errors
/// The errors of [`make`].
pub fn make_with_helper<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    output: Output<'o>,
    helper: &mut Helper<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Made<'o>, PlanningError> {
    helper.output.check(request.graph)?;
    let mut helper = helper.beside(&output)?;
    make_within_host(request, strategy, output, Some(&mut helper), scratch)
}

/// Plans, and if no list fits the host, plans for larger hosts. Returns such a plan if it fits the host
/// after all; if not, the error names the host memory that the plan takes.
fn make_within_host<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    mut output: Output<'o>,
    mut helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<Made<'o>, PlanningError> {
    let mut make_on = |machine: &Machine| {
        let (request, helper) = (Request { machine, ..*request }, helper.as_deref_mut());
        let made = hosting::make(&request, strategy, output.reborrow(), helper, scratch)?;
        Ok((made.plan.predicted.host_bytes, made.kept()))
    };
    let least_bytes = match make_on(request.machine) {
        Err(PlanningError::Plan(PlanError::HostMemory { needed_bytes, .. }))
            if matches!(strategy, Strategy::Auto(_)) =>
        {
            needed_bytes
        }
        made => return Ok(made?.1.made(output)),
    };
    // The search has no plan of its lists with repeats, so the least memory may be too little for one.
    let more_bytes = least_bytes.saturating_add(least_bytes / MORE_HOST);
    let made = [least_bytes, more_bytes, u64::MAX]
        .into_iter()
        .find_map(|bytes| make_on(&request.machine.with_host_bytes(bytes)).ok());
    let host_bytes = request.machine.host_bytes;
    match made {
        Some((taken_bytes, made)) if taken_bytes <= host_bytes => Ok(made.made(output)),
        made => {
            let needed_bytes = made.map_or(least_bytes, |(taken_bytes, _)| taken_bytes);
            Err(PlanError::HostMemory { needed_bytes, host_bytes }.into())
        }
    }
}

/// Plans with the `hosted` ops on the host. [`Strategy::Auto`] may also compare other strategies' plans.
pub(super) fn make_with<'o>(
    request: &Request<'_>,
    (hosted, compares): (Option<&Hosted<'_>>, bool),
    strategy: Strategy,
    mut output: Output<'o>,
    mut helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<Made<'o>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let given = Sequence::as_given(request.graph, hosted, &mut scratch)?;
    strategy.rule().check(&given, &mut scratch)?;
    let task = Task::new(request, &given);
    if given.len() == 0 {
        return plan_task(&task, Entrant::Of(strategy), output, &mut scratch);
    }
    let orders = best_orders(request, &given, strategy, &mut output, &mut scratch)?;
    if strategy.rule().has_segments() {
        return plan_segments(&task, (strategy, u64::MAX), output, &mut scratch);
    }
    let (given, orders) = (&given, &orders);
    let compares = compares && matches!(strategy, Strategy::Auto(_)) && !strategy.stops_at_first();
    let comparison = Comparison { request, given, orders, strategy, compares };
    let repeated = comparison.find_repeats(&mut output, helper.as_deref_mut(), &mut scratch)?;
    comparison.plan(&repeated, output, helper, &mut scratch)
}

/// The period of the best plan of other strategies, and the plan if it was written; `None` if no plan takes
/// less than a bound.
pub(super) type OfOthers<'o> = Option<(u64, Option<Made<'o>>)>;

/// Compares the strategies that run nothing on the host, except `auto`, under the bound `below_ns`. If
/// `writes`, plans by the best strategy. Repeats ops only if `strategy` allows it, and compares in a rival
/// order, too, if `strategy` allows other orders.
pub(super) fn make_other<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    (below_ns, writes): (u64, bool),
    mut output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<OfOthers<'o>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let given = Sequence::as_given(request.graph, None, &mut scratch)?;
    let orders = best_orders(request, &given, strategy, &mut output, &mut scratch)?;
    let rival = orders.rival().map(|order| Task::new(request, order));
    let given = Task::new(request, &given);
    let launches_ns = if strategy.lists_with_repeats(request.graph) == 0 {
        u64::MAX
    } else {
        segments::least_of_segments(&given, &mut output, &mut scratch)?
    };
    let mut plans = BestPlan::new(output);
    plans.try_others((&given, rival.as_ref()), below_ns, None, &mut scratch)?;
    let better = plans.best_of_segments(&given, launches_ns, below_ns, None, &mut scratch)?;
    let of_segments = better.map(|(period_ns, _)| period_ns);
    let Some(period_ns) = of_segments.or(plans.best.map(|best| best.period_ns)) else {
        return Ok(None);
    };
    let made = writes.then(|| plans.finish((&given, better), &mut scratch)).transpose()?;
    Ok(Some((period_ns, made)))
}

/// The best orders of the ops; no other order than the given one if the strategy keeps it.
fn best_orders<'s>(
    request: &Request<'_>,
    given: &Sequence<'s>,
    strategy: Strategy,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'s>,
) -> Result<Orders<'s>, PlanningError> {
    if !strategy.orders_freely() {
        return Ok(Orders::given());
    }
    let mut best = |request: &Request<'_>, scratch: &mut Scratch<'s>| {
        order::best(given, request.budget_bytes, scratch, |sequence, scratch| {
            sample(&Task::new(request, sequence), SAMPLE, output.reborrow(), scratch)
        })
    };
    let found = best(request, scratch)?;
    if found.sampled_ns() < u64::MAX {
        return Ok(found);
    }
    // Lists that only compare orders need not fit the host.
    let machine = &request.machine.with_host_bytes(u64::MAX);
    Ok(best(&Request { machine, ..*request }, scratch)?.without_a_list())
}

/// Plans by a strategy other than [`Strategy::Auto`]. Returns `None` if no plan takes less than
/// `below_ns`. Does not judge lists that are known to take longer.
///
/// # Errors
/// The errors of [`make`], except for an infeasible budget.
pub fn make_below<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    below_ns: u64,
    mut output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Made<'o>>, PlanningError> {
    output.check(request.graph)?;
    let mut scratch = scratch.reborrow();
    let given = Sequence::as_given(request.graph, None, &mut scratch)?;
    let planned = match strategy.rule().check(&given, &mut scratch) {
        Err(error) => Err(error),
        Ok(()) if strategy.runs_on_host() => {
            hosting::make_below(request, strategy, below_ns, output, &mut scratch)
        }
        Ok(()) => {
            plan_task_below(&Task::new(request, &given), strategy, below_ns, output, &mut scratch)
        }
    };
    match planned {
        Err(error) if error.is_of_one_list() => Ok(None),
        Err(
            PlanningError::NoChain { .. } | PlanningError::NothingOnHost | PlanningError::Stuck,
        ) => Ok(None),
        planned => planned,
    }
}

/// Does the same in the order of the task, for a strategy that chooses no ops for the host.
pub(super) fn plan_task_below<'o>(
    task: &Task<'_>,
    strategy: Strategy,
    below_ns: u64,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Made<'o>>, PlanningError> {
    // If the host runs all ops, there is nothing to choose.
    let strategy = if task.sequence.len() == 0 { Strategy::InCore } else { strategy };
    let entrant = Entrant::Of(strategy);
    if strategy.rule().has_segments() {
        return match plan_segments(task, (strategy, below_ns), output, scratch) {
            Err(PlanningError::Stuck) => Ok(None),
            made => made.map(Some),
        };
    }
    match below_ns {
        u64::MAX => plan_task(task, entrant, output, scratch).map(Some),
        _ => plan_below(task, entrant, below_ns, output, scratch),
    }
}

/// Plans with each division into segments whose launches take less than `below_ns`, and keeps the best
/// plan.
pub(super) fn plan_segments<'o>(
    task: &Task<'_>,
    (strategy, below_ns): (Strategy, u64),
    mut output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Made<'o>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let entrant = Entrant::Of(strategy);
    let memory = checkpoint::memory(task, output.arena, &mut scratch)?;
    let mut best: Option<((u64, u64), usize)> = None;
    let mut shortage: Option<PlanningError> = None;
    let mut tried = 0;
    let mut try_sequence = |sequence: &Sequence<'_>, scratch: &mut Scratch<'_>| {
        let task = Task { sequence, ..*task };
        // A plan with an equal period may have a lower cost otherwise.
        let best_ns = best.map_or(u64::MAX, |((period_ns, _), _)| period_ns.saturating_add(1));
        let below_ns = below_ns.min(best_ns);
        let planned = match (sequence.launches_ns() < below_ns, below_ns) {
            (false, _) => Ok(None),
            (true, u64::MAX) => plan_task(&task, entrant, output.reborrow(), scratch).map(Some),
            (true, _) => plan_below(&task, entrant, below_ns, output.reborrow(), scratch),
        };
        match planned {
            Ok(None) => {}
            Ok(Some(made)) => {
                let cost = made.plan.predicted.cost();
                best = best.filter(|&(least, _)| least <= cost).or(Some((cost, tried)));
            }
            Err(error) if error.is_of_one_list() => {
                shortage = Some(error.with_least_need(shortage));
            }
            Err(error) => return Err(error),
        }
        tried = tried.saturating_add(1);
        Ok(())
    };
    try_sequence(task.sequence, &mut scratch)?;
    checkpoint::each(task, &memory, AfterLoss::Dropped, &mut scratch, |sequence, _, scratch| {
        try_sequence(sequence, scratch)
    })?;
    let Some((_, best)) = best else {
        return Err(shortage.unwrap_or(PlanningError::Stuck));
    };
    let (mut tried, mut written) = (0usize, None);
    let mut write = |sequence: &Sequence<'_>, scratch: &mut Scratch<'_>| {
        if tried == best {
            let task = Task { sequence, ..*task };
            let made = plan_task(&task, entrant, output.reborrow(), scratch)?;
            written = Some(Written::of(&made.plan));
        }
        tried = tried.saturating_add(1);
        Ok(())
    };
    write(task.sequence, &mut scratch)?;
    checkpoint::each(task, &memory, AfterLoss::Dropped, &mut scratch, |sequence, _, scratch| {
        write(sequence, scratch)
    })?;
    let plan = written.map(|written| output.written(written)).ok_or(PlanningError::Stuck)?;
    Ok(Made::of(plan, strategy.name()))
}

/// The smallest budget over all numbers of segments. Leaves its tensors in `arena`.
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
    checkpoint::each(task, &memory, AfterLoss::Dropped, &mut scratch, |sequence, _, scratch| {
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

/// The best prediction of a sample of lists; `None` if no list fits.
pub(super) fn sample(
    task: &Task<'_>,
    lists: Sample<'_>,
    output: Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Prediction>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let Output { steps, resident, arena, pools, tensor_pool } = output;
    let mut trials = Trials::new(task, steps, resident, PoolTables { pools, tensor_pool });
    let memory = Memory::new(task, Need::LargestOp, arena, &mut scratch)?;
    let uses = Uses::new(task.sequence, &mut scratch)?;
    let context = Context { memory: &memory, uses: &uses, arena: &arena[..memory.placed] };
    trials.sample(lists, &context, &mut scratch)
}

/// The period of the best of a few lists of [`Strategy::Auto`] with the ops in one order, or with
/// repeats from that order on; `None` if no such list fits.
pub(super) fn trial_ns(
    task: &Task<'_>,
    auto: Auto,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<u64>, PlanningError> {
    // If the host runs all ops, there is nothing to choose.
    let is_idle = task.sequence.len() == 0;
    let strategy = if is_idle { Strategy::InCore } else { Strategy::Auto(auto) };
    trial_of_starts_ns(task, strategy, ([Some(*task), None], iter::empty()), output, None, scratch)
}

/// Does the same with repeats from several orders on.
pub(super) fn trial_of_starts_ns(
    task: &Task<'_>,
    strategy: Strategy,
    starts: Starts<'_, impl Iterator<Item = Join> + Clone + Sync>,
    output: &mut Output<'_>,
    helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<u64>, PlanningError> {
    let once = plan_below(task, Entrant::Of(strategy), u64::MAX, output.reborrow(), scratch)?;
    let once_ns = once.map(|made| made.plan.predicted.period_ns);
    let repeated_ns = match strategy.lists_with_repeats(task.sequence.graph()) {
        0 => None,
        lists => repeats::search::trial_ns(starts, lists, output, helper, scratch)?,
    };
    Ok(once_ns.into_iter().chain(repeated_ns).min())
}

/// The period of the best of a few lists of [`Strategy::Auto`] with the launches in their best
/// order, or with repeats from several orders on; `None` if no such list fits.
pub(super) fn trial_in_order_ns(
    request: &Request<'_>,
    hosted: Option<&Hosted<'_>>,
    auto: Auto,
    output: &mut Output<'_>,
    helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<u64>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let given = &Sequence::as_given(request.graph, hosted, &mut scratch)?;
    if given.len() == 0 {
        return trial_ns(&Task::new(request, given), auto, output, &mut scratch);
    }
    let strategy = Strategy::Auto(auto);
    let orders = &best_orders(request, given, strategy, output, &mut scratch)?;
    let comparison = Comparison { request, given, orders, strategy, compares: false };
    comparison.trial_ns(output, helper, &mut scratch)
}

/// Plans with the ops in one order.
pub(super) fn plan_task<'o>(
    task: &Task<'_>,
    entrant: Entrant,
    mut output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Made<'o>, PlanningError> {
    // If the host runs all ops, there is nothing to choose.
    let nothing = Entrant::Of(Strategy::InCore);
    let entrant = if task.sequence.len() == 0 { nothing } else { entrant };
    let made = plan_below(task, entrant, u64::MAX, output.reborrow(), scratch)?;
    if let Some((written, by)) = made.map(|made| made.written()) {
        return Ok(Made::of(output.written(written), by));
    }
    let need = entrant.need(task.sequence);
    let least = memory::smallest(task, need, output.arena, scratch)?;
    let LeastMemory { bytes: min_feasible_bytes, op, .. } = least;
    Err(PlanningError::Infeasible { min_feasible_bytes, op })
}

/// Does the same if only plans that take less than `below_ns` are of use. Returns `None` if no list
/// fits the budget or takes less.
pub(super) fn plan_below<'o>(
    task: &Task<'_>,
    entrant: Entrant,
    below_ns: u64,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Made<'o>>, PlanningError> {
    plan_seen(task, entrant, (below_ns, &mut 0), output, scratch)
}

/// Does the same; also lowers a period to the least lower bound of a rule's lists.
pub(super) fn plan_seen<'o>(
    task: &Task<'_>,
    entrant: Entrant,
    (below_ns, seen_ns): (u64, &mut u64),
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Made<'o>>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let Output { steps, resident, arena, pools, tensor_pool } = output;
    let mut trials = Trials::new(task, steps, resident, PoolTables { pools, tensor_pool });
    trials.below_ns = below_ns;
    let memory = Memory::new(task, entrant.need(task.sequence), arena, &mut scratch)?;
    let uses = Uses::new(task.sequence, &mut scratch)?;
    let mut search = Search::of_entrant(&entrant, task.sequence, &mut scratch)?;
    let context = Context { memory: &memory, uses: &uses, arena: &arena[..memory.placed] };
    let best = trials.best(&entrant, &context, &mut search, &mut scratch)?;
    *seen_ns = trials.least_ns.min(*seen_ns);
    let Some(best) = best else {
        if let Some(needed) = trials.steps_needed {
            let len = trials.steps.len();
            return Err(BufferTooShort { buffer: Buffer::Steps, needed, len }.into());
        }
        if let Some(needed_bytes) = trials.host_shortage_bytes {
            let host_bytes = task.machine.host_bytes;
            return Err(PlanError::HostMemory { needed_bytes, host_bytes }.into());
        }
        return Ok(None);
    };
    let list = match entrant.is_of_auto() && !entrant.stops_at_first() {
        true => {
            let trials = &mut trials;
            let mut memory_search =
                MemorySearch { trials, entrant: &entrant, uses: &uses, search: &mut search, arena };
            memory_search.improve(BestList { best, memory }, &mut scratch)?
        }
        false => BestList { best, memory },
    };
    let BestList { best, memory } = list;
    let Trials { steps, resident, tables, .. } = trials;
    let Candidate { lengths, predicted, .. } = best;
    let lists = Lists { steps: &steps[..lengths.steps], resident: &resident[..lengths.resident] };
    let plan = memory.plan(task, &arena[..memory.placed], lists, tables)?;
    let host = HostLayout::new(task.sequence.graph(), task.machine, &plan, &mut scratch)?;
    let predicted = Prediction { host_bytes: host.moved_bytes(), ..predicted };
    Ok(Some(Made::of(Plan { predicted, ..plan }, best.made_by())))
}
