//! Compares the plan of the best choice with plans by other strategies.

use super::choice::Choice;
use super::work::Work;
use crate::planner::auto::{self, Kept, Made};
use crate::planner::best_plan::bound_of_others_ns;
use crate::planner::error::PlanningError;
use crate::planner::helper::{Helper, both};
use crate::planner::request::Output;
use crate::planner::strategy::Strategy;
use crate::scratch::Scratch;

/// How a plan is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By the requested strategy, with a choice of ops for the host. If the choice has ops, other strategies'
    /// plans with these ops on the host are compared, too.
    Own(Choice),
    /// By a strategy that chooses ops for the host by its own rule.
    Baseline(Strategy),
    /// By the best of the strategies that run nothing on the host, with the orders and repeats that this
    /// strategy allows.
    OnDevice(Strategy),
}

/// The period of the plan that was made, and the plan if it was written; `None` if no plan takes less than
/// a bound.
type Attempt = Option<(u64, Option<Kept>)>;

impl Way {
    /// The strategies that choose ops for the host by their own rules.
    pub(super) const BASELINES: [Self; 2] =
        [Self::Baseline(Strategy::Split), Self::Baseline(Strategy::OptimizerOffload)];

    /// Plans in this way, for a strategy. Other strategies' plans are rarely the best, so they are written
    /// only if `writes`.
    fn make(
        self,
        (work, strategy): (&Work<'_>, Strategy),
        bound: (u64, bool),
        output: &mut Output<'_>,
        helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Attempt, PlanningError> {
        let output = output.reborrow();
        let made = match self {
            Self::Own(choice) => {
                let how = (choice, choice != Choice::NONE);
                let made = work.make(how, strategy, output, helper, scratch)?;
                Some((made.plan.predicted.period_ns, Some(made)))
            }
            Self::Baseline(baseline) => {
                let mut scratch = scratch.reborrow();
                let given = Work::as_given(work.request, &mut scratch)?;
                let how = (baseline, strategy.repeats());
                given.make_baseline(how, bound, output, &mut scratch)?
            }
            Self::OnDevice(allowed) => {
                auto::make_other(work.request, allowed, bound, output, scratch)?
            }
        };
        Ok(made.map(|(period_ns, made)| (period_ns, made.map(|made| made.kept()))))
    }
}

/// The best plan so far.
#[derive(Clone, Copy)]
struct Best {
    period_ns: u64,
    way: Way,
    /// The bound under which it was made; under another bound, another plan may be made.
    below_ns: u64,
}

/// The most ways of one thread.
const MOST_WAYS: usize = 5;

/// Ways to try in turn.
pub(super) type Ways = heapless::Vec<Way, MOST_WAYS>;

/// The best of the plans that were tried, and the figures of all of them.
struct Tally {
    best: Option<Best>,
    /// The plan that was written last, if it is the best one.
    written: Option<Kept>,
    shortage: Option<PlanningError>,
    /// A lower bound of the periods of each way's plans.
    least_ns: heapless::Vec<(Way, u64), { 2 * MOST_WAYS }>,
}

impl Tally {
    const EMPTY: Self =
        Self { best: None, written: None, shortage: None, least_ns: heapless::Vec::new() };

    /// Keeps the plan that was made in a way if it is the best.
    fn record(
        &mut self,
        made: Result<Attempt, PlanningError>,
        (way, below_ns): (Way, u64),
    ) -> Result<(), PlanningError> {
        self.written = None;
        let period_ns = match made {
            Ok(Some((period_ns, kept))) => {
                if self.best.is_none_or(|best| period_ns <= best.period_ns) {
                    self.best = Some(Best { period_ns, way, below_ns });
                    self.written = kept;
                }
                period_ns
            }
            Ok(None) => below_ns,
            Err(error) if error.is_of_one_list() => {
                self.shortage = Some(error.with_least_need(self.shortage));
                u64::MAX
            }
            Err(error) => return Err(error),
        };
        self.note(way, period_ns);
        Ok(())
    }

    /// Keeps a lower bound of the periods of a way's plans. It replaces an earlier one.
    fn note(&mut self, way: Way, least_ns: u64) {
        match self.least_ns.iter_mut().find(|(noted, _)| *noted == way) {
            Some((_, noted_ns)) => *noted_ns = least_ns,
            None => {
                let _is_full = self.least_ns.push((way, least_ns));
            }
        }
    }

    fn period_ns(&self) -> u64 {
        self.best.map_or(u64::MAX, |best| best.period_ns)
    }

    /// Whether the plan is better than the plan of a later tally. Of equally good plans, the later one
    /// is kept.
    fn is_better(&self, later: &Self) -> bool {
        self.period_ns() < later.period_ns()
    }

    /// Adds the tally of plans that were tried later.
    fn add(&mut self, later: &Self) {
        if !self.is_better(later) {
            (self.best, self.written) = (later.best, later.written);
        }
        if let Some(error) = later.shortage {
            self.shortage = Some(error.with_least_need(self.shortage));
        }
        for &(way, least_ns) in &later.least_ns {
            self.note(way, least_ns);
        }
    }
}

/// Compares plans with different ops on the host, and keeps the best one.
pub(super) struct BestPlan<'w, 'o> {
    work: &'w Work<'w>,
    strategy: Strategy,
    output: Output<'o>,
    helper: Option<Helper<'w>>,
    tally: Tally,
}

impl<'w, 'o> BestPlan<'w, 'o> {
    pub(super) fn new(
        work: &'w Work<'w>,
        strategy: Strategy,
        output: Output<'o>,
        helper: Option<&'w mut Helper<'_>>,
    ) -> Self {
        let helper = helper.map(Helper::reborrow);
        Self { work, strategy, output, helper, tally: Tally::EMPTY }
    }

    /// Whether a plan with at most this period has been found.
    pub(super) fn is_at_most(&self, period_ns: u64) -> bool {
        self.tally.period_ns() <= period_ns
    }

    /// Whether the best plan is the plan of a choice.
    pub(super) fn is_best(&self, choice: Choice) -> bool {
        self.tally.best.is_some_and(|best| best.way == Way::Own(choice))
    }

    /// The period of the plan of a choice, if it was tried; `u64::MAX` if there is no plan.
    pub(super) fn period_ns(&self, choice: Choice) -> Option<u64> {
        let noted = self.tally.least_ns.iter().find(|&&(way, _)| way == Way::Own(choice));
        noted.map(|&(_, period_ns)| period_ns)
    }

    /// A lower bound of the periods of other strategies' plans in the given order.
    pub(super) fn others_ns(&self) -> u64 {
        let others = self.tally.least_ns.iter().filter(|(way, _)| !matches!(way, Way::Own(_)));
        others.map(|&(_, least_ns)| least_ns).min().unwrap_or(u64::MAX)
    }

    /// Plans in one way, and keeps the plan if it is the best. A plan of another strategy counts only
    /// if it takes less than `below_ns`.
    pub(super) fn try_way(
        &mut self,
        way: Way,
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let below_ns = self.tally.period_ns().min(below_ns);
        let below_ns = match way {
            Way::Own(_) => below_ns,
            Way::Baseline(_) | Way::OnDevice(_) => bound_of_others_ns(below_ns),
        };
        let made = self.make(way, (below_ns, false), scratch);
        self.tally.record(made, (way, below_ns))
    }

    /// Does the same for two series of ways, at the same time if there is a helper. No plan of one
    /// series bounds the plans of the other.
    pub(super) fn try_both(
        &mut self,
        series: [&[Way]; 2],
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let Self { work, strategy, .. } = *self;
        let below_ns = self.tally.period_ns().min(below_ns);
        let [one, other] = series.map(|ways| {
            move |output: &mut Output<'_>, scratch: &mut Scratch<'_>| {
                let mut plans = BestPlan::new(work, strategy, output.reborrow(), None);
                ways.iter().try_for_each(|&way| plans.try_way(way, below_ns, scratch))?;
                Ok(plans.tally)
            }
        });
        let (one, other) = both(self.helper.as_mut(), &mut self.output, scratch, one, other)?;
        self.tally.written = None;
        self.tally.add(&one);
        match (&self.helper, other.written) {
            (Some(helper), Some(kept)) if !self.tally.is_better(&other) => {
                self.output.copy(&helper.output, &kept.written);
            }
            (None, _) if !series[1].is_empty() => self.tally.written = None,
            _ => {}
        }
        self.tally.add(&other);
        Ok(())
    }

    fn make(
        &mut self,
        way: Way,
        bound: (u64, bool),
        scratch: &mut Scratch<'_>,
    ) -> Result<Attempt, PlanningError> {
        let Self { work, strategy, .. } = *self;
        way.make((work, strategy), bound, &mut self.output, self.helper.as_mut(), scratch)
    }

    /// The best plan, written again if another plan was written after it.
    pub(super) fn finish(mut self, scratch: &mut Scratch<'_>) -> Result<Made<'o>, PlanningError> {
        let Tally { best, mut written, shortage, .. } = self.tally;
        if let (None, Some(Best { way, below_ns, .. })) = (written, best) {
            let made = self.make(way, (below_ns, true), scratch)?;
            written = made.and_then(|(_, kept)| kept);
        }
        let shortage = shortage.unwrap_or(PlanningError::Stuck);
        Ok(written.ok_or(shortage)?.made(self.output))
    }
}
