//! Writes lists and judges each by the timeline, one at a time.

#![expect(clippy::indexing_slicing, reason = "lengths are those of lists in these buffers")]

use super::builder::Builder;
use super::chance::Chance;
use super::choice;
use super::error::PlanningError;
use super::gaps::Gaps;
use super::list::{Lengths, List, Stuck};
use super::memory::Memory;
use super::paced::{self, Pace};
use super::pressure::Pressures;
use super::recipe::{
    Entrant, LARGE_OPS, PACED_NAME, PACES, Paced, Recipe, Rounds, SAMPLED_ROUNDS, Sample,
};
use super::request::{Lists, PoolTables, Task};
use super::uses::Uses;
use crate::host::HostLayout;
use crate::lower::lower_pieces;
use crate::machine::Direction;
use crate::pieces::Pieces;
use crate::plan::{ArenaPlacement, Part, PlanError, Prediction, Resident, Step};
use crate::schedule::Scheduled;
use crate::scratch::{Limits, OutOfScratch, Scratch};
use crate::sequence::Sequence;
use crate::timeline::predict_pieces;
use core::iter;

/// Sparing lists are tried only if the first list takes at most this fraction longer than a list
/// that is near the best. A balance: the two kinds differ by a few per cent, and each list takes
/// time.
const FAR: u64 = 16;

/// Sparing lists are tried only if ops wait for more than this fraction of the compute time.
/// Otherwise they gain nothing.
const WAITING: u64 = 256;

/// The memory, uses and arena that all lists of one task share.
#[derive(Clone, Copy)]
pub(super) struct Context<'g> {
    pub(super) memory: &'g Memory<'g>,
    pub(super) uses: &'g Uses<'g>,
    pub(super) arena: &'g [ArenaPlacement],
}

/// How many lists judge a sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judging {
    /// If a list takes no longer than this, a few more lists follow.
    pub(super) near_ns: u64,
    /// The first list, and the lists to try after it, as long as each list is shorter than the list
    /// before it.
    pub(super) judges: &'static [Recipe<'static>],
}

/// A list that has been written, and its prediction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'r> {
    recipe: Recipe<'r>,
    pub(super) lengths: Lengths,
    pub(super) predicted: Prediction,
    /// Whether no list can be faster.
    pub(super) is_ideal: bool,
}

impl Candidate<'_> {
    /// The name of the rule that wrote the list.
    pub(super) const fn made_by(&self) -> &'static str {
        match self.recipe {
            Recipe::Of((name, _), _) => name,
            Recipe::Paced(_) => PACED_NAME,
        }
    }

    fn is_paced(&self) -> bool {
        matches!(self.recipe, Recipe::Paced(_))
    }
}

/// The lists among which the best is chosen.
struct Choices<'r, R> {
    recipes: R,
    /// The number of lists by changed pressures that follow.
    rounds: Rounds,
    /// The chosen list must not be longer than this one.
    to_beat: Option<Candidate<'r>>,
}

/// The gaps and pressures that paced lists are made from. Each list changes the pressures for the
/// next.
#[derive(Debug)]
pub(super) struct Search<'s> {
    pub(super) gaps: Gaps<'s>,
    pub(super) pressures: Pressures<'s>,
}

impl<'s> Search<'s> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        Gaps::scratch_words(limits).saturating_add(Pressures::scratch_words(limits))
    }

    pub(super) fn new(
        sequence: &Sequence<'_>,
        scratch: &mut Scratch<'s>,
    ) -> Result<Self, OutOfScratch> {
        let gaps = Gaps::new(sequence, scratch)?;
        Ok(Self { gaps, pressures: Pressures::new(sequence.len(), scratch)? })
    }

    /// Does the same; without gaps if the entrant does not use them.
    pub(super) fn of_entrant(
        entrant: &Entrant,
        sequence: &Sequence<'_>,
        scratch: &mut Scratch<'s>,
    ) -> Result<Self, OutOfScratch> {
        if entrant.moves_in_gaps() {
            return Self::new(sequence, scratch);
        }
        Ok(Self { gaps: Gaps::none(), pressures: Pressures::new(0, scratch)? })
    }

    /// The next recipe by changed pressures, guided by the best paced list so far; `None` after the
    /// last.
    fn next_recipe<'r>(&mut self, guide: Recipe<'_>, rounds: &mut Rounds) -> Option<Recipe<'r>> {
        let Recipe::Paced(guide) = guide else { return None };
        if let Some(turns) = rounds.turns.checked_sub(1) {
            rounds.turns = turns;
            self.pressures.update();
            let pace = *PACES.iter().cycle().nth(turns)?;
            let pace = Pace { coarser: guide.pace.coarser, ..pace };
            return Some(Recipe::Paced(Paced { pace, ..guide }));
        }
        rounds.shakes = rounds.shakes.checked_sub(1)?;
        let mut chance = Chance::new(rounds.shakes as u64);
        self.pressures.perturb(&mut chance);
        Some(Recipe::Paced(guide.perturbed(&mut chance)))
    }
}

/// Buffers in which lists are written and judged, one at a time.
pub(super) struct Trials<'d, 'r> {
    pub(super) task: &'r Task<'r>,
    pub(super) steps: &'d mut [Step],
    pub(super) resident: &'d mut [Resident],
    pub(super) tables: PoolTables<'d>,
    /// Of the lists that need more host memory than there is, the least that one needs.
    pub(super) host_shortage_bytes: Option<u64>,
    /// Of the lists that have too many steps, the fewest that one has.
    pub(super) steps_needed: Option<usize>,
    /// A list of a rule need not be judged if its links alone take this long.
    pub(super) below_ns: u64,
    /// The least period of the lists of rules; for lists that are not judged, the time of their
    /// links and launches.
    pub(super) least_ns: u64,
}

impl<'d, 'r> Trials<'d, 'r> {
    pub(super) const fn new(
        task: &'r Task<'r>,
        steps: &'d mut [Step],
        resident: &'d mut [Resident],
        tables: PoolTables<'d>,
    ) -> Self {
        Self {
            task,
            steps,
            resident,
            tables,
            host_shortage_bytes: None,
            steps_needed: None,
            below_ns: u64::MAX,
            least_ns: u64::MAX,
        }
    }

    /// The list that was written last.
    pub(super) fn lists(&self, lengths: Lengths) -> Lists<'_> {
        let (steps, resident) = (&self.steps[..lengths.steps], &self.resident[..lengths.resident]);
        Lists { steps, resident }
    }

    /// The best prediction of a sample of lists; `None` if no list fits.
    pub(super) fn sample(
        &mut self,
        sample: Sample<'_>,
        context: &Context<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Prediction>, PlanningError> {
        let mut scratch = scratch.reborrow();
        let mut search = Search::new(self.task.sequence, &mut scratch)?;
        let mut best: Option<Prediction> = None;
        let ops = self.task.sequence.len();
        let enough = if ops >= LARGE_OPS { 0 } else { sample.enough };
        for (tried, &recipe) in sample.recipes.iter().enumerate() {
            if best.is_some() && (ops == 0 || tried >= enough) {
                break;
            }
            let candidate = self.try_out(recipe, u64::MAX, context, &mut search, &mut scratch)?;
            if let Some(Candidate { predicted, .. }) = candidate
                && best.is_none_or(|best| predicted.period_ns < best.period_ns)
            {
                best = Some(predicted);
            }
        }
        Ok(best)
    }

    /// Predicts the first judge; the sparing judges after it if the first is not much longer than
    /// `near_ns`; and a few more lists if one takes at most `near_ns`. Returns the shortest
    /// prediction, or `None` if the first list does not fit.
    pub(super) fn sample_paced(
        &mut self,
        Judging { near_ns, judges }: Judging,
        context: &Context<'_>,
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Prediction>, PlanningError> {
        let Some((&first, sparing)) = judges.split_first() else { return Ok(None) };
        let first = self.try_out(first, u64::MAX, context, search, scratch)?;
        let Some(mut best) = first else { return Ok(None) };
        let far_ns = near_ns.saturating_add(near_ns / FAR);
        let tries_sparing = best.predicted.period_ns <= far_ns && self.waits(&best);
        // With ops on the host, sparing lists are usually no shorter.
        if tries_sparing && self.task.sequence.host_steps().is_empty() {
            for &recipe in sparing {
                let is_better =
                    |next: &Candidate<'_>| next.predicted.cost() < best.predicted.cost();
                let next = self.try_out(recipe, u64::MAX, context, search, scratch)?;
                let Some(better) = next.filter(is_better) else { break };
                best = better;
            }
        }
        let is_near = best.predicted.period_ns <= near_ns && !best.is_ideal;
        let mut rounds = if is_near { SAMPLED_ROUNDS } else { Rounds::default() };
        let guide = best.recipe;
        while let Some(recipe) = search.next_recipe(guide, &mut rounds) {
            if let Some(next) = self.try_out(recipe, u64::MAX, context, search, scratch)?
                && next.predicted.cost() < best.predicted.cost()
            {
                best = next;
            }
        }
        Ok(Some(best.predicted))
    }

    /// The best list of an entrant, written; `None` if no recipe fits the budget.
    pub(super) fn best<'s>(
        &mut self,
        entrant: &'s Entrant,
        context: &Context<'_>,
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate<'s>>, PlanningError> {
        let [rounds, _] = entrant.rounds(self.task);
        let choices = Choices { recipes: entrant.recipes(self.task), rounds, to_beat: None };
        self.best_of(choices, entrant.stops_at_first(), context, search, scratch)
    }

    /// A list that is not longer than the best one in the other context, written, and `true`; or
    /// the best list in its own context, written again, and `false`.
    pub(super) fn keep_better<'s>(
        &mut self,
        entrant: &'s Entrant,
        best: Candidate<'s>,
        [own, other]: [Context<'_>; 2],
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(Candidate<'s>, bool), PlanningError> {
        let [_, rounds] = entrant.rounds(self.task);
        if let Some(better) = self.better(rounds, best, &other, search, scratch)? {
            return Ok((better, true));
        }
        let again = self.again(best, &own, search, scratch)?;
        Ok((again.unwrap_or(best), false))
    }

    /// A list in a changed context that is not longer than a given list, written; `None` if there
    /// is no such list.
    pub(super) fn better<'s>(
        &mut self,
        rounds: Rounds,
        than: Candidate<'s>,
        context: &Context<'_>,
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate<'s>>, PlanningError> {
        let rounds = if than.is_ideal { Rounds::default() } else { rounds };
        let choices = Choices { recipes: iter::once(than.recipe), rounds, to_beat: Some(than) };
        search.pressures.recall();
        self.best_of(choices, false, context, search, scratch)
    }

    /// Whether ops wait for transfers in a list.
    fn waits(&self, list: &Candidate<'_>) -> bool {
        let compute_ns = self.task.sequence.launches_ns();
        let waits_ns = list.predicted.period_ns.saturating_sub(compute_ns);
        waits_ns > compute_ns / WAITING
    }

    fn best_of<'s>(
        &mut self,
        mut choices: Choices<'s, impl Iterator<Item = Recipe<'s>>>,
        stops_at_first: bool,
        context: &Context<'_>,
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate<'s>>, PlanningError> {
        let mut best: Option<Candidate<'s>> = None;
        // The best paced list; its pressures are kept.
        let mut guide = choices.to_beat.filter(Candidate::is_paced);
        let mut written_last = false;
        while !best.is_some_and(|best| stops_at_first || best.is_ideal) {
            let recipe = choices
                .recipes
                .next()
                .or_else(|| search.next_recipe(guide?.recipe, &mut choices.rounds));
            let Some(recipe) = recipe else { break };
            let least_ns = best.map_or(u64::MAX, |best| best.predicted.period_ns.saturating_add(1));
            let below_ns = least_ns.min(self.below_ns);
            let candidate = self.try_out(recipe, below_ns, context, search, scratch)?;
            let is_better = |candidate: &Candidate| match (best, choices.to_beat) {
                (Some(best), _) => candidate.predicted.cost() < best.predicted.cost(),
                (None, Some(other)) => candidate.predicted.period_ns <= other.predicted.period_ns,
                (None, None) => true,
            };
            let better = candidate.filter(is_better);
            written_last = better.is_some();
            best = better.or(best);
            let guides = |candidate: &Candidate| {
                let is_least =
                    guide.is_none_or(|guide| candidate.predicted.cost() < guide.predicted.cost());
                candidate.is_paced() && (written_last || is_least)
            };
            if let Some(candidate) = candidate.filter(guides) {
                guide = Some(candidate);
                search.pressures.keep();
            }
        }
        match best {
            Some(best) if !written_last => self.again(best, context, search, scratch),
            best => Ok(best),
        }
    }

    /// Writes the best list so far again.
    pub(super) fn again<'s>(
        &mut self,
        best: Candidate<'s>,
        context: &Context<'_>,
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate<'s>>, PlanningError> {
        search.pressures.recall();
        self.try_out(best.recipe, u64::MAX, context, search, scratch)
    }

    /// Writes a list and judges it. `None` if it does not fit the budget, the host or the output,
    /// or if a rule's list is known to take `below_ns` or longer. A paced list that does not fit
    /// the host is written again for less host memory.
    fn try_out<'s>(
        &mut self,
        mut recipe: Recipe<'s>,
        below_ns: u64,
        context: &Context<'_>,
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate<'s>>, PlanningError> {
        let host_bytes = self.task.machine.host_bytes;
        loop {
            match self.try_once(recipe, below_ns, context, search, scratch) {
                Err(PlanningError::Plan(PlanError::HostMemory { needed_bytes, .. })) => {
                    let least = self.host_shortage_bytes.get_or_insert(needed_bytes);
                    *least = needed_bytes.min(*least);
                    match recipe.on_less_host(needed_bytes, host_bytes) {
                        Some(less) => recipe = less,
                        None => return Ok(None),
                    }
                }
                tried => return tried,
            }
        }
    }

    /// Does the same, but fails if the host has too little memory for the list.
    fn try_once<'s>(
        &mut self,
        mut recipe: Recipe<'s>,
        below_ns: u64,
        context: &Context<'_>,
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate<'s>>, PlanningError> {
        let is_of_rule = matches!(recipe, Recipe::Of(..));
        if is_of_rule {
            let least_ns = self.before_written_ns(recipe, context, scratch)?;
            if least_ns >= below_ns {
                self.least_ns = self.least_ns.min(least_ns);
                return Ok(None);
            }
        }
        let lengths = loop {
            match self.write(recipe, context, search, &mut scratch.reborrow()) {
                Ok(lengths) => break lengths,
                Err(Stuck::Scratch(error)) => return Err(error.into()),
                Err(Stuck::NoMemory) => return Ok(None),
                Err(Stuck::ManySteps { needed }) => {
                    let Some(coarser) = recipe.coarser(needed, self.steps.len()) else {
                        let least = self.steps_needed.get_or_insert(needed);
                        *least = needed.min(*least);
                        return Ok(None);
                    };
                    recipe = coarser;
                }
            }
        };
        if is_of_rule {
            let least_ns = self.written_ns(lengths, context.memory);
            if least_ns >= below_ns {
                self.least_ns = self.least_ns.min(least_ns);
                return Ok(None);
            }
        }
        let Task { sequence, machine, .. } = *self.task;
        let graph = sequence.graph();
        let (steps, resident) = (&self.steps[..lengths.steps], &self.resident[..lengths.resident]);
        let lists = Lists { steps, resident };
        let plan = context.memory.plan(self.task, context.arena, lists, self.tables.reborrow())?;
        let mut scratch = scratch.reborrow();
        let schedule = scratch.take(plan.steps.len(), Scheduled::EMPTY)?;
        let pieces = Pieces::new(graph, machine, &plan, &mut scratch)?;
        let schedule = lower_pieces(graph, &plan, &pieces, schedule, &mut scratch)?;
        let (predicted, _) =
            predict_pieces(graph, machine, &plan, &pieces, &schedule, &mut scratch)?;
        if predicted.host_bytes > machine.host_bytes {
            // Temporaries may share host offsets, which takes time to find out.
            HostLayout::of_pieces(graph, machine, &plan, &pieces, &mut scratch)?;
        }
        if is_of_rule {
            self.least_ns = self.least_ns.min(predicted.period_ns);
        }
        let is_ideal = sequence.is_ideal(predicted.period_ns);
        Ok(Some(Candidate { recipe, lengths, predicted, is_ideal }))
    }

    /// A lower bound of the time of a list's plan, before the list is written.
    fn before_written_ns(
        &self,
        recipe: Recipe<'_>,
        context: &Context<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, OutOfScratch> {
        let launches_ns = self.task.sequence.launches_ns();
        match recipe {
            Recipe::Of((_, rule), list) => {
                Ok(rule.least_ns(list, (self.task, context.memory), scratch)?.max(launches_ns))
            }
            Recipe::Paced(_) => Ok(launches_ns),
        }
    }

    /// A lower bound of the time of a written list's plan: the time of its launches, or of its
    /// transfers on the busier link. O(steps).
    fn written_ns(&self, Lengths { steps, .. }: Lengths, memory: &Memory<'_>) -> u64 {
        let time_ns = |direction, part: Part| {
            let to = part.first.saturating_add(part.count);
            let bytes = memory.bytes(self.task, part.tensor, part.first, to);
            self.task.machine.transfer_ns(direction, bytes).unwrap_or(u64::MAX)
        };
        let (mut up_ns, mut down_ns) = (0u64, 0u64);
        for step in &self.steps[..steps] {
            match *step {
                Step::Prefetch(part) => {
                    up_ns = up_ns.saturating_add(time_ns(Direction::HostToDevice, part));
                }
                Step::Offload(part) => {
                    down_ns = down_ns.saturating_add(time_ns(Direction::DeviceToHost, part));
                }
                Step::Launch(_) | Step::Host(_) | Step::Evict(_) => {}
            }
        }
        self.task.sequence.launches_ns().max(up_ns).max(down_ns)
    }

    fn write(
        &mut self,
        recipe: Recipe<'_>,
        context: &Context<'_>,
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        let mut scratch = scratch.reborrow();
        let (task, Context { memory, uses, .. }) = (self.task, *context);
        let list = List::new(self.steps, self.resident);
        let builder = Builder::new(task, memory, uses, list, &mut scratch)?;
        match recipe {
            // Only paced lists support slabs.
            Recipe::Of(..) if memory.pools() > 1 => Err(Stuck::NoMemory),
            Recipe::Of((_, rule), list) => rule.write(list, builder, search, &mut scratch),
            Recipe::Paced(Paced { choosing, pace }) => {
                let Search { gaps, pressures } = search;
                choice::choose(task, memory, gaps, choosing, pressures, &mut scratch)?;
                paced::write(builder, gaps, pace, &mut pressures.seen, &mut scratch)
            }
        }
    }
}
