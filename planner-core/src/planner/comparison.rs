//! Compares plans of one request: in several orders, with and without repeats, and by several
//! strategies.

use super::auto::{GAIN, Made, plan_seen, plan_segments, plan_task};
use super::checkpoint::Staying;
use super::error::PlanningError;
use super::helper::{Helper, both};
use super::order::{self, Orders};
use super::recipe::{Auto, Entrant, Order};
use super::repeats;
use super::repeats::search::Segments;
use super::request::{Output, Request, Task, Written};
use super::strategy::Strategy;
use crate::bounds;
use crate::plan::{PlanError, Prediction};
use crate::scratch::Scratch;
use crate::sequence::Sequence;
use core::{iter, ptr};

/// The plans to compare.
pub(super) struct Comparison<'c> {
    pub(super) request: &'c Request<'c>,
    pub(super) given: &'c Sequence<'c>,
    pub(super) orders: &'c Orders<'c>,
    pub(super) strategy: Strategy,
    /// Whether the ops may run in another order than the given one.
    pub(super) is_free: bool,
    pub(super) runs_on_host: bool,
}

/// Sequences with repeats, each with the period of its sampled plan.
pub(super) struct Repeated<'s> {
    /// The best one that the search finds from sequences without repeats.
    once: Option<(Sequence<'s>, u64)>,
    /// The best one that the search finds from the segments of checkpointing.
    segments: Option<(Sequence<'s>, u64)>,
    /// The least time of the launches in segments; `u64::MAX` if segments are not tried.
    segments_ns: u64,
}

impl<'s> Repeated<'s> {
    const NONE: Self = Self { once: None, segments: None, segments_ns: u64::MAX };

    /// Both, the one with the shorter sampled plan last: the plan that is written last need not be
    /// written again if it is the best.
    fn by_period(&self) -> [Option<&(Sequence<'s>, u64)>; 2] {
        let Self { once, segments, .. } = self;
        let period_ns = |found: &Option<(_, u64)>| found.as_ref().map_or(u64::MAX, |&(_, ns)| ns);
        match period_ns(once) <= period_ns(segments) {
            true => [segments.as_ref(), once.as_ref()],
            false => [once.as_ref(), segments.as_ref()],
        }
    }
}

impl<'c> Comparison<'c> {
    /// Searches for the best sequences with repeats, if the strategy allows repeats.
    pub(super) fn find_repeats(
        &self,
        output: &mut Output<'_>,
        mut helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'c>,
    ) -> Result<Repeated<'c>, PlanningError> {
        let Self { request, given, orders, strategy, is_free, .. } = *self;
        let lists = strategy.lists_with_repeats(request.graph);
        if lists == 0 {
            return Ok(Repeated::NONE);
        }
        let joins = match is_free {
            true => Some(order::in_batches(request.graph, request.budget_bytes, scratch)?),
            false => None,
        };
        let tasks = orders.each(given).map(|order| order.map(|order| Task::new(request, order)));
        let starts = (tasks, joins.into_iter().flatten());
        let mut once =
            repeats::search::best(starts, lists, output, helper.as_deref_mut(), scratch)?;
        // Lists without repeats tell which order is best. If no list with repeats fits in that
        // order, a list may fit in the given order.
        let mut order = self.best_order();
        if once.is_none() && !ptr::eq(order, given) {
            let alone = ([Some(Task::new(request, given)), None], iter::empty());
            once = repeats::search::best(alone, lists, output, helper, scratch)?;
            order = if once.is_some() { given } else { order };
        }
        if strategy.stops_at_first() {
            return Ok(Repeated { once, ..Repeated::NONE });
        }
        let once_ns = once.as_ref().map_or(u64::MAX, |&(_, period_ns)| period_ns);
        // If no list has fitted so far, segments may keep the values that updates read.
        let fitted_ns = match strategy {
            Strategy::Auto(Auto { order: Order::Free, .. }) => orders.sampled_ns(),
            _ => once_ns,
        };
        let staying = if fitted_ns == u64::MAX { Staying::Needed } else { Staying::Crossing };
        // If memory is so short that no list has fitted, another order may be better.
        let order = if staying == Staying::Needed { given } else { order };
        let segments = Segments {
            than_ns: if lists > 1 { once_ns } else { 0 },
            staying,
            order: if is_free { Order::Free } else { Order::Given },
        };
        let task = Task::new(request, order);
        let segments = repeats::search::best_of_segments(&task, segments, lists, output, scratch)?;
        let given = Task::new(request, given);
        let segments_ns = repeats::search::least_of_segments(&given, output, scratch)?;
        Ok(Repeated { once, segments, segments_ns })
    }

    fn best_order(&self) -> &'c Sequence<'c> {
        self.orders.best().unwrap_or(self.given)
    }

    /// Plans in all ways that may be best, and keeps the best plan.
    pub(super) fn plan<'o>(
        &self,
        repeated: &Repeated<'_>,
        output: Output<'o>,
        mut helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        let Self { request, orders, strategy, .. } = *self;
        let (given, best) = (Task::new(request, self.given), Task::new(request, self.best_order()));
        let rival = orders.rival().map(|order| Task::new(request, order));
        let both_orders = [Some(&given), rival.as_ref()];
        let compares = matches!(strategy, Strategy::Auto(_)) && !strategy.stops_at_first();
        let found = repeated.by_period();
        let found_ns = found[1].map_or(u64::MAX, |&(_, period_ns)| period_ns);
        // A sampled list will usually be planned, so longer plans are of no use.
        let below_ns = orders.sampled_ns().min(found_ns);
        let mut plans = BestPlan::new(output);
        if compares {
            plans.try_others(both_orders, below_ns, scratch)?;
        }
        // Two orders share the lists, if there are enough of them.
        let half = strategy.shared(request.graph.ops().len());
        let (strategy, in_given) = match orders.best() {
            Some(_) => (half.unwrap_or(strategy), half),
            None => (strategy, None),
        };
        let once = [in_given.map(|half| (given, half)), Some((best, strategy))];
        let once_ns = if compares { self.least_once_ns(below_ns, scratch)? } else { 0 };
        // If plans without repeats are longer, they need not be made.
        let makes_once = once_ns < below_ns;
        if makes_once {
            plans.try_each(once, helper.as_deref_mut(), scratch)?;
        }
        if strategy.stops_at_first() && plans.best.is_none() {
            plans.try_each([None, Some((best, Strategy::OnDemand))], None, scratch)?;
        }
        let found = found.map(|found| {
            let &(ref sequence, sampled_ns) = found?;
            let may_be_best =
                least_ns(sampled_ns) <= found_ns && plans.may_be_beaten_by(sampled_ns);
            may_be_best.then(|| (Task::new(request, sequence), half.unwrap_or(strategy)))
        });
        plans.try_each(found, helper.as_deref_mut(), scratch)?;
        if !makes_once && plans.best.is_none_or(|best| once_ns < best.period_ns) {
            plans.try_each(once, helper, scratch)?;
        }
        if compares && plans.best.is_some_and(|best| best.period_ns > below_ns) {
            plans.try_others(both_orders, u64::MAX, scratch)?;
        }
        let BestPlan { own_ns, others_ns, .. } = plans;
        let segments_ns = repeated.segments_ns;
        let better = plans.best_of_segments(&given, segments_ns, u64::MAX, scratch)?;
        let made = plans.finish((&given, better), scratch)?;
        Ok(Made { own_ns, others_ns: others_ns.min(segments_ns), ..made })
    }

    /// A lower bound of the periods of plans without repeats; 0 if no sampled list with repeats is
    /// shorter than the lists without repeats.
    fn least_once_ns(
        &self,
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, PlanningError> {
        let sampled_ns = self.orders.sampled_ns();
        if below_ns >= sampled_ns {
            return Ok(0);
        }
        if self.runs_on_host {
            return Ok(least_ns(sampled_ns));
        }
        let Request { graph, machine, budget_bytes } = *self.request;
        Ok(bounds::period_ns(graph, machine, budget_bytes, bounds::BoundOrder::Any, scratch)?)
    }
}

/// The usual least period of all lists of a sequence with this sampled period.
const fn least_ns(sampled_ns: u64) -> u64 {
    sampled_ns - sampled_ns / GAIN
}

/// The best plan so far, and the figures of all plans that were tried.
pub(super) struct BestPlan<'o, 't> {
    output: Output<'o>,
    /// The best plan.
    pub(super) best: Option<Incumbent<'t>>,
    /// The plan that was written last, if it is the best one.
    written: Option<Written>,
    /// The error of the first attempt without a plan.
    shortage: Option<PlanningError>,
    /// The least period of the lists that only `auto` writes.
    own_ns: Option<u64>,
    /// A lower bound of the periods of other strategies in the given order.
    others_ns: u64,
}

/// The plan that an attempt has written, or the reason why there is none.
type Attempt = Result<(Written, &'static str), PlanningError>;

/// Plans by one strategy.
fn attempt(
    (task, strategy): (Task<'_>, Strategy),
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Attempt, PlanningError> {
    match plan_task(&task, Entrant::Of(strategy), output.reborrow(), scratch) {
        Err(error) if error.is_of_one_list() => Ok(Err(error)),
        made => Ok(Ok(made?.written())),
    }
}

/// The best plan so far: its period, its maker, and its task.
#[derive(Clone, Copy)]
pub(super) struct Incumbent<'t> {
    period_ns: u64,
    by: &'static str,
    task: Task<'t>,
    entrant: Entrant,
}

impl<'o, 't> BestPlan<'o, 't> {
    pub(super) const fn new(output: Output<'o>) -> Self {
        Self { output, best: None, written: None, shortage: None, own_ns: None, others_ns: 0 }
    }

    /// Tries all other strategies that may take less than `below_ns`, in the given order and in
    /// another one.
    pub(super) fn try_others(
        &mut self,
        [given, other]: [Option<&Task<'t>>; 2],
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        if let Some(given) = given {
            self.others_ns = self.try_others_in(given, below_ns, scratch)?;
        }
        if let Some(other) = other {
            self.try_others_in(other, below_ns, scratch)?;
        }
        Ok(())
    }

    /// Does the same in one order; returns a lower bound of their periods.
    fn try_others_in(
        &mut self,
        task: &Task<'t>,
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, PlanningError> {
        let Task { sequence, machine, budget_bytes } = *task;
        let graph = sequence.graph();
        // Other strategies launch each op once.
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
                Ok(Some(written)) => self.keep_if_better(written, task, entrant),
                Err(error) if !error.is_of_one_list() => return Err(error),
                _ => {}
            }
        }
        Ok(others_ns)
    }

    /// Plans in up to two ways, and keeps the better plan if it is better than the best one so far,
    /// or as good and without repeats. The plan of the second way need not be written again.
    fn try_each(
        &mut self,
        [one, other]: [Option<(Task<'t>, Strategy)>; 2],
        helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let (Some(one), Some(other), Some(helper)) = (one, other, helper) else {
            for way in [one, other].into_iter().flatten() {
                let attempt = attempt(way, &mut self.output, scratch)?;
                self.record(attempt, way);
            }
            return Ok(());
        };
        let (own, helpers) = both(
            Some(helper),
            &mut self.output,
            scratch,
            |output, scratch| attempt(other, output, scratch),
            |output, scratch| attempt(one, output, scratch),
        )?;
        self.record(helpers, one);
        let helpers = self.written;
        self.record(own, other);
        if let (Some(written), None) = (helpers, self.written) {
            self.output.copy(&helper.output, &written);
            self.written = Some(written);
        }
        Ok(())
    }

    /// Keeps an attempt's plan if it is better.
    fn record(&mut self, attempt: Attempt, (task, strategy): (Task<'t>, Strategy)) {
        let entrant = Entrant::Of(strategy);
        self.written = None;
        match attempt {
            Ok(made @ (written, _)) => {
                if entrant.is_auto() {
                    let period_ns = written.predicted().period_ns;
                    self.own_ns =
                        Some(self.own_ns.map_or(period_ns, |own_ns| own_ns.min(period_ns)));
                }
                self.keep_if_better(made, &task, entrant);
            }
            Err(error) => self.shortage = self.shortage.or(Some(error)),
        }
    }

    /// Keeps a plan that was written last, if it is better.
    fn keep_if_better(
        &mut self,
        (written, by): (Written, &'static str),
        task: &Task<'t>,
        entrant: Entrant,
    ) {
        let Prediction { period_ns, repeat_ns, .. } = written.predicted();
        let is_better = self.best.is_none_or(|best| {
            period_ns < best.period_ns || (period_ns == best.period_ns && repeat_ns == 0)
        });
        if is_better {
            self.best = Some(Incumbent { period_ns, by, task: *task, entrant });
            self.written = Some(written);
        }
    }

    /// Whether a plan with a known sample could be better than the best one: more lists may gain a
    /// little.
    fn may_be_beaten_by(&self, sampled_ns: u64) -> bool {
        self.best.is_none_or(|best| least_ns(sampled_ns) < best.period_ns)
    }

    /// The strategy of checkpointing with a better plan, if there is one. Few works need such a
    /// plan at all, since no plan takes less time than its launches. If there is no plan yet, a
    /// better plan must take less than `below_ns`.
    pub(super) fn best_of_segments(
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

    /// The plan of the better strategy of checkpointing, if there is one; otherwise the best plan
    /// so far, written again if another plan was written after it.
    pub(super) fn finish(
        self,
        (given, better): (&Task<'_>, Option<Strategy>),
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        if let Some(segments) = better {
            return plan_segments(given, (segments, u64::MAX), self.output, scratch);
        }
        match (self.written, self.best, self.shortage) {
            (Some(written), Some(Incumbent { by, .. }), _) => {
                Ok(Made::of(self.output.written(written), by))
            }
            (_, Some(Incumbent { task, entrant, .. }), _) => {
                plan_task(&task, entrant, self.output, scratch)
            }
            (_, None, Some(error)) => Err(error),
            (_, None, None) => Err(PlanError::TooManySteps.into()),
        }
    }
}
