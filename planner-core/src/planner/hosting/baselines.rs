//! The strategies of other systems for a device and a host that computes.

use super::choice::{Choice, OpClass, Position, Share, WHOLE};
use super::kinds::Places;
use super::work::Work;
use crate::plan::ArenaPlacement;
use crate::planner::auto::{self, Made, OfOthers};
use crate::planner::error::PlanningError;
use crate::planner::groups::Groups;
#[cfg(feature = "baselines")]
use crate::planner::lms::Lms;
use crate::planner::memory::Memory;
use crate::planner::recipe::Repeats;
use crate::planner::request::Output;
use crate::planner::strategy::{Need, Strategy};
use crate::planner::window::Window;
use crate::scratch::Scratch;

/// The strategies that may plan the rest if the optimizer runs on the host.
const BASELINES: &[Strategy] = &[
    Strategy::InCore,
    Strategy::OnDemand,
    Strategy::Fit,
    Strategy::Groups(Groups::new()),
    #[cfg(feature = "baselines")]
    Strategy::Vdnn,
    #[cfg(feature = "baselines")]
    Strategy::Lms(Lms::new()),
    Strategy::Window(Window::new()),
    Strategy::Checkpoint,
    Strategy::CheckpointOffload,
];

/// The most splits that differ.
pub(super) const SPLITS: usize = 4;

/// The ops that a split runs on the host.
#[derive(Clone, Copy)]
enum Split {
    /// The first or the last ops.
    OfAll(Position),
    /// The first or the last ops of the kinds with the highest ranks.
    OfKinds(Places),
}

impl Work<'_> {
    /// Plans by a strategy that chooses ops for the host by its own rule, under the bound `below_ns`. A plan
    /// that takes long to write again is written only if `writes`.
    pub(super) fn make_baseline<'o>(
        &self,
        (strategy, repeats): (Strategy, Repeats),
        (below_ns, writes): (u64, bool),
        output: Output<'o>,
        scratch: &mut Scratch<'_>,
    ) -> Result<OfOthers<'o>, PlanningError> {
        let made = match strategy {
            Strategy::Split => {
                let made = self.split(output, scratch)?;
                Some((made.plan.predicted.period_ns, Some(made)))
            }
            _ => self.offload(repeats, (below_ns, writes), output, scratch)?,
        };
        Ok(made.map(|(period_ns, made)| {
            (period_ns, made.map(|made| Made { by: strategy.name(), ..made }))
        }))
    }

    /// The best plan of a split. The host runs the first or the last ops, like llama.cpp with
    /// `--n-gpu-layers`, or ops of the kinds with the most bytes in a time, like llama.cpp with
    /// `--n-cpu-moe`. The device keeps everything else.
    fn split<'o>(
        &self,
        mut output: Output<'o>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        let mut best: Option<(u64, Choice)> = None;
        for choice in self.splits(output.arena, scratch)? {
            match self.make((choice, false), Strategy::InCore, output.reborrow(), None, scratch) {
                Ok(made) => {
                    let period_ns = made.plan.predicted.period_ns;
                    if best.is_none_or(|(least_ns, _)| period_ns < least_ns) {
                        best = Some((period_ns, choice));
                    }
                }
                Err(error) if error.is_of_one_list() => {}
                Err(error) => return Err(error),
            }
        }
        let choice = best.map_or(Choice::ALL, |(_, choice)| choice);
        self.make((choice, false), Strategy::InCore, output, None, scratch)
    }

    /// The choice of each split that differs, with the fewest ops.
    pub(super) fn splits(
        &self,
        arena: &mut [ArenaPlacement],
        scratch: &mut Scratch<'_>,
    ) -> Result<heapless::Vec<Choice, SPLITS>, PlanningError> {
        let of_all = [Position::First, Position::Last].map(Split::OfAll);
        let of_kinds = [Places::First, Places::Last].map(Split::OfKinds);
        let of_kinds = of_kinds.into_iter().filter(|_| self.middles.kinds.differ());
        let splits = of_all.into_iter().chain(of_kinds);
        splits.map(|split| self.fewest(split, arena, scratch)).collect()
    }

    /// The choice of a split with the fewest ops that leaves room for everything else on the device;
    /// all ops of the split if even that is not enough. More ops on the host need less device
    /// memory.
    fn fewest(
        &self,
        split: Split,
        arena: &mut [ArenaPlacement],
        scratch: &mut Scratch<'_>,
    ) -> Result<Choice, PlanningError> {
        let choice = |share| match split {
            Split::OfAll(position) => Choice::Share(Share { position, ..Share::ALL.with(share) }),
            Split::OfKinds(places) => Choice::Counts(self.middles.kinds.counts(share), places),
        };
        if self.has_room(choice(0), arena, scratch)? {
            return Ok(choice(0));
        }
        let (mut too_few, mut enough) = (0u32, WHOLE);
        while too_few.saturating_add(1) < enough {
            let share = u32::midpoint(too_few, enough);
            match self.has_room(choice(share), arena, scratch)? {
                true => enough = share,
                false => too_few = share,
            }
        }
        Ok(choice(enough))
    }

    /// Whether everything that a choice leaves to the device fits there.
    fn has_room(
        &self,
        choice: Choice,
        arena: &mut [ArenaPlacement],
        scratch: &mut Scratch<'_>,
    ) -> Result<bool, PlanningError> {
        self.with(choice, scratch, |task, scratch| {
            match Memory::new(task, Need::Everything, arena, scratch) {
                Err(PlanningError::Infeasible { .. }) => Ok(false),
                memory => memory.map(|_| true),
            }
        })
    }

    /// The late ops, or all that may run on the host if no op is late.
    pub(super) fn offloaded(&self) -> Choice {
        let class = if self.middles.has_classes() { OpClass::Late } else { OpClass::Any };
        Choice::Share(Share { class, ..Share::ALL })
    }

    /// The best plan of a baseline with these ops on the host.
    fn offload<'o>(
        &self,
        repeats: Repeats,
        (below_ns, writes): (u64, bool),
        mut output: Output<'o>,
        scratch: &mut Scratch<'_>,
    ) -> Result<OfOthers<'o>, PlanningError> {
        let may =
            |strategy: &Strategy| repeats == Repeats::Allowed || !strategy.rule().has_segments();
        self.with(self.offloaded(), scratch, |task, scratch| {
            let (mut best, mut shortage) = (None, None);
            let mut below = below_ns;
            for strategy in BASELINES.iter().copied().filter(may) {
                match auto::plan_task_below(task, strategy, below, output.reborrow(), scratch) {
                    Ok(None) => {}
                    Ok(Some(made)) if made.plan.predicted.period_ns < below => {
                        below = made.plan.predicted.period_ns;
                        best = Some(strategy);
                    }
                    Ok(Some(_)) => {}
                    Err(error) if error.is_of_one_list() => {
                        shortage = Some(error.with_least_need(shortage));
                    }
                    Err(error) => return Err(error),
                }
            }
            match (best, shortage) {
                (Some(_), _) if !writes => Ok(Some((below, None))),
                (Some(strategy), _) => {
                    let made = auto::plan_task_below(
                        task,
                        strategy,
                        below.saturating_add(1),
                        output,
                        scratch,
                    )?;
                    Ok(made.map(|made| (below, Some(made))))
                }
                (None, Some(shortage)) if below_ns == u64::MAX => Err(shortage),
                (None, _) => Ok(None),
            }
        })
    }
}
