//! Which ops run on the host.
//!
//! The ops that may run there are taken in the order in which they would be ready. A choice takes a
//! share of their time: the first of them, the last, or some at even distances, so that the host
//! computes while a link brings in what the next launches need. Another choice takes the ops that the host
//! ends sooner than a device that waits for the link. A sample of lists tells choices
//! apart, and the best of them is planned like any other work.

mod choice;

use super::auto::{GAIN, Made};
use super::error::PlanningError;
use super::groups::Groups;
use super::lms::Lms;
use super::memory::Memory;
use super::recipe::{Auto, Entrant, HOST_SAMPLE};
use super::request::{LeastMemory, Output, Request, Task};
use super::strategy::{Need, Strategy};
use super::window::Window;
use super::{auto, memory};
use crate::bounds;
use crate::graph::Graph;
use crate::hosted::Hosted;
use crate::plan::ArenaPlacement;
use crate::scratch::{Limits, Scratch, total};
use crate::sequence::Sequence;
use choice::{Choice, From, Middles, Sort, WHOLE};

/// Which ops that [may](crate::Op::host_ns) run on the host do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Host {
    /// None.
    Never,
    /// The ops with which the plan is shortest.
    #[default]
    Allowed,
    /// All.
    All,
}

/// At how many distances ops are taken. A balance: between more of them, transfers are spread more
/// evenly; each pays its latency.
const SPREADS: [u32; 4] = [4, 16, 64, 256];

/// How many choices are told apart by more than a sample. A balance: a sample errs by some hundredths,
/// and each takes as long as so many lists.
const KEPT: usize = 3;

/// Lists by which they are told apart: the first ones, and some by the pressures that these show.
const TRIAL: u32 = 12;

/// How far from the best share others are tried then.
const NEARBY: u32 = WHOLE / 64;

/// What a plan with repeats gains over a sample of lists without, as a fraction of the period, at most as a
/// rule: a quarter in the tables of `docs/repeats.md`.
const REPEATS_GAIN: u64 = 3;

/// What all lists of a plan gain over those of a trial, as a fraction of the period, at most as a rule.
const TRIAL_GAIN: u64 = 32;

/// Rounds in which a share is refined, each with half the step of the one before.
const ROUNDS: u32 = 6;

/// What plans the rest where the optimizer is on the host.
const BASELINES: [Strategy; 9] = [
    Strategy::InCore,
    Strategy::OnDemand,
    Strategy::Fit,
    Strategy::Groups(Groups { size: None, leaving: None, ahead: None }),
    Strategy::Vdnn,
    Strategy::Lms(Lms { threshold: None, ahead: None }),
    Strategy::Window(Window { bytes: None, published: false }),
    Strategy::Checkpoint,
    Strategy::CheckpointOffload,
];

/// Words of scratch beside those for a plan.
pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Hosted::scratch_words(limits).saturating_mul(2),
        Sequence::scratch_words(limits),
        Middles::scratch_words(limits),
    ])
}

/// What a strategy may run on the host, in a graph in which some op may; else nothing.
fn host(graph: &Graph<'_>, strategy: Strategy) -> Result<Host, PlanningError> {
    let host = match strategy {
        Strategy::Auto(Auto { host, .. }) => host,
        _ if strategy.runs_on_host() => Host::All,
        _ => Host::Never,
    };
    let is_idle = graph.ops().iter().all(|op| op.host_ns.is_none());
    match strategy {
        Strategy::Auto(_) if is_idle => Ok(Host::Never),
        _ if is_idle && host == Host::All => Err(PlanningError::NothingOnHost),
        _ => Ok(host),
    }
}

/// Plans with the best choice.
pub(super) fn make<'o>(
    request: &Request<'_>,
    strategy: Strategy,
    mut output: Output<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Made<'o>, PlanningError> {
    let host = host(request.graph, strategy)?;
    if host == Host::Never {
        return auto::make_with(request, None, strategy, output, scratch);
    }
    output.check(request.graph)?;
    let mut scratch = scratch.reborrow();
    if let Strategy::Auto(_) = strategy {
        let LeastMemory { bytes: min_feasible_bytes, op, .. } =
            least_memory(request, strategy, output.arena, &mut scratch)?;
        if request.budget_bytes < min_feasible_bytes {
            return Err(PlanningError::Infeasible { min_feasible_bytes, op });
        }
    }
    let middles = Middles::new(request, &mut scratch)?;
    let none = (u64::MAX, Choice::NONE);
    let mut search =
        Search { request, middles, kept: [none; KEPT], bounds_ns: [0; 2], ends_ns: [0; 2] };
    if strategy.runs_on_host() {
        return search.make_by(Way::Baseline(strategy), strategy, output, &mut scratch);
    }
    if host == Host::All || search.middles.is_none() {
        let choice = if host == Host::All { Choice::ALL } else { Choice::NONE };
        return search.make(choice, strategy, output, &mut scratch);
    }
    if strategy.takes_first() {
        let made = search.make(Choice::NONE, strategy, output.reborrow(), &mut scratch);
        let shortage = match made {
            Err(error) if error.is_of_one_list() => error,
            Err(error) => return Err(error),
            Ok(made) => return Ok(made.kept().made(output)),
        };
        let made = search.make(Choice::ALL, strategy, output, &mut scratch);
        return made.map_err(|error| error.less(Some(shortage)));
    }
    search.run(&mut output, &mut scratch)?;
    if let Strategy::Auto(auto) = strategy {
        search.refine(auto, &mut output, &mut scratch)?;
    }
    search.make_best(strategy, output, &mut scratch)
}

/// The smallest budget that some choice allows; its tensors are left in the arena.
pub(super) fn least_memory(
    request: &Request<'_>,
    strategy: Strategy,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<LeastMemory, PlanningError> {
    let mut scratch = scratch.reborrow();
    let host = host(request.graph, strategy)?;
    let all = match host {
        Host::Never => None,
        _ => Hosted::new(request.graph, |_| true, &mut scratch)?,
    };
    let mut least = |hosted: Option<&Hosted<'_>>| {
        let mut scratch = scratch.reborrow();
        let sequence = Sequence::as_given(request.graph, hosted, &mut scratch)?;
        let task = Task::new(request, &sequence);
        memory::smallest(&task, strategy.rule().need(&sequence), arena, &mut scratch)
    };
    let none = if host == Host::All { None } else { Some(least(None)?) };
    let all = all.as_ref().map(|all| least(Some(all))).transpose()?;
    match (none, all) {
        (Some(none), Some(all)) if none.bytes <= all.bytes => least(None),
        (_, Some(all)) => Ok(all),
        (Some(none), None) => Ok(none),
        (None, None) => least(None),
    }
}

/// How a plan is made.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By the strategy that is asked for.
    Own(Choice),
    /// By a baseline, which has a choice of its own.
    Baseline(Strategy),
}

/// A search for the choice whose lists take least.
struct Search<'r> {
    request: &'r Request<'r>,
    middles: Middles<'r>,
    /// The best choices, each with its period; the best comes first.
    kept: [(u64, Choice); KEPT],
    /// Periods that no plan beats with none of the ops on the host, or with all of them there,
    bounds_ns: [u64; 2],
    /// and that, as a rule, none does.
    ends_ns: [u64; 2],
}

impl Search<'_> {
    /// Tries shares of the ops.
    fn run(
        &mut self,
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let none_ns = self.sample(Choice::NONE, output, scratch)?;
        let all_ns = self.sample(Choice::ALL, output, scratch)?;
        let repeatable = self.request.graph.ops().iter().any(|op| op.repeatable);
        let gain = if repeatable { REPEATS_GAIN } else { GAIN };
        self.bounds_ns = self.find_bounds_ns(scratch)?;
        for (at, sampled_ns) in [none_ns, all_ns].into_iter().enumerate() {
            self.ends_ns[at] = self.bounds_ns[at].max(sampled_ns - sampled_ns / gain);
        }
        if self.middles.has_sorts() {
            for share in [WHOLE, WHOLE / 2] {
                self.sample(
                    Choice { sort: Sort::Late, share, from: From::First },
                    output,
                    scratch,
                )?;
            }
        }
        let (_, Choice { sort, .. }) = self.kept[0];
        let spreads = SPREADS.map(From::Spread);
        for from in [From::First, From::Last].into_iter().chain(spreads) {
            self.sample(Choice { sort, share: WHOLE / 2, from }, output, scratch)?;
        }
        let mut step = WHOLE / 4;
        for _round in 0..ROUNDS {
            let (_, best) = self.kept[0];
            for choice in best.around(step) {
                self.sample(choice, output, scratch)?;
            }
            step /= 2;
        }
        let (_, Choice { sort, share, .. }) = self.kept[0];
        for from in [From::First, From::Last].into_iter().chain(spreads) {
            self.sample(Choice { sort, share, from }, output, scratch)?;
        }
        if sort == Sort::Any {
            self.climb_ahead(output, scratch)?;
        }
        // No plan may be longer than a split.
        for from in [From::First, From::Last] {
            let choice = self.fewest(from, output.arena, scratch)?;
            self.sample(choice, output, scratch)?;
        }
        Ok(())
    }

    /// Tries shares of [`From::Ahead`]. The best share of other choices does not tell which is best here.
    fn climb_ahead(
        &mut self,
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let mut best = Choice { sort: Sort::Any, share: WHOLE / 2, from: From::Ahead };
        let mut least = (self.sample(best, output, scratch)?, best.share);
        let mut step = WHOLE / 4;
        for _round in 0..ROUNDS {
            for choice in best.around(step) {
                least = least.min((self.sample(choice, output, scratch)?, choice.share));
            }
            (_, best.share) = least;
            step /= 2;
        }
        Ok(())
    }

    /// Tells the best choices apart, and shares near the best one, by some more lists.
    fn refine(
        &mut self,
        auto: Auto,
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let lists = auto.paced_lists(self.request.graph.ops().len());
        let effort = u32::try_from(lists).unwrap_or(u32::MAX).min(TRIAL);
        let auto = Auto { effort: Some(effort), ..auto };
        let kept = core::mem::replace(&mut self.kept, [(u64::MAX, Choice::NONE); KEPT]);
        for (sampled_ns, choice) in kept {
            if sampled_ns < u64::MAX {
                self.tell(choice, auto, output, scratch)?;
            }
        }
        let (_, best) = self.kept[0];
        for choice in best.around(NEARBY) {
            self.tell(choice, auto, output, scratch)?;
        }
        let [_, all_ns] = self.ends_ns;
        if all_ns <= self.kept[0].0 {
            let told_ns = self.tell(Choice::ALL, auto, output, scratch)?;
            self.ends_ns[1] = self.bounds_ns[1].max(told_ns - told_ns / TRIAL_GAIN);
        }
        Ok(())
    }

    /// The period of the best of some lists; the most there is where none fits.
    fn tell(
        &mut self,
        choice: Choice,
        auto: Auto,
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, PlanningError> {
        self.judge(choice, scratch, |task, scratch| {
            let entrant = Entrant::Of(Strategy::Auto(auto));
            let made = auto::plan_task(task, entrant, output.reborrow(), scratch)?;
            Ok(Some(made.plan.predicted.period_ns))
        })
    }

    /// Plans with the best choice, by the baselines, and with none and all of the ops on the host where
    /// that could be shorter; keeps the best plan.
    fn make_best<'o>(
        &self,
        strategy: Strategy,
        mut output: Output<'o>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        let (best_ns, best) = self.kept[0];
        let [none_ns, all_ns] = self.ends_ns;
        let ways = [
            (Way::Baseline(Strategy::Split), 0),
            (Way::Baseline(Strategy::OptimizerOffload), 0),
            (Way::Own(Choice::NONE), none_ns),
            (Way::Own(Choice::ALL), all_ns),
            // The best comes last, so that it need not be written again.
            (Way::Own(best), 0),
        ];
        let mut least_ns = ways.map(|(_, least_ns)| least_ns);
        let mut winner: Option<(u64, Way)> = None;
        let (mut written, mut shortage) = (None, None);
        for (at, &(way, bound_ns)) in ways.iter().enumerate() {
            if bound_ns > best_ns || way == Way::Own(best) && at + 1 < ways.len() {
                continue;
            }
            written = None;
            match self.make_by(way, strategy, output.reborrow(), scratch) {
                Ok(made) => {
                    let period_ns = made.plan.predicted.period_ns;
                    least_ns[at] = period_ns;
                    if winner.is_none_or(|(least_ns, _)| period_ns <= least_ns) {
                        winner = Some((period_ns, way));
                        written = Some(made.kept());
                    }
                }
                Err(error) if error.is_of_one_list() => {
                    least_ns[at] = u64::MAX;
                    // If some choice fits the device, the budget is not what is too small.
                    let is_of_host = matches!(shortage, Some(PlanningError::Plan(_)));
                    shortage = if is_of_host { shortage } else { Some(error.less(shortage)) };
                }
                Err(error) => return Err(error),
            }
        }
        let made = match (winner, written, shortage) {
            (Some(_), Some(kept), _) => kept.made(output),
            (Some((_, way)), None, _) => self.make_by(way, strategy, output, scratch)?,
            (None, _, shortage) => return Err(shortage.unwrap_or(PlanningError::Stuck)),
        };
        let [split_ns, offload_ns, none_ns, all_ns, best_ns] = least_ns;
        let end_ns = |choice, least_ns| match winner {
            Some((_, Way::Own(won))) if won == choice => u64::MAX,
            _ if best == choice => best_ns,
            _ => least_ns,
        };
        Ok(Made {
            others_ns: split_ns.min(offload_ns).min(none_ns),
            ends_ns: [end_ns(Choice::NONE, none_ns), end_ns(Choice::ALL, all_ns)],
            ..made
        })
    }

    /// Finds the periods of [`Self::bounds_ns`].
    fn find_bounds_ns(&self, scratch: &mut Scratch<'_>) -> Result<[u64; 2], PlanningError> {
        let Request { graph, machine, budget_bytes } = *self.request;
        let order = bounds::Order::Any;
        let none_ns = bounds::period_with_repeats_ns(graph, machine, budget_bytes, order, scratch)?;
        let mut scratch = scratch.reborrow();
        let hosted = self.middles.take(self.request, Choice::ALL, &mut scratch)?;
        let sequence = Sequence::as_given(graph, hosted.as_ref(), &mut scratch)?;
        let host_ns = sequence.host_steps().iter().map(|step| graph.op(step.op).host_ns);
        let host_ns = host_ns.fold(0, |sum: u64, ns| sum.saturating_add(ns.unwrap_or(0)));
        Ok([none_ns, sequence.compute_ns().max(host_ns)])
    }

    fn make_by<'o>(
        &self,
        way: Way,
        strategy: Strategy,
        output: Output<'o>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        match way {
            Way::Own(choice) => self.make(choice, strategy, output, scratch),
            Way::Baseline(baseline) => {
                let made = match baseline {
                    Strategy::Split => self.split(output, scratch)?,
                    _ => self.offload(output, scratch)?,
                };
                Ok(Made { by: baseline.name(), ..made })
            }
        }
    }

    /// The period of the best of a sample of lists; the most there is where none fits.
    fn sample(
        &mut self,
        choice: Choice,
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, PlanningError> {
        self.judge(choice, scratch, |task, scratch| {
            let sampled = auto::sample(task, HOST_SAMPLE, output.reborrow(), scratch)?;
            Ok(sampled.map(|sampled| sampled.period_ns))
        })
    }

    /// Keeps a choice if it is among the best; returns its period.
    fn judge(
        &mut self,
        choice: Choice,
        scratch: &mut Scratch<'_>,
        period_ns: impl FnOnce(&Task<'_>, &mut Scratch<'_>) -> Result<Option<u64>, PlanningError>,
    ) -> Result<u64, PlanningError> {
        let choice = choice.reduced();
        if let Some(&(period_ns, _)) = self.kept.iter().find(|&&(_, kept)| kept == choice)
            && period_ns < u64::MAX
        {
            return Ok(period_ns);
        }
        let mut scratch = scratch.reborrow();
        let graph = self.request.graph;
        let hosted = self.middles.take(self.request, choice, &mut scratch)?;
        let sequence = Sequence::as_given(graph, hosted.as_ref(), &mut scratch)?;
        let task = Task::new(self.request, &sequence);
        let period_ns = match period_ns(&task, &mut scratch) {
            Err(error) if error.is_of_one_list() => u64::MAX,
            period_ns => period_ns?.unwrap_or(u64::MAX),
        };
        if let Some(at) = self.kept.iter().position(|&(kept_ns, _)| period_ns < kept_ns) {
            self.kept[at..].rotate_right(1);
            self.kept[at] = (period_ns, choice);
        }
        Ok(period_ns)
    }

    /// The best plan with everything on the device but the first or the last ops.
    fn split<'o>(
        &self,
        mut output: Output<'o>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        let mut best: Option<(u64, Choice)> = None;
        for from in [From::First, From::Last] {
            let choice = self.fewest(from, output.arena, scratch)?;
            match self.make(choice, Strategy::InCore, output.reborrow(), scratch) {
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
        self.make(choice, Strategy::InCore, output, scratch)
    }

    /// As few of the first or the last ops as leave room for everything else on the device; all
    /// if even that is not enough. More of them on the host need less of the device.
    fn fewest(
        &self,
        from: From,
        arena: &mut [ArenaPlacement],
        scratch: &mut Scratch<'_>,
    ) -> Result<Choice, PlanningError> {
        let most = Choice { from, ..Choice::ALL };
        if self.has_room(Choice { share: 0, ..most }, arena, scratch)? {
            return Ok(Choice { share: 0, ..most });
        }
        let (mut too_few, mut enough) = (0, WHOLE);
        while too_few + 1 < enough {
            let share = u32::midpoint(too_few, enough);
            match self.has_room(Choice { share, ..most }, arena, scratch)? {
                true => enough = share,
                false => too_few = share,
            }
        }
        Ok(Choice { share: enough, ..most })
    }

    /// Whether everything fits the device that a choice leaves there.
    fn has_room(
        &self,
        choice: Choice,
        arena: &mut [ArenaPlacement],
        scratch: &mut Scratch<'_>,
    ) -> Result<bool, PlanningError> {
        let mut scratch = scratch.reborrow();
        let graph = self.request.graph;
        let hosted = self.middles.take(self.request, choice, &mut scratch)?;
        let sequence = Sequence::as_given(graph, hosted.as_ref(), &mut scratch)?;
        let task = Task::new(self.request, &sequence);
        match Memory::new(&task, Need::Everything, arena, &mut scratch) {
            Err(PlanningError::Infeasible { .. }) => Ok(false),
            memory => memory.map(|_| true),
        }
    }

    /// The best plan of a baseline with the late ops on the host, or with all that may run there where
    /// none is late.
    fn offload<'o>(
        &self,
        mut output: Output<'o>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        let mut best: Option<(u64, Strategy)> = None;
        let mut shortage = None;
        let sort = if self.middles.has_sorts() { Sort::Late } else { Sort::Any };
        let choice = Choice { sort, ..Choice::ALL };
        for strategy in BASELINES {
            match self.make(choice, strategy, output.reborrow(), scratch) {
                Ok(made) => {
                    let period_ns = made.plan.predicted.period_ns;
                    if best.is_none_or(|(least_ns, _)| period_ns < least_ns) {
                        best = Some((period_ns, strategy));
                    }
                }
                Err(error) if error.is_of_one_list() => shortage = Some(error.less(shortage)),
                Err(error) => return Err(error),
            }
        }
        match (best, shortage) {
            (Some((_, strategy)), _) => self.make(choice, strategy, output, scratch),
            (None, shortage) => Err(shortage.unwrap_or(PlanningError::Stuck)),
        }
    }

    fn make<'o>(
        &self,
        choice: Choice,
        strategy: Strategy,
        output: Output<'o>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        let mut scratch = scratch.reborrow();
        let hosted = self.middles.take(self.request, choice, &mut scratch)?;
        auto::make_with(self.request, hosted.as_ref(), strategy, output, &mut scratch)
    }
}
