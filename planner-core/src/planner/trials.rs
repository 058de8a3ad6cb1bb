//! Where lists are written and judged by the timeline, one at a time.

use super::builder::{Builder, Lengths, Stuck};
use super::chance::Chance;
use super::choice::{self, Weight};
use super::error::PlanningError;
use super::gaps::Gaps;
use super::memory::Memory;
use super::pressure::{Pressure, Pressures};
use super::recipe::{LARGE_OPS, PACES, Recipe, Rounds, SAMPLE};
use super::request::Task;
use super::strategy::Strategy;
use super::uses::Uses;
use super::{checkpoint, fit, in_core, lms, on_demand, paced, vdnn, weights, window};
use crate::host::HostLayout;
use crate::lower::lower_pieces;
use crate::pieces::Pieces;
use crate::plan::{ArenaPlacement, PlanError, Pool, Prediction, Resident, Step};
use crate::schedule::Scheduled;
use crate::scratch::{Limits, OutOfScratch, Scratch};
use crate::sequence::Sequence;
use crate::timeline::predict_pieces;
use core::iter;

/// What all lists of one task stand on.
#[derive(Clone, Copy)]
pub(super) struct Basis<'g> {
    pub(super) memory: &'g Memory<'g>,
    pub(super) uses: &'g Uses<'g>,
    pub(super) arena: &'g [ArenaPlacement],
}

/// A list that has been written and judged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    recipe: Recipe,
    pub(super) lengths: Lengths,
    pub(super) predicted: Prediction,
}

impl Candidate {
    fn cost(&self) -> (u64, u64) {
        self.predicted.cost()
    }

    fn is_paced(&self) -> bool {
        matches!(self.recipe, Recipe::Paced { .. })
    }

    /// Whether no list can be faster.
    pub(super) fn is_ideal(&self) -> bool {
        self.predicted.period_ns == self.predicted.compute_ns
    }
}

/// Lists to choose from.
struct Lists<R> {
    recipes: R,
    /// How many more are chosen anew.
    rounds: Rounds,
    /// A list that the best has to be no worse than.
    to_beat: Option<Candidate>,
}

/// What paced lists are made of, and what one teaches the next.
#[derive(Debug)]
pub(super) struct Search<'s> {
    gaps: Gaps<'s>,
    pressures: Pressures<'s>,
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

    /// The pressures that the last list showed.
    pub(super) const fn seen(&self) -> &Pressure<'s> {
        &self.pressures.seen
    }

    /// The next of the lists that are chosen anew, by the best paced one so far; none behind
    /// the last.
    fn anew(&mut self, guide: Recipe, rounds: &mut Rounds) -> Option<Recipe> {
        let Recipe::Paced { spare_permille, pace, .. } = guide else { return None };
        if let Some(turns) = rounds.turns.checked_sub(1) {
            rounds.turns = turns;
            self.pressures.turn();
            let pace = PACES[turns % PACES.len()];
            return Some(Recipe::Paced { spare_permille, weight: Weight::Density, pace });
        }
        rounds.shakes = rounds.shakes.checked_sub(1)?;
        let mut chance = Chance::new(rounds.shakes as u64);
        self.pressures.shake(&mut chance);
        Some(Recipe::nearby(spare_permille, pace, &mut chance))
    }
}

/// Where lists are written and judged, one at a time.
pub(super) struct Trials<'d, 'r> {
    pub(super) task: &'r Task<'r>,
    pub(super) steps: &'d mut [Step],
    pub(super) resident: &'d mut [Resident],
    pub(super) pools: &'d mut [Pool],
    pub(super) tensor_pool: &'d mut [u32],
    /// The least host memory of the lists that need more than there is.
    pub(super) host_shortage_bytes: Option<u64>,
    /// Of the lists for which there are too few steps, what the shortest needs.
    pub(super) steps_needed: Option<usize>,
}

impl<'d, 'r> Trials<'d, 'r> {
    pub(super) const fn new(
        task: &'r Task<'r>,
        steps: &'d mut [Step],
        resident: &'d mut [Resident],
        (pools, tensor_pool): (&'d mut [Pool], &'d mut [u32]),
    ) -> Self {
        let (host_shortage_bytes, steps_needed) = (None, None);
        Self { task, steps, resident, pools, tensor_pool, host_shortage_bytes, steps_needed }
    }

    /// What the best of a sample of lists comes to; none where none of them fits.
    pub(super) fn sample(
        &mut self,
        basis: &Basis<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Prediction>, PlanningError> {
        let mut scratch = scratch.reborrow();
        let mut search = Some(Search::new(self.task.sequence, &mut scratch)?);
        let mut best: Option<Prediction> = None;
        for recipe in SAMPLE {
            let candidate = self.try_out(recipe, basis, &mut search, &mut scratch)?;
            if let Some(Candidate { predicted, .. }) = candidate
                && best.is_none_or(|best| predicted.period_ns < best.period_ns)
            {
                best = Some(predicted);
            }
            if best.is_some() && self.task.sequence.len() >= LARGE_OPS {
                break;
            }
        }
        Ok(best)
    }

    /// The better of the first two paced lists.
    pub(super) fn sample_paced(
        &mut self,
        basis: &Basis<'_>,
        search: &mut Option<Search<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Prediction>, PlanningError> {
        let first = self.try_out(SAMPLE[1], basis, search, scratch)?;
        Ok(first.map(|candidate| candidate.predicted))
    }

    /// The best list of a strategy, written; none where no recipe fits the budget.
    pub(super) fn best(
        &mut self,
        strategy: Strategy,
        basis: &Basis<'_>,
        search: &mut Option<Search<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate>, PlanningError> {
        let [rounds, _] = strategy.rounds(self.task.sequence.len());
        let lists = Lists { recipes: strategy.recipes(self.task), rounds, to_beat: None };
        self.best_of(lists, strategy.takes_first(), basis, search, scratch)
    }

    /// A list that is no worse than the best on another basis, written, and that it is on that;
    /// or the best on its own basis, written once more.
    pub(super) fn keep_better(
        &mut self,
        strategy: Strategy,
        best: Candidate,
        [own, other]: [Basis<'_>; 2],
        search: &mut Option<Search<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(Candidate, bool), PlanningError> {
        if let Some(better) = self.better(strategy, best, &other, search, scratch)? {
            return Ok((better, true));
        }
        let again = self.again(best, &own, search, scratch)?;
        Ok((again.unwrap_or(best), false))
    }

    /// A list that is no worse than another on a basis that has changed since, written; none
    /// where none is found.
    fn better(
        &mut self,
        strategy: Strategy,
        than: Candidate,
        basis: &Basis<'_>,
        search: &mut Option<Search<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate>, PlanningError> {
        let [_, rounds] = strategy.rounds(self.task.sequence.len());
        let rounds = if than.is_ideal() { Rounds::default() } else { rounds };
        let lists = Lists { recipes: iter::once(than.recipe), rounds, to_beat: Some(than) };
        search.iter_mut().for_each(|search| search.pressures.recall());
        self.best_of(lists, false, basis, search, scratch)
    }

    fn best_of(
        &mut self,
        mut lists: Lists<impl Iterator<Item = Recipe>>,
        takes_first: bool,
        basis: &Basis<'_>,
        search: &mut Option<Search<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate>, PlanningError> {
        let mut best: Option<Candidate> = None;
        // The best paced list, whose pressures are kept.
        let mut guide = lists.to_beat.filter(Candidate::is_paced);
        let mut written_last = false;
        while !best.is_some_and(|best| takes_first || best.is_ideal()) {
            let recipe = lists
                .recipes
                .next()
                .or_else(|| search.as_mut()?.anew(guide?.recipe, &mut lists.rounds));
            let Some(recipe) = recipe else { break };
            let candidate = self.try_out(recipe, basis, search, scratch)?;
            let is_better = |candidate: &Candidate| match (best, lists.to_beat) {
                (Some(best), _) => candidate.cost() < best.cost(),
                (None, Some(other)) => candidate.cost() <= other.cost(),
                (None, None) => true,
            };
            let better = candidate.filter(is_better);
            written_last = better.is_some();
            best = better.or(best);
            let guides = |candidate: &Candidate| {
                let is_least = guide.is_none_or(|guide| candidate.cost() < guide.cost());
                candidate.is_paced() && (written_last || is_least)
            };
            if let Some(candidate) = candidate.filter(guides) {
                guide = Some(candidate);
                search.iter_mut().for_each(|search| search.pressures.keep());
            }
        }
        match best {
            Some(best) if !written_last => self.again(best, basis, search, scratch),
            best => Ok(best),
        }
    }

    /// The best list so far, written once more.
    fn again(
        &mut self,
        best: Candidate,
        basis: &Basis<'_>,
        search: &mut Option<Search<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate>, PlanningError> {
        search.iter_mut().for_each(|search| search.pressures.recall());
        self.try_out(best.recipe, basis, search, scratch)
    }

    /// Writes a list and judges it; none where it does not fit the budget, the
    /// host, or the output.
    fn try_out(
        &mut self,
        recipe: Recipe,
        basis: &Basis<'_>,
        search: &mut Option<Search<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Candidate>, PlanningError> {
        let lengths = match self.write(recipe, basis, search, &mut scratch.reborrow())? {
            Ok(lengths) => lengths,
            Err(Stuck::NoRoom) => return Ok(None),
            Err(Stuck::ManySteps { needed }) => {
                let least = self.steps_needed.get_or_insert(needed);
                *least = needed.min(*least);
                return Ok(None);
            }
        };
        let Task { sequence, machine, .. } = *self.task;
        let graph = sequence.graph();
        let lists = (&self.steps[..lengths.steps], &self.resident[..lengths.resident]);
        let pools = (&mut *self.pools, &mut *self.tensor_pool);
        let plan = basis.memory.plan(self.task, basis.arena, lists, pools)?;
        let mut scratch = scratch.reborrow();
        let schedule = scratch.take(plan.steps.len(), Scheduled::EMPTY)?;
        let pieces = Pieces::new(graph, machine, &plan, &mut scratch)?;
        let schedule = lower_pieces(graph, &plan, &pieces, schedule, &mut scratch)?;
        let (predicted, _) =
            predict_pieces(graph, machine, &plan, &pieces, &schedule, &mut scratch)?;
        if predicted.host_bytes > machine.host_bytes {
            // Temporaries may share room, but that takes time to find out.
            match HostLayout::of_pieces(graph, machine, &plan, &pieces, &mut scratch) {
                Err(PlanError::HostMemory { needed_bytes, .. }) => {
                    let least = self.host_shortage_bytes.get_or_insert(needed_bytes);
                    *least = needed_bytes.min(*least);
                    return Ok(None);
                }
                layout => layout.map(|_| ())?,
            }
        }
        Ok(Some(Candidate { recipe, lengths, predicted }))
    }

    fn write(
        &mut self,
        recipe: Recipe,
        basis: &Basis<'_>,
        search: &mut Option<Search<'_>>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Result<Lengths, Stuck>, OutOfScratch> {
        let output = (&mut *self.steps, &mut *self.resident);
        let mut scratch = scratch.reborrow();
        let Basis { memory, uses, .. } = *basis;
        let builder = Builder::new(self.task, memory, uses, output, &mut scratch)?;
        if memory.pools() > 1 && !matches!(recipe, Recipe::Paced { .. }) {
            return Ok(Err(Stuck::NoRoom));
        }
        match recipe {
            Recipe::InCore { early_inputs } => Ok(in_core::write(builder, early_inputs)),
            Recipe::OnDemand => on_demand::write(builder, &mut scratch),
            Recipe::Fit => fit::write(builder, &mut scratch),
            Recipe::Vdnn => vdnn::write(builder, &mut scratch),
            Recipe::Weights(way) => weights::write(builder, way, &mut scratch),
            Recipe::Lms { threshold, ahead } => lms::write(builder, threshold, ahead, &mut scratch),
            Recipe::Window { window, bytes } => window::write(builder, window, bytes, &mut scratch),
            Recipe::Offloaded { pace } => {
                let Some(Search { gaps, pressures }) = search else {
                    return Ok(Err(Stuck::NoRoom));
                };
                checkpoint::write_offloaded(builder, gaps, pace, &mut pressures.seen, &mut scratch)
            }
            Recipe::Paced { spare_permille, weight, pace } => {
                let Some(Search { gaps, pressures }) = search else {
                    return Ok(Err(Stuck::NoRoom));
                };
                let chosen = choice::choose(
                    self.task,
                    memory,
                    gaps,
                    (spare_permille, weight),
                    pressures,
                    &mut scratch,
                )?;
                match chosen {
                    Ok(()) => paced::write(builder, gaps, pace, &mut pressures.seen, &mut scratch),
                    Err(stuck) => Ok(Err(stuck)),
                }
            }
        }
    }
}
