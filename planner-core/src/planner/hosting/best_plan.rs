//! Compares the plan of the best choice with plans by other strategies.

use super::choice::Choice;
use super::work::Work;
use crate::planner::auto::{self, Kept, Made};
use crate::planner::error::PlanningError;
use crate::planner::helper::{Helper, both};
use crate::planner::request::Output;
use crate::planner::strategy::Strategy;
use crate::scratch::Scratch;

/// How a plan is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// By the requested strategy, with a choice of ops for the host.
    Own(Choice),
    /// By a strategy that chooses ops for the host by its own rule.
    Baseline(Strategy),
    /// By the best of the strategies that run nothing on the host.
    OnDevice,
}

/// The period of the plan that was made, or `None` if no plan takes less than a bound.
type Attempt = Option<(u64, Kept)>;

impl Way {
    const SPLIT: Self = Self::Baseline(Strategy::Split);
    /// The strategies to compare the requested one with, beside the split, which takes little time.
    const OTHERS: [Self; 2] = [Self::Baseline(Strategy::OptimizerOffload), Self::OnDevice];

    /// Plans in this way, for a strategy.
    fn make(
        self,
        (work, strategy): (&Work<'_>, Strategy),
        below_ns: u64,
        output: &mut Output<'_>,
        helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Attempt, PlanningError> {
        let output = output.reborrow();
        let made = match self {
            Self::Own(choice) => Some(work.make(choice, strategy, output, helper, scratch)?),
            Self::Baseline(baseline) => {
                let mut scratch = scratch.reborrow();
                let given = Work::as_given(work.request, &mut scratch)?;
                let how = (baseline, strategy.repeats());
                given.make_baseline(how, below_ns, output, &mut scratch)?
            }
            Self::OnDevice => auto::make_other(work.request, strategy, below_ns, output, scratch)?,
        };
        Ok(made.map(|made| (made.plan.predicted.period_ns, made.kept())))
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

/// Compares plans with different ops on the host, and keeps the best one.
pub(super) struct BestPlan<'w, 'o> {
    work: &'w Work<'w>,
    strategy: Strategy,
    output: Output<'o>,
    helper: Option<Helper<'w>>,
    best: Option<Best>,
    /// The plan that was written last, if it is the best one.
    written: Option<Kept>,
    shortage: Option<PlanningError>,
}

impl<'w, 'o> BestPlan<'w, 'o> {
    pub(super) fn new(
        work: &'w Work<'w>,
        strategy: Strategy,
        output: Output<'o>,
        helper: Option<&'w mut Helper<'_>>,
    ) -> Self {
        let helper = helper.map(Helper::reborrow);
        Self { work, strategy, output, helper, best: None, written: None, shortage: None }
    }

    /// Whether a plan with at most this period has been found.
    pub(super) fn is_at_most(&self, period_ns: u64) -> bool {
        self.best.is_some_and(|best| best.period_ns <= period_ns)
    }

    /// Whether the best plan is the plan of a choice.
    pub(super) fn is_best(&self, choice: Choice) -> bool {
        self.best.is_some_and(|best| best.way == Way::Own(choice))
    }

    /// Tries all other strategies, and returns a lower bound of their periods. A plan counts only
    /// if it takes less than `below_ns`.
    pub(super) fn try_others(
        &mut self,
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, PlanningError> {
        let split_ns = self.try_way(Way::SPLIT, below_ns, scratch)?;
        let [one_ns, other_ns] = self.try_both(Way::OTHERS, below_ns, scratch)?;
        Ok(split_ns.min(one_ns).min(other_ns))
    }

    /// Plans in one way, and keeps the plan if it is the best. Returns a lower bound of the periods
    /// of that way's plans. A plan of another strategy counts only if it takes less than
    /// `below_ns`.
    pub(super) fn try_way(
        &mut self,
        way: Way,
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, PlanningError> {
        self.try_below(way, self.useful_ns(below_ns), scratch)
    }

    /// Does the same for plans that take less than `below_ns`, whatever the best plan takes.
    fn try_below(
        &mut self,
        way: Way,
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, PlanningError> {
        let made = self.make(way, below_ns, scratch);
        self.record(made, (way, below_ns))
    }

    /// Does the same for two ways, at the same time if there is a helper. No way's plan bounds the
    /// other's.
    pub(super) fn try_both(
        &mut self,
        [one, other]: [Way; 2],
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<[u64; 2], PlanningError> {
        let below_ns = self.useful_ns(below_ns);
        let Self { work, strategy, .. } = *self;
        let Some(helper) = &mut self.helper else {
            let one_ns = self.try_below(one, below_ns, scratch)?;
            return Ok([one_ns, self.try_below(other, below_ns, scratch)?]);
        };
        let make = |way: Way| {
            move |output: &mut Output<'_>, scratch: &mut Scratch<'_>| {
                Ok(way.make((work, strategy), below_ns, output, None, scratch))
            }
        };
        let (own, helpers) = both(Some(helper), &mut self.output, scratch, make(other), make(one))?;
        let one_ns = self.record(helpers, (one, below_ns))?;
        let helpers = self.written;
        let other_ns = self.record(own, (other, below_ns))?;
        if let (Some(kept), None, Some(helper)) = (helpers, self.written, &self.helper) {
            self.output.copy(&helper.output, &kept.written);
            self.written = helpers;
        }
        Ok([one_ns, other_ns])
    }

    /// Only plans that take less than this are of use.
    fn useful_ns(&self, below_ns: u64) -> u64 {
        self.best.map_or(below_ns, |best| best.period_ns.min(below_ns))
    }

    fn make(
        &mut self,
        way: Way,
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<Attempt, PlanningError> {
        let Self { work, strategy, .. } = *self;
        way.make((work, strategy), below_ns, &mut self.output, self.helper.as_mut(), scratch)
    }

    /// Keeps the plan that was made in a way if it is the best. Returns a lower bound of the periods of
    /// that way's plans.
    fn record(
        &mut self,
        made: Result<Attempt, PlanningError>,
        (way, below_ns): (Way, u64),
    ) -> Result<u64, PlanningError> {
        self.written = None;
        match made {
            Ok(None) => Ok(below_ns),
            Ok(Some((period_ns, kept))) => {
                if self.best.is_none_or(|best| period_ns <= best.period_ns) {
                    self.best = Some(Best { period_ns, way, below_ns });
                    self.written = Some(kept);
                }
                Ok(period_ns)
            }
            Err(error) if error.is_of_one_list() => {
                self.shortage = Some(error.with_least_need(self.shortage));
                Ok(u64::MAX)
            }
            Err(error) => Err(error),
        }
    }

    /// The best plan, written again if another plan was written after it.
    pub(super) fn finish(mut self, scratch: &mut Scratch<'_>) -> Result<Made<'o>, PlanningError> {
        if let (None, Some(Best { way, below_ns, .. })) = (self.written, self.best) {
            let made = self.make(way, below_ns, scratch)?;
            self.written = made.map(|(_, kept)| kept);
        }
        let shortage = self.shortage.unwrap_or(PlanningError::Stuck);
        Ok(self.written.ok_or(shortage)?.made(self.output))
    }
}
