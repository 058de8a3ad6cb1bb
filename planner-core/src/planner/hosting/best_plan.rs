//! Compares the plan of the best choice with plans by other strategies.

use super::choice::Choice;
use super::work::Work;
use crate::planner::auto::{self, Kept, Made};
use crate::planner::error::PlanningError;
use crate::planner::helper::Helper;
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

impl Way {
    /// The strategies to compare the requested one with.
    const OTHERS: [Self; 3] = [
        Self::Baseline(Strategy::Split),
        Self::Baseline(Strategy::OptimizerOffload),
        Self::OnDevice,
    ];
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
        let mut least_ns = u64::MAX;
        for way in Way::OTHERS {
            least_ns = least_ns.min(self.try_way(way, below_ns, scratch)?);
        }
        Ok(least_ns)
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
        let below_ns = self.best.map_or(below_ns, |best| best.period_ns.min(below_ns));
        self.written = None;
        match self.make(way, below_ns, scratch) {
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

    fn make(
        &mut self,
        way: Way,
        below_ns: u64,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<(u64, Kept)>, PlanningError> {
        let Self { work, strategy, .. } = *self;
        let output = self.output.reborrow();
        let made = match way {
            Way::Own(choice) => {
                Some(work.make(choice, strategy, output, self.helper.as_mut(), scratch)?)
            }
            Way::Baseline(baseline) => {
                let mut scratch = scratch.reborrow();
                let given = Work::as_given(work.request, &mut scratch)?;
                let how = (baseline, strategy.repeats());
                given.make_baseline(how, below_ns, output, &mut scratch)?
            }
            Way::OnDevice => auto::make_other(work.request, strategy, below_ns, output, scratch)?,
        };
        Ok(made.map(|made| (made.plan.predicted.period_ns, made.kept())))
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
