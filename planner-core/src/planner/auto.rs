//! Plans: by one strategy, or by all of them in the better of several orders of the ops.

use super::anew::{Divided, Divider};
use super::checkpoint::{self, Staying};
use super::error::PlanningError;
use super::memory::{self, Memory};
use super::order::{self, Orders};
use super::recipe::{Auto, Entrant, Order, SAMPLE, Sample};
use super::repeats::search::Segments;
use super::request::{LeastMemory, Lists, Output, PoolTables, Request, Task, Written};
use super::strategy::{Need, Strategy};
use super::trials::{Basis, Candidate, Search, Trials};
use super::uses::Uses;
use super::{hosting, repeats};
use crate::bounds;
use crate::host::HostLayout;
use crate::hosted::Hosted;
use crate::plan::{ArenaPlacement, Plan, PlanError, Prediction};
use crate::scratch::{Buffer, BufferTooShort, Scratch};
use crate::sequence::Sequence;
use core::iter;

/// What more lists gain over a sample of them, as a fraction of the period, at most as a rule.
pub(super) const GAIN: u64 = 10;

/// The [`Made::ends_ns`] of plans that no op is chosen for.
const UNKNOWN: [u64; 2] = [u64::MAX; 2];

/// A plan, and what made it.
#[derive(Clone, Copy, Debug)]
pub struct Made<'o> {
    /// The plan.
    pub plan: Plan<'o>,
    /// What wrote the list: the name of a strategy, or for lists that [`Strategy::Auto`] alone
    /// writes, `paced` or `weights in parts`.
    pub by: &'static str,
    /// For [`Strategy::Auto`], the period of the best list of its own; none if no such list fits.
    pub own_ns: Option<u64>,
    /// For [`Strategy::Auto`], a period that no plan of another strategy beats in the given order, unless
    /// fixed objects make it shorter.
    pub others_ns: u64,
    /// For [`Strategy::Auto`] that chooses ops for the host, what its plans with none of them there, and
    /// with all of them, take at least, as a rule; unless fixed objects make them shorter.
    pub ends_ns: [u64; 2],
}

impl<'o> Made<'o> {
    /// A plan that was compared with no other.
    const fn of(plan: Plan<'o>, by: &'static str) -> Self {
        Self { plan, by, own_ns: None, others_ns: 0, ends_ns: UNKNOWN }
    }

    /// How far the buffers hold the plan, and what made it.
    const fn written(&self) -> (Written, &'static str) {
        (Written::of(&self.plan), self.by)
    }

    /// The same without the plan, which the buffers hold.
    pub(super) const fn kept(&self) -> Kept {
        let Self { ref plan, by, own_ns, others_ns, ends_ns } = *self;
        Kept { written: Written::of(plan), by, own_ns, others_ns, ends_ns }
    }
}

/// A [`Made`] plan that the buffers hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept {
    written: Written,
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
/// Those of [`make`].
pub fn plan<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Plan<'o>, PlanningError> {
    make(request, strategy, output, scratch).map(|made| made.plan)
}

/// Plans, and says what made the plan. The same input gives the same plan.
///
/// # Errors
/// An infeasible budget, with the smallest feasible one; buffers or scratch that are too small.
pub fn make<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Made<'o>, PlanningError> {
    hosting::make(request, strategy, output, scratch)
}

/// Plans with some of the ops on the host.
pub(super) fn make_with<'o>(
    request: &Request<'_>,
    hosted: Option<&Hosted<'_>>,
    strategy: Strategy,
    mut output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Made<'o>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let given = Sequence::as_given(request.graph, hosted, &mut scratch)?;
    strategy.rule().check(&given, &mut scratch)?;
    let task = |sequence| Task::new(request, sequence);
    if given.len() == 0 {
        return plan_task(&task(&given), Entrant::Of(strategy), output, &mut scratch);
    }
    let is_free = matches!(strategy, Strategy::Auto(Auto { order: Order::Free, .. }))
        && !strategy.takes_first();
    let orders = match is_free {
        true => best_orders(request, &given, &mut output, &mut scratch)?,
        false => Orders::given(),
    };
    if strategy.rule().has_segments() {
        return plan_segments(&task(&given), (strategy, u64::MAX), output, &mut scratch);
    }
    let (order, sampled_ns) = (orders.best(), orders.sampled_ns());
    let best = order.unwrap_or(&given);
    let lists = strategy.lists_with_repeats(request.graph);
    let repeated = match lists {
        0 => None,
        _ => {
            let (graph, budget_bytes) = (request.graph, request.budget_bytes);
            let joins = match is_free {
                true => Some(order::in_batches(graph, budget_bytes, &mut scratch)?),
                false => None,
            };
            repeats::search::best(
                (orders.each(&given).map(|order| order.map(task)), joins.into_iter().flatten()),
                lists,
                &mut output,
                &mut scratch,
            )?
        }
    };
    let repeated_ns = repeated.as_ref().map_or(u64::MAX, |(_, sampled)| sampled.period_ns);
    // If no list has fitted so far, segments may keep the values that updates read.
    let fitted_ns = match strategy {
        Strategy::Auto(Auto { order: Order::Free, .. }) => sampled_ns,
        _ => repeated_ns,
    };
    let staying = if fitted_ns == u64::MAX { Staying::Needed } else { Staying::Crossing };
    let segments = match lists {
        0 => None,
        _ if strategy.takes_first() => None,
        _ => repeats::search::best_of_segments(
            // Where memory is so short that no list has fitted, another order may do better.
            &task(if staying == Staying::Needed { &given } else { best }),
            Segments {
                than_ns: if lists > 1 { repeated_ns } else { 0 },
                staying,
                order: if is_free { Order::Free } else { Order::Given },
            },
            lists,
            &mut output,
            &mut scratch,
        )?,
    };
    let segments_ns = match lists {
        0 => u64::MAX,
        _ if strategy.takes_first() => u64::MAX,
        _ => repeats::search::least_of_segments(&task(&given), &mut output, &mut scratch)?,
    };
    let found = [&segments, &repeated];
    let mut contest = Contest::new(output);
    let half = strategy.shared(request.graph.ops().len());
    let rival = orders.rival().map(task);
    let (given, best) = (task(&given), task(best));
    let orders = [Some(&given), rival.as_ref()];
    let compares = matches!(strategy, Strategy::Auto(_)) && !strategy.takes_first();
    // What was sampled will be planned, as a rule, so that longer plans need not be.
    let found_ns = found.into_iter().flatten().map(|(_, sampled)| sampled.period_ns);
    let below_ns = found_ns.fold(sampled_ns, u64::min);
    if compares {
        contest.enter_others(orders, below_ns, &mut scratch)?;
    }
    let strategy = order.and(half).unwrap_or(strategy);
    let in_given = if order.is_some() { half } else { None };
    let once = [in_given.map(|half| (&given, half)), Some((&best, strategy))];
    let once_ns = match (compares && below_ns < sampled_ns, hosted) {
        (false, _) => 0,
        (true, None) => bounds::period_ns(
            request.graph,
            request.machine,
            request.budget_bytes,
            bounds::BoundOrder::Any,
            &mut scratch,
        )?,
        (true, Some(_)) => sampled_ns - sampled_ns / GAIN,
    };
    // If plans with each op once are longer, they need not be made.
    let makes_once = once_ns < below_ns;
    if makes_once {
        contest.enter_each(once, &mut scratch)?;
    }
    if strategy.takes_first() && contest.best.is_none() {
        contest.enter(&best, Entrant::Of(Strategy::OnDemand), &mut scratch)?;
    }
    for (repeated, sampled) in found.into_iter().flatten() {
        if contest.may_lose_to(sampled) {
            let entrant = Entrant::Of(half.unwrap_or(strategy));
            contest.enter(&task(repeated), entrant, &mut scratch)?;
        }
    }
    if !makes_once && contest.best.is_none_or(|best| once_ns < best.period_ns) {
        contest.enter_each(once, &mut scratch)?;
    }
    if compares && contest.best.is_some_and(|best| best.period_ns > below_ns) {
        contest.enter_others(orders, u64::MAX, &mut scratch)?;
    }
    let Contest { own_ns, others_ns, .. } = contest;
    let better = contest.beaten_by_segments(&given, segments_ns, u64::MAX, &mut scratch)?;
    let made = contest.winner((&given, better), &mut scratch)?;
    Ok(Made { own_ns, others_ns: others_ns.min(segments_ns), ..made })
}

/// Compares the strategies that run nothing on the host, but for `auto`, and plans by the best one. Returns
/// none if no plan takes less than `below_ns`. Ops run again only if `strategy` allows it.
pub(super) fn make_other<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    below_ns: u64,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Made<'o>>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let given = Sequence::as_given(request.graph, None, &mut scratch)?;
    let given = Task::new(request, &given);
    let mut contest = Contest::new(output);
    contest.enter_others([Some(&given), None], below_ns, &mut scratch)?;
    let launches_ns = if strategy.lists_with_repeats(request.graph) == 0 { u64::MAX } else { 0 };
    let better = contest.beaten_by_segments(&given, launches_ns, below_ns, &mut scratch)?;
    match (better, contest.best) {
        (None, None) => Ok(None),
        _ => contest.winner((&given, better), &mut scratch).map(Some),
    }
}

/// The best orders of the ops.
fn best_orders<'s>(
    request: &Request<'_>,
    given: &Sequence<'s>,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'s>,
) -> Result<Orders<'s>, PlanningError> {
    let mut best = |request: &Request<'_>, scratch: &mut Scratch<'s>| {
        order::best(given, request.budget_bytes, scratch, |sequence, scratch| {
            sample(&Task::new(request, sequence), SAMPLE, output.reborrow(), scratch)
        })
    };
    let found = best(request, scratch)?;
    if found.sampled_ns() < u64::MAX {
        return Ok(found);
    }
    // Lists that tell orders apart need not fit the host.
    let machine = &request.machine.with_host_bytes(u64::MAX);
    Ok(best(&Request { machine, ..*request }, scratch)?.without_a_list())
}

/// Plans by a strategy other than [`Strategy::Auto`]. Only plans that take less than `below_ns` are of
/// use; returns none if there is no such plan. Lists that are seen to take longer are not judged.
///
/// # Errors
/// Those of [`make`], but for an infeasible budget.
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

/// The same in the order of the task, for a strategy that chooses no ops for the host.
pub(super) fn plan_task_below<'o>(
    task: &Task<'_>,
    strategy: Strategy,
    below_ns: u64,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Made<'o>>, PlanningError> {
    // If the host runs everything, there is nothing to choose.
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

/// Plans with each number of segments whose launches take less than `below_ns`, and keeps the best
/// plan.
fn plan_segments<'o>(
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
    let mut look = |sequence: &Sequence<'_>, scratch: &mut Scratch<'_>| {
        let task = Task { sequence, ..*task };
        // One that takes as long may be better otherwise.
        let best_ns = best.map_or(u64::MAX, |((period_ns, _), _)| period_ns.saturating_add(1));
        let below_ns = below_ns.min(best_ns);
        let planned = match (sequence.compute_ns() < below_ns, below_ns) {
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
            Err(error) if error.is_of_one_list() => shortage = Some(error.less(shortage)),
            Err(error) => return Err(error),
        }
        tried += 1;
        Ok(())
    };
    look(task.sequence, &mut scratch)?;
    checkpoint::each(task, &memory, Staying::Crossing, &mut scratch, look)?;
    let Some((_, best)) = best else {
        return Err(shortage.unwrap_or(PlanningError::Stuck));
    };
    let (mut tried, mut written) = (0, None);
    let mut write = |sequence: &Sequence<'_>, scratch: &mut Scratch<'_>| {
        if tried == best {
            let task = Task { sequence, ..*task };
            let made = plan_task(&task, entrant, output.reborrow(), scratch)?;
            written = Some(Written::of(&made.plan));
        }
        tried += 1;
        Ok(())
    };
    write(task.sequence, &mut scratch)?;
    checkpoint::each(task, &memory, Staying::Crossing, &mut scratch, write)?;
    let plan = written.map(|written| output.written(written)).ok_or(PlanningError::Stuck)?;
    Ok(Made::of(plan, strategy.name()))
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
    checkpoint::each(task, &memory, Staying::Crossing, &mut scratch, |sequence, scratch| {
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
    /// The best plan.
    best: Option<Leading<'t>>,
    /// The plan that was written last, if that is the best.
    written: Option<Written>,
    /// What the first one that there is no plan of needs more of.
    shortage: Option<PlanningError>,
    /// The least period of the lists of `auto` itself.
    own_ns: Option<u64>,
    /// A period that no other strategy beats in the given order.
    others_ns: u64,
}

/// The best plan so far: its period, what made it, and what it is a plan of.
#[derive(Clone, Copy)]
struct Leading<'t> {
    period_ns: u64,
    by: &'static str,
    task: Task<'t>,
    entrant: Entrant,
}

impl<'o, 't> Contest<'o, 't> {
    const fn new(output: Output<'o>) -> Self {
        Self { output, best: None, written: None, shortage: None, own_ns: None, others_ns: 0 }
    }

    /// Enters all other strategies, as far as they may take less than `below_ns`, in the given order
    /// and in another one.
    fn enter_others(
        &mut self,
        [given, other]: [Option<&Task<'t>>; 2],
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        if let Some(given) = given {
            self.others_ns = self.enter_others_in(given, below_ns, scratch)?;
        }
        if let Some(other) = other {
            self.enter_others_in(other, below_ns, scratch)?;
        }
        Ok(())
    }

    /// The same in one order; returns a period that none of them beats.
    fn enter_others_in(
        &mut self,
        task: &Task<'t>,
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, PlanningError> {
        let Task { sequence, machine, budget_bytes } = *task;
        let graph = sequence.graph();
        // The others launch each op once.
        let bound_ns =
            bounds::period_ns(graph, machine, budget_bytes, bounds::BoundOrder::Any, scratch)?;
        let least_ns = bound_ns.max(sequence.compute_ns());
        let mut others_ns = u64::MAX;
        for entrant in Entrant::others() {
            let below_ns = self.best.map_or(below_ns, |best| best.period_ns.min(below_ns));
            if least_ns >= below_ns {
                return Ok(least_ns.min(others_ns));
            }
            match entrant.check(task.sequence, scratch) {
                Err(PlanningError::NoChain { .. }) => continue,
                checked => checked?,
            }
            let (output, seen_ns) = (self.output.reborrow(), &mut others_ns);
            let plan = plan_seen(task, entrant, (below_ns, seen_ns), output, scratch);
            self.written = None;
            match plan.map(|made| made.map(|made| made.written())) {
                Ok(Some(written)) => self.offer(written, task, entrant),
                Err(error) if !error.is_of_one_list() => return Err(error),
                _ => {}
            }
        }
        Ok(others_ns)
    }

    /// Plans, and keeps the plan if it is better than those before, or as good where it runs each
    /// op once.
    fn enter(
        &mut self,
        task: &Task<'t>,
        entrant: Entrant,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        self.written = None;
        let (written, by) = match plan_task(task, entrant, self.output.reborrow(), scratch) {
            Err(error) if error.is_of_one_list() => {
                self.shortage = self.shortage.or(Some(error));
                return Ok(());
            }
            made => made?.written(),
        };
        if entrant.is_auto() {
            let period_ns = written.predicted().period_ns;
            self.own_ns = Some(self.own_ns.map_or(period_ns, |own_ns| own_ns.min(period_ns)));
        }
        self.offer((written, by), task, entrant);
        Ok(())
    }

    /// The same for several strategies.
    fn enter_each(
        &mut self,
        entrants: [Option<(&Task<'t>, Strategy)>; 2],
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        for (task, strategy) in entrants.into_iter().flatten() {
            self.enter(task, Entrant::Of(strategy), scratch)?;
        }
        Ok(())
    }

    /// Keeps a plan that was written last, if it is better.
    fn offer(&mut self, (written, by): (Written, &'static str), task: &Task<'t>, entrant: Entrant) {
        let Prediction { period_ns, repeat_ns, .. } = written.predicted();
        let is_better = self.best.is_none_or(|best| {
            period_ns < best.period_ns || (period_ns == best.period_ns && repeat_ns == 0)
        });
        if is_better {
            self.best = Some(Leading { period_ns, by, task: *task, entrant });
            self.written = Some(written);
        }
    }

    /// Whether a plan that a sample of is known could be better than the best so far: more lists
    /// may gain a little.
    fn may_lose_to(&self, sampled: &Prediction) -> bool {
        let least_ns = sampled.period_ns - sampled.period_ns / GAIN;
        self.best.is_none_or(|best| least_ns < best.period_ns)
    }

    /// The strategy of checkpointing that has a better plan, if one has. Few works come so far
    /// that it has to be planned: no plan takes less than its launches. If there is no plan yet,
    /// only one that takes less than `below_ns` is better.
    fn beaten_by_segments(
        &mut self,
        task: &Task<'_>,
        launches_ns: u64,
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Strategy>, PlanningError> {
        let mut least_ns = self.best.map_or(below_ns, |best| best.period_ns);
        let mut better = None;
        for strategy in [Strategy::Checkpoint, Strategy::CheckpointOffload] {
            if launches_ns >= least_ns {
                break;
            }
            self.written = None;
            match plan_segments(task, (strategy, least_ns), self.output.reborrow(), scratch) {
                Ok(made) if made.plan.predicted.period_ns < least_ns => {
                    (least_ns, better) = (made.plan.predicted.period_ns, Some(strategy));
                }
                Err(PlanningError::Stuck) => {}
                Err(error) if !error.is_of_one_list() => return Err(error),
                _ => {}
            }
        }
        Ok(better)
    }

    /// The plan of the better strategy of checkpointing, if there is one; else the best plan that was
    /// entered, written once more if another came after it.
    fn winner(
        self,
        (given, better): (&Task<'_>, Option<Strategy>),
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        if let Some(segments) = better {
            return plan_segments(given, (segments, u64::MAX), self.output, scratch);
        }
        match (self.written, self.best, self.shortage) {
            (Some(written), Some(Leading { by, .. }), _) => {
                Ok(Made::of(self.output.written(written), by))
            }
            (_, Some(Leading { task, entrant, .. }), _) => {
                plan_task(&task, entrant, self.output, scratch)
            }
            (_, None, Some(error)) => Err(error),
            (_, None, None) => Err(PlanError::TooManySteps.into()),
        }
    }
}

/// What the best of a sample of lists comes to; none where none of them fits.
pub(super) fn sample(
    task: &Task<'_>,
    lists: Sample,
    output: Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Prediction>, PlanningError> {
    let mut scratch = scratch.reborrow();
    let Output { steps, resident, arena, pools, tensor_pool } = output;
    let mut trials = Trials::new(task, steps, resident, PoolTables { pools, tensor_pool });
    let memory = Memory::new(task, Need::LargestOp, arena, &mut scratch)?;
    let uses = Uses::new(task.sequence, &mut scratch)?;
    let basis = Basis { memory: &memory, uses: &uses, arena: &arena[..memory.placed] };
    trials.sample(lists, &basis, &mut scratch)
}

/// The period of the best of some lists of [`Strategy::Auto`] with the ops in one order, or with repeats; none
/// if no such list fits.
pub(super) fn tell(
    task: &Task<'_>,
    auto: Auto,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<u64>, PlanningError> {
    // If the host runs everything, there is nothing to choose.
    let is_idle = task.sequence.len() == 0;
    let strategy = if is_idle { Strategy::InCore } else { Strategy::Auto(auto) };
    let entrant = Entrant::Of(strategy);
    let once = plan_below(task, entrant, u64::MAX, output.reborrow(), scratch)?;
    let once_ns = once.map(|made| made.plan.predicted.period_ns);
    let lists = strategy.lists_with_repeats(task.sequence.graph());
    if lists == 0 {
        return Ok(once_ns);
    }
    let mut scratch = scratch.reborrow();
    let repeated =
        repeats::search::best(([Some(*task), None], iter::empty()), lists, output, &mut scratch)?;
    let repeated_ns = repeated.map(|(_, sampled)| sampled.period_ns);
    Ok(once_ns.into_iter().chain(repeated_ns).min())
}

/// Plans with the ops in one order.
pub(super) fn plan_task<'o>(
    task: &Task<'_>,
    entrant: Entrant,
    mut output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Made<'o>, PlanningError> {
    // If the host runs everything, there is nothing to choose.
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

/// The same if only plans that take less than `below_ns` are of use; returns none if no list fits
/// the budget or takes less.
fn plan_below<'o>(
    task: &Task<'_>,
    entrant: Entrant,
    below_ns: u64,
    output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Made<'o>>, PlanningError> {
    plan_seen(task, entrant, (below_ns, &mut 0), output, scratch)
}

/// The same; also lowers a period to what no list of the rules beats.
fn plan_seen<'o>(
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
    let basis = Basis { memory: &memory, uses: &uses, arena: &arena[..memory.placed] };
    let best = trials.best(&entrant, &basis, &mut search, &mut scratch)?;
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
    let divided = match entrant.is_of_auto() && !entrant.takes_first() {
        true => {
            let trials = &mut trials;
            let mut divider =
                Divider { trials, entrant: &entrant, uses: &uses, search: &mut search, arena };
            divider.divide(Divided { best, memory }, &mut scratch)?
        }
        false => Divided { best, memory },
    };
    let Divided { best, memory } = divided;
    let Trials { steps, resident, tables, .. } = trials;
    let Candidate { lengths, predicted, .. } = best;
    let lists = Lists { steps: &steps[..lengths.steps], resident: &resident[..lengths.resident] };
    let plan = memory.plan(task, &arena[..memory.placed], lists, tables)?;
    let host = HostLayout::new(task.sequence.graph(), task.machine, &plan, &mut scratch)?;
    let predicted = Prediction { host_bytes: host.moved_bytes(), ..predicted };
    Ok(Some(Made::of(Plan { predicted, ..plan }, best.made_by())))
}
