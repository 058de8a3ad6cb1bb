//! Searches for the ops that make the plan shortest when they run on the host.

#![expect(clippy::indexing_slicing, reason = "the arrays have `KEPT` entries or one for each end")]

use super::baselines::SPLITS;
use super::best_plan::{BestPlan, Way, Ways};
use super::choice::{Choice, OpClass, Position, Share, WHOLE};
use super::work::{Work, as_given};
use crate::bounds;
use crate::graph::OpId;
use crate::planner::auto::{self, GAIN, Made};
use crate::planner::best_plan::shorter;
use crate::planner::error::PlanningError;
use crate::planner::helper::{Helper, both};
use crate::planner::order;
use crate::planner::recipe::{Auto, Repeats, Sample, host_sample};
use crate::planner::request::{Output, Request, Task};
use crate::planner::strategy::Strategy;
use crate::scratch::{Limits, Scratch, words};

/// The positions of a choice's ops: all that are tried, the most useful first. A balance: with more
/// even distances, transfers are spread more evenly; but each transfer pays its latency.
const POSITIONS: [Position; 7] = [
    Position::First,
    Position::Last,
    Position::Ahead,
    Position::Spread(16),
    Position::Spread(256),
    Position::Spread(4),
    Position::Spread(64),
];
const FEW_POSITIONS: usize = 4;

/// The most forms of choices: each class of ops in each position, and each class as a whole.
const CLIMBS: usize = 2 * (POSITIONS.len() + 1);

/// If a plan has fewer lists than this, only [`FEW_POSITIONS`] are tried.
const FEW_LISTS: usize = 40;

/// The steps by which shares are searched: the first one for each form of choice, the others only
/// for the best forms.
const STEPS: [u32; 6] = halves(WHOLE / 2);

/// If the host takes as long for less than this share of all ops as the device takes for all of them,
/// shares are searched on that scale, too.
const SMALL: u32 = WHOLE / 8;

/// If a plan has at least this many lists, choices are searched again: samples of lists lead to
/// other choices than lists that learn from each other do. A balance: the second search takes as
/// long as a plan.
const MANY_LISTS: usize = 160;

/// If a plan has at least this many lists, the best choices are planned whose trials exceed the best trial
/// by at most this fraction. Otherwise, only the best choice is planned. A balance: trials err by several
/// per cent, most of all if ops run again; and each plan takes time, which gains little in larger works.
const LISTS_FOR_NEAR: usize = 320;
const NEAR: u64 = 20;

/// The number of lists in such a sample, as a fraction of the plan's lists.
const SAMPLED_PART: usize = 40;

/// The number of choices that are compared by more than a sample. A balance: a sample is wrong by a
/// few per cent, and each further comparison takes several lists.
const KEPT: usize = 3;

/// The number of judged choices that are remembered.
const JUDGED: usize = 256;

/// The number of lists in a trial of one of the best choices; or this fraction of the plan's lists,
/// if that is fewer.
const TRIAL: usize = 12;
const TRIAL_PART: usize = 6;

/// The distances from the best share at which further shares are tried.
const NEARBY: [u32; 2] = [WHOLE / 64, WHOLE / 128];

// Each gain is a fraction of the period, given by its denominator. It is rarely larger.

/// The gain of a plan with repeats over a sample of lists without them: a quarter of the period in
/// the tables of `docs/research/repeats.md`.
const REPEATS_GAIN: u64 = 3;

/// The gain of a plan with no op on the host over its trial. No plan may be longer than that plan.
const NONE_GAIN: u64 = 5;

/// The gain of a plan with some or all ops on the host over its trial.
const TRIAL_GAIN: u64 = 100;

/// The gain of repeats for one choice beyond their gain for another.
const REPEATS_DIFFER: u64 = 32;

/// The gain of other orders and repeats for one choice beyond their gain for another, in works with
/// time for it.
const ORDERS_DIFFER: u64 = 5;

/// An end becomes the best choice if its trial is longer by less than this fraction.
const ALIKE: u64 = 200;

/// One of the two extreme choices: no op on the host, or all ops on the host.
#[derive(Clone, Copy)]
struct End {
    choice: Choice,
    /// The gain of its plan over its trial: [`NONE_GAIN`] or [`TRIAL_GAIN`].
    gain: u64,
    /// A proved lower bound of its plans' periods.
    bound_ns: u64,
    /// A usual lower bound of its plans' periods.
    least_ns: u64,
}

impl End {
    const fn of(choice: Choice, gain: u64) -> Self {
        Self { choice, gain, bound_ns: 0, least_ns: 0 }
    }
}

/// A part of the search that depends on no other part.
#[derive(Clone, Copy)]
enum Part {
    /// Samples shares around the best share of a form, by these steps.
    Climb(Share, &'static [u32]),
    /// The same by [halves] of the share.
    Halve(Share),
    Sample(Choice),
    /// Tries a few lists.
    TryLists(Choice, Auto),
    /// Tries a few lists, in the best orders if the plan's number of lists leaves time for it.
    TryInOrder(Choice, (Auto, usize)),
}

/// A search for the choice with the shortest lists.
#[derive(Clone)]
pub(super) struct Search<'w> {
    /// The request in the orders that are best with none and with all of the ops on the host.
    works: &'w [Work<'w>; 2],
    /// The better of these orders with some ops on the host.
    pub(super) some: &'w Work<'w>,
    /// The best choice of each form, with its period. The shortest period comes first.
    pub(super) kept: [(u64, Choice); KEPT],
    /// How choices are sampled: by the lists of this strategy, or by a few lists that are the same
    /// for all choices.
    sampled_by: Option<Auto>,
    /// The period of each judged choice, by a hash of its ops.
    judged: heapless::Vec<(u64, u64), JUDGED>,
    ends: [End; 2],
    /// The gain of the plan of an end over its sample.
    sampled_gain: u64,
}

impl<'w> Search<'w> {
    pub(super) const fn new(works: &'w [Work<'w>; 2], some: &'w Work<'w>) -> Self {
        Self {
            works,
            some,
            kept: [(u64::MAX, Choice::NONE); KEPT],
            sampled_by: None,
            judged: heapless::Vec::new(),
            ends: [End::of(Choice::NONE, NONE_GAIN), End::of(Choice::ALL, TRIAL_GAIN)],
            sampled_gain: GAIN,
        }
    }

    const fn request(&self) -> &'w Request<'w> {
        self.some.request
    }

    /// Plans with the best choice that the search finds.
    pub(super) fn run<'o>(
        mut self,
        strategy: Strategy,
        mut output: Output<'o>,
        mut helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        let mut lists = 0;
        if let Strategy::Auto(auto) = strategy {
            lists = auto.paced_lists(self.request().graph.ops().len());
            self.bound_ends(scratch)?;
            let splits = self.some.splits(output.arena, scratch)?;
            self.sample_all(lists, &splits, &mut output, helper.as_deref_mut(), scratch)?;
            let mut earlier = [(u64::MAX, Choice::NONE); KEPT];
            if lists >= MANY_LISTS {
                earlier = self.restart();
                let effort = Some((lists / SAMPLED_PART) as u32);
                self.sampled_by = Some(Auto { effort, repeats: Repeats::Never, ..auto });
                self.sample_all(lists, &splits, &mut output, helper.as_deref_mut(), scratch)?;
            }
            let helper = helper.as_deref_mut();
            self.compare_best((auto, lists), &earlier, &mut output, helper, scratch)?;
        }
        self.make_best((strategy, lists), output, helper, scratch)
    }

    /// Judges choices of each form by samples of lists.
    fn sample_all(
        &mut self,
        lists: usize,
        splits: &[Choice],
        output: &mut Output<'_>,
        mut helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        self.sample_ends(output, scratch)?;
        let is_short = lists < FEW_LISTS;
        let positions = if is_short { &POSITIONS[..FEW_POSITIONS] } else { &POSITIONS };
        let classes = if self.some.middles.has_classes() {
            &[OpClass::Any, OpClass::Late][..]
        } else {
            &[OpClass::Any]
        };
        let mut climbs = heapless::Vec::<_, CLIMBS>::new();
        for &class in classes {
            let of_class = positions.iter().filter_map(|&position| {
                let steps = match (position, class) {
                    (Position::Ahead, OpClass::Late) => return None,
                    // The best share varies more than the best share of other forms.
                    (Position::Ahead, OpClass::Any) if !is_short => &STEPS[..],
                    _ => &STEPS[..1],
                };
                Some(Part::Climb(Share { class, share: WHOLE / 2, position }, steps))
            });
            let all = Choice::Share(Share { class, ..Share::ALL });
            climbs.extend(of_class.chain([Part::Sample(all)]));
        }
        self.run_parts(&climbs, output, helper.as_deref_mut(), scratch)?;
        let most = if is_short { 1 } else { KEPT };
        let best =
            self.kept.into_iter().take(most).filter_map(|(sampled_ns, choice)| match choice {
                Choice::Share(share) if sampled_ns < u64::MAX => {
                    Some(Part::Climb(share, &STEPS[1..]))
                }
                _ => None,
            });
        let best: heapless::Vec<_, KEPT> = best.collect();
        self.run_parts(&best, output, helper.as_deref_mut(), scratch)?;
        // No plan may be longer than a split, so its choices are judged too.
        let splits: heapless::Vec<_, SPLITS> = splits.iter().copied().map(Part::Sample).collect();
        self.run_parts(&splits, output, helper.as_deref_mut(), scratch)?;
        self.count_kinds(lists, output, scratch)?;
        self.sample_small_shares(lists, output, helper, scratch)
    }

    /// Samples small shares if the host takes much longer for all ops than the device: shares for which both
    /// take about as long. They come after the counts of kinds, since counts from small shares on may miss
    /// the best counts.
    fn sample_small_shares(
        &mut self,
        lists: usize,
        output: &mut Output<'_>,
        helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let none_ns = self.sample(Choice::NONE, u64::MAX, output, scratch)?;
        let [_, End { bound_ns: all_ns, .. }] = self.ends;
        let share = u128::from(none_ns).saturating_mul(WHOLE.into()).checked_div(all_ns.into());
        let share = share.and_then(|share| u32::try_from(share).ok());
        let Some(share @ 1..SMALL) = share else { return Ok(()) };
        let before = self.kept[0];
        let small = |position| Part::Halve(Share { class: OpClass::Any, share, position });
        let positions = POSITIONS.into_iter().filter(|&position| position != Position::Ahead);
        let climbs: heapless::Vec<_, { POSITIONS.len() }> = positions.map(small).collect();
        self.run_parts(&climbs, output, helper, scratch)?;
        if self.kept[0] != before {
            self.count_kinds(lists, output, scratch)?;
        }
        Ok(())
    }

    /// Runs parts of the search. A helper runs half of them, and only a part that is left over may use
    /// the helper itself. The search keeps the best choices of both threads.
    fn run_parts(
        &mut self,
        parts: &[Part],
        output: &mut Output<'_>,
        mut helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let (pairs, left_over) = parts.as_chunks();
        let mut other = self.clone();
        both(
            helper.as_deref_mut(),
            output,
            scratch,
            |output, scratch| {
                pairs.iter().try_for_each(|&[part, _]| self.run_part(part, output, None, scratch))
            },
            |output, scratch| {
                pairs.iter().try_for_each(|&[_, part]| other.run_part(part, output, None, scratch))
            },
        )?;
        other.judged.into_iter().for_each(|judged| self.remember(judged));
        other.kept.into_iter().for_each(|(period_ns, choice)| self.keep(period_ns, choice));
        left_over
            .iter()
            .try_for_each(|&part| self.run_part(part, output, helper.as_deref_mut(), scratch))
    }

    fn run_part(
        &mut self,
        part: Part,
        output: &mut Output<'_>,
        helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        match part {
            Part::Climb(start, steps) => self.climb(start, steps, output, scratch),
            Part::Halve(start) => self.climb(start, &halves(start.share), output, scratch),
            Part::Sample(choice) => self.sample(choice, u64::MAX, output, scratch).map(drop),
            Part::TryLists(choice, auto) => self.try_lists(choice, auto, output, scratch).map(drop),
            Part::TryInOrder(choice, by) => {
                self.try_in_order(choice, by, output, helper, scratch).map(drop)
            }
        }
    }

    /// Finds proved lower bounds for plans with none and with all of the ops on the host.
    fn bound_ends(&mut self, scratch: &mut Scratch<'_>) -> Result<(), PlanningError> {
        let Request { graph, machine, budget_bytes } = *self.request();
        let order = bounds::BoundOrder::Any;
        let none_ns = bounds::period_with_repeats_ns(graph, machine, budget_bytes, order, scratch)?;
        let all_ns = self.some.with(Choice::ALL, scratch, |task, _| Ok(least_ns(task)))?;
        let [none, all] = &mut self.ends;
        (none.bound_ns, all.bound_ns) = (none_ns, all_ns);
        let repeatable = graph.ops().iter().any(|op| op.repeatable);
        // If micro-batches read states together, no part of the sampled period is sure to remain.
        let has_batches = repeatable && order::count_batches(graph, scratch)? > 1;
        self.sampled_gain = match (has_batches, repeatable) {
            (true, _) => 1,
            (_, true) => REPEATS_GAIN,
            (_, false) => GAIN,
        };
        Ok(())
    }

    /// Finds usual lower bounds for plans with none and with all of the ops on the host.
    fn sample_ends(
        &mut self,
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        for at in 0..self.ends.len() {
            let End { choice, bound_ns, .. } = self.ends[at];
            let sampled_ns = self.sample(choice, u64::MAX, output, scratch)?;
            self.ends[at].least_ns = bound_ns.max(shorter(sampled_ns, self.sampled_gain));
        }
        Ok(())
    }

    /// Samples shares around the best share of a form, by these steps.
    fn climb(
        &mut self,
        start: Share,
        steps: &[u32],
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let start_ns = self.sample(Choice::Share(start), u64::MAX, output, scratch)?;
        let mut best = (start_ns, start.share);
        for &step in steps {
            for share in around(best.1, step) {
                let choice = Choice::Share(start.with(share));
                best = best.min((self.sample(choice, best.0, output, scratch)?, share));
            }
        }
        Ok(())
    }

    /// Compares the best choices of this and an earlier search, and shares near the best one, by more
    /// lists.
    fn compare_best(
        &mut self,
        (auto, lists): (Auto, usize),
        earlier: &[(u64, Choice); KEPT],
        output: &mut Output<'_>,
        mut helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let (sampled_ns, _) = self.kept[0];
        let effort = (lists / TRIAL_PART).clamp(1, TRIAL) as u32;
        let once = Auto { effort: Some(effort), repeats: Repeats::Never, ..auto };
        let best = self.restart();
        let of_samples = best.iter().chain(earlier).filter(|&&(ns, _)| ns < u64::MAX);
        let of_samples: heapless::Vec<_, { 2 * KEPT }> =
            of_samples.map(|&(_, choice)| Part::TryLists(choice, once)).collect();
        self.run_parts(&of_samples, output, helper.as_deref_mut(), scratch)?;
        let of_share = |&(_, choice): &(u64, Choice)| match choice {
            Choice::Share(share) => Some(share),
            Choice::Counts(..) => None,
        };
        if let Some(best) = self.kept.iter().find_map(of_share) {
            let shares = NEARBY.into_iter().flat_map(|step| around(best.share, step));
            let nearby: heapless::Vec<_, { 2 * NEARBY.len() }> =
                shares.map(|share| Part::TryLists(Choice::Share(best.with(share)), once)).collect();
            self.run_parts(&nearby, output, helper.as_deref_mut(), scratch)?;
        }
        // Repeats gain more if the links limit the plan, and so may other orders.
        let by = (Auto { effort: Some(effort), ..auto }, lists);
        let part = if lists < FEW_LISTS { REPEATS_DIFFER } else { ORDERS_DIFFER };
        let kept = self.restart();
        let near = kept.iter().filter(|&&(ns, _)| shorter(ns, part) <= kept[0].0);
        let near: heapless::Vec<_, KEPT> =
            near.map(|&(_, choice)| Part::TryInOrder(choice, by)).collect();
        self.run_parts(&near, output, helper.as_deref_mut(), scratch)?;
        let (best_ns, _) = self.kept[0];
        for at in 0..self.ends.len() {
            let End { choice, gain, bound_ns, least_ns } = self.ends[at];
            if least_ns <= best_ns.max(sampled_ns) {
                let tried = self.kept.iter().find(|&&(ns, kept)| kept == choice && ns < u64::MAX);
                let trial_ns = match tried {
                    Some(&(trial_ns, _)) => trial_ns,
                    None => {
                        let helper = helper.as_deref_mut();
                        self.try_in_order(choice, by, output, helper, scratch)?
                    }
                };
                self.ends[at].least_ns = bound_ns.max(shorter(trial_ns, gain));
                if shorter(trial_ns, ALIKE) <= self.kept[0].0 {
                    self.kept[0].1 = choice;
                }
            }
        }
        Ok(())
    }

    /// Forgets all periods; returns the best choices.
    fn restart(&mut self) -> [(u64, Choice); KEPT] {
        self.judged.clear();
        core::mem::replace(&mut self.kept, [(u64::MAX, Choice::NONE); KEPT])
    }

    /// The period of the best of a sample of lists; `u64::MAX` if no list fits, or if the period is
    /// known to be at least `below_ns`.
    pub(super) fn sample(
        &mut self,
        choice: Choice,
        below_ns: u64,
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, PlanningError> {
        let sampled_by = self.sampled_by;
        self.judge((choice, below_ns), scratch, |task, scratch| match sampled_by {
            None => sample(task, output, scratch),
            Some(auto) => trial_ns(task, auto, output, scratch),
        })
    }

    /// The period of the best of a few lists; `u64::MAX` if no list fits.
    fn try_lists(
        &mut self,
        choice: Choice,
        auto: Auto,
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, PlanningError> {
        let choice = (choice, u64::MAX);
        self.judge(choice, scratch, |task, scratch| trial_ns(task, auto, output, scratch))
    }

    /// The period of the best of a few lists, in the best orders of the choice if there is time to
    /// find them; `u64::MAX` if no list fits.
    fn try_in_order(
        &mut self,
        choice: Choice,
        (auto, lists): (Auto, usize),
        output: &mut Output<'_>,
        helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, PlanningError> {
        if lists < FEW_LISTS {
            return self.try_lists(choice, auto, output, scratch);
        }
        let trial_ns = self.some.trial_ns(choice, auto, output, helper, scratch);
        let period_ns = trial_ns.map(|ns| ns.unwrap_or(u64::MAX)).or_else(without_a_plan)?;
        self.keep(period_ns, choice);
        Ok(period_ns)
    }

    /// Records a choice if it is among the best; returns its period, or `u64::MAX` if it is known
    /// to be at least `below_ns`.
    fn judge(
        &mut self,
        (choice, below_ns): (Choice, u64),
        scratch: &mut Scratch<'_>,
        period_ns: impl FnOnce(&Task<'_>, &mut Scratch<'_>) -> Result<u64, PlanningError>,
    ) -> Result<u64, PlanningError> {
        let choice = choice.reduced();
        let judged = &self.judged;
        let [none, all] = self.works;
        let work = match choice {
            Choice::NONE => none,
            Choice::ALL => all,
            _ => self.some,
        };
        let (ops, period_ns, is_known) = work.with(choice, scratch, |task, scratch| {
            let ops = order::hash(task.sequence.host_steps().iter().map(|step| step.op));
            let known = judged.iter().find(|&&(judged, _)| judged == ops);
            let period_ns = match known {
                Some(&(_, period_ns)) => period_ns,
                None if least_ns(task) >= below_ns => return Ok((ops, u64::MAX, true)),
                None => period_ns(task, scratch).or_else(without_a_plan)?,
            };
            Ok((ops, period_ns, known.is_some()))
        })?;
        if !is_known {
            self.remember((ops, period_ns));
            self.keep(period_ns, choice);
        }
        Ok(period_ns)
    }

    /// Remembers the hash of a choice's ops and its period.
    fn remember(&mut self, judged: (u64, u64)) {
        if !self.judged.contains(&judged) {
            // Choices beyond the capacity are judged again.
            let _is_full = self.judged.push(judged);
        }
    }

    fn keep(&mut self, period_ns: u64, choice: Choice) {
        let is_alike = |&(_, kept): &(u64, Choice)| kept.is_like(choice);
        let last = self.kept.iter().position(is_alike).unwrap_or(KEPT - 1);
        if period_ns < self.kept[last].0 {
            self.kept[last] = (period_ns, choice);
            self.kept[..=last].sort_unstable_by_key(|&(kept_ns, _)| kept_ns);
        }
    }

    /// The choices to plan: the best choice, and others that may be shorter. The ends come first.
    fn to_plan(&self, lists: usize) -> heapless::Vec<Choice, { KEPT + 2 }> {
        let (best_ns, best) = self.kept[0];
        let (near_ns, most) = match lists {
            LISTS_FOR_NEAR.. => (best_ns.saturating_add(best_ns / NEAR), KEPT),
            _ => (best_ns, 1),
        };
        let [none, all] = &self.ends;
        let ends = [(none, best_ns), (all, near_ns)];
        let ends = ends.iter().filter(|(end, ns)| end.choice == best || end.least_ns <= *ns);
        let mut choices: heapless::Vec<_, _> = ends.map(|(end, _)| end.choice).collect();
        for &(trial_ns, choice) in &self.kept[..most] {
            if trial_ns <= near_ns && !choices.contains(&choice) {
                let _is_full = choices.push(choice);
            }
        }
        choices
    }

    /// Plans with the best choices and by all other strategies, and keeps the best plan.
    fn make_best<'o>(
        &self,
        (strategy, lists): (Strategy, usize),
        output: Output<'o>,
        helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Made<'o>, PlanningError> {
        let (best_ns, _) = self.kept[0];
        let mut plans = BestPlan::new(self.some, strategy, output, helper);
        // The best plan may be a little longer than its trial.
        let trial_ns = best_ns.saturating_add(best_ns / TRIAL_GAIN);
        let choices = self.to_plan(lists);
        let makes_none = choices.first() == Some(&Choice::NONE);
        let on_device = if makes_none { strategy } else { strategy.in_given_order() };
        let on_device = Way::OnDevice(on_device);
        if let [choice] = *choices {
            plans.try_both([&[on_device], &Way::BASELINES], trial_ns, scratch)?;
            // A single choice is planned by both threads.
            plans.try_way(Way::Own(choice), trial_ns, scratch)?;
        } else {
            let [beside, own] = &series(&choices, on_device);
            plans.try_both([beside, own], trial_ns, scratch)?;
        }
        if trial_ns < u64::MAX && !plans.is_at_most(trial_ns) {
            plans.try_both([&[on_device], &Way::BASELINES], u64::MAX, scratch)?;
        }
        let ends_ns = self.ends.map(|End { choice, least_ns, .. }| {
            if plans.is_best(choice) {
                u64::MAX
            } else {
                plans.period_ns(choice).unwrap_or(least_ns)
            }
        });
        let others_ns = plans.others_ns();
        Ok(Made { others_ns, ends_ns, ..plans.finish(scratch)? })
    }
}

/// Divides choices, and the strategies that choose by their own rules, between two threads.
fn series(choices: &[Choice], on_device: Way) -> [Ways; 2] {
    let (mut beside, mut own) = (Ways::new(), Ways::from_array(Way::BASELINES));
    let makes_none = choices.first() == Some(&Choice::NONE);
    // The plan with no op on the host takes as long as two other plans and all strategies.
    let _is_full = if makes_none { own.push(on_device) } else { beside.push(on_device) };
    for (at, &choice) in choices.iter().enumerate() {
        let is_beside = if makes_none { at == 0 || at > 2 } else { at % 2 == 0 };
        let _is_full = if is_beside { &mut beside } else { &mut own }.push(Way::Own(choice));
    }
    [beside, own]
}

/// The orders in which a sample of lists is shortest with none of the ops on the host, and with all
/// that may run there. Plans are made in the best order, so choices are compared in it.
pub(super) struct Orders<'s> {
    /// With none of the ops on the host, and with all.
    of_ends: [&'s [OpId]; 2],
    least_ns: [u64; 2],
}

impl<'s> Orders<'s> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<OpId>(limits.ops).saturating_mul(3)
    }

    pub(super) fn new(
        request: &Request<'_>,
        output: &mut Output<'_>,
        mut helper: Option<&mut Helper<'_>>,
        scratch: &mut Scratch<'s>,
    ) -> Result<Self, PlanningError> {
        let mut of_ends = [as_given(request, scratch)?, as_given(request, scratch)?];
        let mut scratch = scratch.reborrow();
        let order = as_given(request, &mut scratch)?;
        let mut sample_ends = |order: &[OpId], scratch: &mut Scratch<'_>| {
            sample_ends(request, order, output, helper.as_deref_mut(), scratch)
        };
        let mut least_ns = sample_ends(order, &mut scratch)?;
        for join in order::joins(request.budget_bytes) {
            order::list_schedule(request.graph, join, order, &mut scratch)?;
            if order.is_sorted() || of_ends.iter().any(|best| **best == *order) {
                continue;
            }
            let sampled_ns = sample_ends(order, &mut scratch)?;
            for ((best, least_ns), sampled_ns) in
                of_ends.iter_mut().zip(&mut least_ns).zip(sampled_ns)
            {
                if sampled_ns < *least_ns {
                    *least_ns = sampled_ns;
                    best.copy_from_slice(order);
                }
            }
        }
        Ok(Self { of_ends: of_ends.map(|order| &*order), least_ns })
    }

    /// The request in each of the orders.
    pub(super) fn works(
        &self,
        request: &'s Request<'s>,
        scratch: &mut Scratch<'s>,
    ) -> Result<[Work<'s>; 2], PlanningError> {
        let [none, all] = self.of_ends;
        Ok([Work::new(request, none, scratch)?, Work::new(request, all, scratch)?])
    }

    /// The work of the two whose order has the shorter sample.
    pub(super) const fn best<'w>(&self, [none, all]: &'w [Work<'w>; 2]) -> &'w Work<'w> {
        let [none_ns, all_ns] = self.least_ns;
        if none_ns < all_ns { none } else { all }
    }
}

/// The periods of the best of a sample of lists, with none and with all of the ops on the host.
fn sample_ends(
    request: &Request<'_>,
    order: &[OpId],
    output: &mut Output<'_>,
    helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<[u64; 2], PlanningError> {
    let sampled_ns = |choice: Choice| {
        move |output: &mut Output<'_>, scratch: &mut Scratch<'_>| {
            let mut scratch = scratch.reborrow();
            let work = Work::new(request, order, &mut scratch)?;
            work.with(choice, &mut scratch, |task, scratch| {
                sample(task, output, scratch).or_else(without_a_plan)
            })
        }
    };
    let (none, all) = (sampled_ns(Choice::NONE), sampled_ns(Choice::ALL));
    both(helper, output, scratch, none, all).map(<[u64; 2]>::from)
}

/// A lower bound of the periods of plans without repeats: the time of the launches or of the host's
/// ops.
fn least_ns(task: &Task<'_>) -> u64 {
    let sequence = task.sequence;
    let steps = sequence.host_steps().iter();
    let host_ns = steps.map(|step| sequence.graph().op(step.op).host_ns.unwrap_or(0));
    sequence.launches_ns().max(host_ns.fold(0, u64::saturating_add))
}

/// A half of a share, a quarter, and so on.
const fn halves(share: u32) -> [u32; 6] {
    [share / 2, share / 4, share / 8, share / 16, share / 32, share / 64]
}

/// A smaller and a larger share.
fn around(share: u32, step: u32) -> [u32; 2] {
    [share.saturating_sub(step), share.saturating_add(step).min(WHOLE)]
}

/// The period of the best of a sample of lists; `u64::MAX` if no list fits.
fn sample(
    task: &Task<'_>,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<u64, PlanningError> {
    let recipes = host_sample(task);
    let sample = Sample { recipes: &recipes, enough: recipes.len().saturating_sub(1) };
    let sampled = auto::sample(task, sample, output.reborrow(), scratch)?;
    Ok(sampled.map_or(u64::MAX, |sampled| sampled.period_ns))
}

/// The period of the best of a few lists; `u64::MAX` if no list fits.
fn trial_ns(
    task: &Task<'_>,
    auto: Auto,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<u64, PlanningError> {
    Ok(auto::trial_ns(task, auto, output, scratch)?.unwrap_or(u64::MAX))
}

/// `u64::MAX` if the error means that there is no plan.
fn without_a_plan(error: PlanningError) -> Result<u64, PlanningError> {
    if error.is_of_one_list() { Ok(u64::MAX) } else { Err(error) }
}
