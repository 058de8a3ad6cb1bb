//! Compares plans of one request: in several orders, with and without repeats, and by several
//! strategies.

use super::auto::{self, Made};
use super::best_plan::{BestPlan, least_ns};
use super::checkpoint::{self, AfterLoss};
use super::error::PlanningError;
use super::helper::Helper;
use super::order::{self, Join, Orders};
use super::recipe::Order;
use super::repeats;
use super::repeats::rounds::Found;
use super::repeats::search::{Best, Starts};
use super::repeats::segments::{self, Segments};
use super::request::{Output, Request, Task};
use super::strategy::Strategy;
use crate::plan::PlanError;
use crate::scratch::Scratch;
use crate::sequence::Sequence;
use core::cmp::Reverse;
use core::{iter, ptr};

/// From this many ops on, a sample tells whether plans without repeats may be the shortest. In smaller works,
/// samples err by more than [`least_ns`] allows for, and plans take little time.
const SAMPLED_OPS: usize = 128;

/// The plans to compare.
pub(super) struct Comparison<'c> {
    pub(super) request: &'c Request<'c>,
    pub(super) given: &'c Sequence<'c>,
    pub(super) orders: &'c Orders<'c>,
    pub(super) strategy: Strategy,
    /// Whether other strategies' plans are among them.
    pub(super) compares: bool,
}

/// Sequences with repeats that the search has found.
pub(super) struct Repeated<'s> {
    /// The best sequences: one from the segments of checkpointing, and three from sequences without
    /// repeats.
    found: [Option<Found<'s>>; 4],
    /// The least time of the launches in segments; `u64::MAX` if segments are not tried.
    segments_ns: u64,
    /// The least host memory that a tried sequence lacks, as in [`Best`].
    lacks_bytes: u64,
}

impl<'s> Repeated<'s> {
    const NONE: Self =
        Self { found: [const { None }; 4], segments_ns: u64::MAX, lacks_bytes: u64::MAX };

    /// All sequences. The sequence with the shortest sampled plan comes last, since the plan that is
    /// written last need not be written again if it is the best.
    fn by_period(&self) -> [Option<&Found<'s>>; 4] {
        let mut found = self.found.each_ref().map(Option::as_ref);
        found.sort_unstable_by_key(|found| {
            Reverse(found.map_or(u64::MAX, |&(_, period_ns)| period_ns))
        });
        found
    }

    /// The error to report if there is no plan: this error, or the host memory that a tried sequence needs
    /// if that is [less](PlanningError::with_least_need).
    fn error(&self, error: PlanningError, host_bytes: u64) -> PlanningError {
        match self.lacks_bytes {
            0 | u64::MAX => error,
            lacks_bytes => {
                let needed_bytes = host_bytes.saturating_add(lacks_bytes);
                let of_host = PlanError::HostMemory { needed_bytes, host_bytes };
                error.with_least_need(Some(of_host.into()))
            }
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
        let Self { request, given, orders, strategy, compares, .. } = *self;
        let lists = strategy.lists_with_repeats(request.graph);
        if lists == 0 {
            return Ok(Repeated::NONE);
        }
        let starts = self.starts(scratch)?;
        let is_free = strategy.orders_freely();
        let is_short = is_free && orders.sampled_ns() == u64::MAX;
        let tries_segments = !strategy.stops_at_first() && (lists > 1 || is_short);
        let segments_of = |order| {
            tries_segments.then(|| Segments {
                task: Task::new(request, order),
                is_short,
                order: if is_free { Order::Free } else { Order::Given },
                after_loss: AfterLoss::Dropped,
            })
        };
        let best = self.best_order();
        // If memory is so short that no list has fitted, another order may be better.
        let [first, second] = if is_short { [given, best] } else { [best, given] };
        let segments = segments_of(first);
        let mut found =
            repeats::search::best(starts, segments, lists, output, helper.as_deref_mut(), scratch)?;
        // Lists without repeats tell which order is best. If no list with repeats fits in that
        // order, a list may fit in the given order, or from segments in the other order.
        if found.once.is_none() && !ptr::eq(best, given) {
            let alone = ([Some(Task::new(request, given)), None], iter::empty());
            let segments = segments_of(second);
            let lacks_bytes = found.lacks_bytes;
            found = repeats::search::best(alone, segments, lists, output, helper, scratch)?;
            found.lacks_bytes = found.lacks_bytes.min(lacks_bytes);
        }
        let Best { once, spread, kept, segments, lacks_bytes } = found;
        let segments_ns = if compares {
            segments::least_of_segments(&Task::new(request, given), output, scratch)?
        } else {
            u64::MAX
        };
        Ok(Repeated { found: [segments, kept, spread, once], segments_ns, lacks_bytes })
    }

    /// The orders of the launches to which repeats may be added.
    fn starts(
        &self,
        scratch: &mut Scratch<'_>,
    ) -> Result<Starts<'c, impl Iterator<Item = Join> + Clone + Sync + use<>>, PlanningError> {
        let Self { request, given, orders, strategy, .. } = *self;
        let joins = match strategy.orders_freely() {
            true => {
                let layer_bytes = checkpoint::layer_bytes(&Task::new(request, given), scratch)?;
                let budget_bytes = request.budget_bytes;
                Some(order::with_repeats(request.graph, budget_bytes, layer_bytes, scratch)?)
            }
            false => None,
        };
        let tasks = orders.each(given).map(|order| order.map(|order| Task::new(request, order)));
        Ok((tasks, joins.into_iter().flatten()))
    }

    /// The period of the best of a few lists, with and without repeats; `None` if no list fits.
    pub(super) fn trial_ns(
        &self,
        output: &mut Output<'_>,
        helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<u64>, PlanningError> {
        let best = Task::new(self.request, self.best_order());
        let starts = self.starts(scratch)?;
        auto::trial_of_starts_ns(&best, self.strategy, starts, output, helper, scratch)
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
        let Self { request, orders, strategy, compares, .. } = *self;
        let (given, best) = (Task::new(request, self.given), Task::new(request, self.best_order()));
        let rival = orders.rival().map(|order| Task::new(request, order));
        let both_orders = (&given, rival.as_ref());
        let found = repeated.by_period();
        let [.., best_found] = found;
        let found_ns = best_found.map_or(u64::MAX, |&(_, period_ns)| period_ns);
        // A sampled list will usually be planned, so longer plans are of no use.
        let below_ns = orders.sampled_ns().min(found_ns);
        let mut plans = BestPlan::new(output);
        if compares {
            plans.try_others(both_orders, below_ns, helper.as_deref_mut(), scratch)?;
        }
        // Two orders share the lists, if there are enough of them.
        let ops = request.graph.ops().len();
        let (half, of_found) = (strategy.shared(ops), strategy.of_found(ops));
        let (strategy, in_given) = match orders.best() {
            Some(_) => (half.unwrap_or(strategy), half),
            None => (strategy, None),
        };
        let once = [in_given.map(|half| (given, half)), Some((best, strategy))];
        let once_ns = self.least_once_ns(below_ns);
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
            may_be_best.then(|| (Task::new(request, sequence), of_found))
        });
        let [fourth, third, second, first] = found;
        plans.try_each([fourth, third], helper.as_deref_mut(), scratch)?;
        plans.try_each([second, first], helper.as_deref_mut(), scratch)?;
        if !makes_once && plans.best.is_none_or(|best| once_ns < best.period_ns) {
            plans.try_each(once, helper.as_deref_mut(), scratch)?;
        }
        if compares && plans.best.is_some_and(|best| best.period_ns > below_ns) {
            plans.try_others(both_orders, u64::MAX, helper.as_deref_mut(), scratch)?;
        }
        let BestPlan { own_ns, others_ns, .. } = plans;
        let segments_ns = repeated.segments_ns;
        let better = plans.best_of_segments(&given, segments_ns, u64::MAX, helper, scratch)?;
        let made = plans.finish((&given, better), scratch);
        let made = made.map_err(|error| repeated.error(error, request.machine.host_bytes))?;
        Ok(Made { own_ns, others_ns: others_ns.min(segments_ns), ..made })
    }

    /// A usual lower bound of the periods of plans without repeats; 0 if the work is small, or if no sampled
    /// list with repeats is shorter than the lists without repeats.
    fn least_once_ns(&self, below_ns: u64) -> u64 {
        let Self { request, orders, compares, .. } = *self;
        let sampled_ns = orders.sampled_ns();
        let is_known = compares && request.graph.ops().len() >= SAMPLED_OPS;
        if is_known && below_ns < sampled_ns { least_ns(sampled_ns) } else { 0 }
    }
}
