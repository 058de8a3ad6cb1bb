//! Rounds of lists that add repeats to a sequence.
//!
//! One price of compute leads to one list of launches. If links limit the plan and compute idles,
//! the best price is a hundredth of the best price under limiting compute, so a round must find the
//! scale of prices. Then it goes on with the pressures of the lists so far. In the next round the
//! best list replaces the sequence, so that repeated values may be dropped again.

#![expect(
    clippy::indexing_slicing,
    reason = "prices are below `PRICES`, and lengths are those of lists in these buffers"
)]

use super::climb::{CLIMBED, Climb};
use super::judged::{Judged, Known, Rank};
use super::{Prices, Unrolled};
use crate::graph::OpId;
use crate::planner::choice::Weight;
use crate::planner::error::PlanningError;
use crate::planner::gaps::Gaps;
use crate::planner::host_memory::UNLIMITED;
use crate::planner::memory::{self, Memory};
use crate::planner::order;
use crate::planner::pressure::Pressure;
use crate::planner::recipe::{BY_DENSITY, BY_SPREAD};
use crate::planner::request::{Output, PoolTables, Task};
use crate::planner::strategy::Need;
use crate::planner::trials::{Context, Judging, Search, Trials};
use crate::planner::uses::Uses;
use crate::scratch::{Limits, MOST_LAUNCHES, Scratch, larger, total, words};
use crate::sequence::Sequence;

/// Factors of the best price, in percent. Lists that use the pressures of earlier lists take them
/// in turn.
const LEARNING: [u64; 8] = [100, 90, 110, 80, 125, 100, 90, 110];

/// The [`load_percent`](Prices::load_percent) of the first lists, and of lists with learned
/// pressures, which already include the load of the links.
const LOAD_PERCENT: [u64; 2] = [100, 20];

/// A sequence is [judged](Trials::sample_paced) by several lists if its first list exceeds the best
/// period so far by at most this fraction.
const NEAR: u64 = 200;

/// The number of lists that judge a sequence, as long as each is shorter than the one before it.
const JUDGES: usize = 2;

/// The number of lists in a round that use learned pressures.
const LEARNED: usize = 24;

/// The number of lists in a round.
const ROUND: usize = CLIMBED + LEARNED;

/// The number of lists in a round if there are too few lists for a whole one. A balance: with fewer
/// lists, prices are too far apart.
const SHORT_ROUND: usize = 24;

/// The most rounds with a plan. No work gained more than 0.1 % of its period by further rounds.
const ROUNDS: usize = 3;

/// The most rounds without a plan. Each round lacks less host memory than the round before it.
const MOST_WITHOUT_PLAN: usize = 16;

/// The search tries at most this many lists in rounds with a plan.
pub(in crate::planner) const MOST_LISTS: usize = ROUNDS * ROUND;

/// Words of scratch that [`extend`] and [`add_repeats`] need.
pub(super) const fn scratch_words(limits: &Limits) -> usize {
    let probe = total([
        words::<OpId>(limits.ops),
        words::<u32>(limits.ops),
        larger(
            super::scratch_words(limits),
            Sequence::scratch_words(limits).saturating_add(judge_words(limits)),
        ),
    ]);
    total([
        Sequence::scratch_words(limits),
        memory::scratch_words(limits),
        Gaps::scratch_words(limits),
        Pressure::scratch_words(limits),
        Known::scratch_words(limits),
        probe,
    ])
}

/// Words of scratch that [`judge`] needs.
pub(super) const fn judge_words(limits: &Limits) -> usize {
    total([
        memory::scratch_words(limits),
        Uses::scratch_words(limits),
        Search::scratch_words(limits),
    ])
}

/// A sequence, and the period of its sampled plan.
pub(in crate::planner) type Found<'s> = (Sequence<'s>, u64);

/// The best list of launches so far. If no list has a plan yet, the list that exceeds host memory
/// least, to which more repeats may be added.
pub(super) struct Incumbent<'l> {
    pub(super) judged: Judged,
    launches: &'l mut [OpId],
    len: usize,
    /// How the lists that judge sequences with repeats take gaps.
    weight: Weight,
}

impl<'l> Incumbent<'l> {
    pub(super) fn new(task: &Task<'_>, scratch: &mut Scratch<'l>) -> Result<Self, PlanningError> {
        let most = task.sequence.graph().ops().len().saturating_mul(MOST_LAUNCHES);
        let launches = scratch.take(most, OpId(0))?;
        Ok(Self { judged: Judged::UNKNOWN, launches, len: 0, weight: Weight::Density })
    }

    /// The same, judged by lists that spread their transfers.
    pub(super) fn by_spread(self) -> Self {
        Self { weight: Weight::Spread, ..self }
    }

    /// The list as a sequence, and the period of its plan.
    pub(super) fn sequence<'s>(
        &self,
        task: &Task<'s>,
        scratch: &mut Scratch<'s>,
    ) -> Result<Option<Found<'s>>, PlanningError> {
        let Some(period_ns) = self.period_ns() else { return Ok(None) };
        Ok(Some((task.sequence.in_order(self.launches(), scratch)?, period_ns)))
    }

    /// Does the same; `None` if one of the other lists is the same one.
    pub(super) fn other_sequence<'s>(
        &self,
        others: &[&Self],
        task: &Task<'s>,
        scratch: &mut Scratch<'s>,
    ) -> Result<Option<Found<'s>>, PlanningError> {
        match others.iter().any(|other| other.launches().eq(self.launches())) {
            true => Ok(None),
            false => self.sequence(task, scratch),
        }
    }

    /// The rank of the list; a better list has a smaller rank.
    pub(super) fn rank(&self) -> Rank {
        self.judged.rank()
    }

    pub(super) fn period_ns(&self) -> Option<u64> {
        self.judged.cost.map(|(period_ns, _)| period_ns)
    }

    /// A sequence whose first list takes longer than this is judged by that list alone.
    fn near_ns(&self) -> u64 {
        let least_ns = self.period_ns().unwrap_or(u64::MAX);
        least_ns.saturating_add(least_ns / NEAR)
    }

    pub(super) fn launches(&self) -> impl Iterator<Item = OpId> + Clone {
        self.launches[..self.len].iter().copied()
    }

    /// Keeps a list if it is better.
    pub(super) fn keep_if_better(&mut self, judged: Judged, launches: impl Iterator<Item = OpId>) {
        if self.rank() <= judged.rank() {
            return;
        }
        self.judged = judged;
        self.len = 0;
        for (kept, op) in self.launches.iter_mut().zip(launches) {
            *kept = op;
            self.len = self.len.saturating_add(1);
        }
    }
}

/// Adds repeats in rounds, until a round gains nothing or no lists are left.
pub(super) fn extend(
    task: &Task<'_>,
    incumbent: &mut Incumbent<'_>,
    lists: usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let mut left = lists;
    // If there are few lists, another round gains more than better prices in the first round.
    let round = if lists < ROUND { SHORT_ROUND } else { ROUND };
    let (mut rounds, mut without_plan) = (0usize, 0usize);
    while rounds < ROUNDS && without_plan < MOST_WITHOUT_PLAN {
        let before = incumbent.rank();
        add_repeats(task, incumbent, (round, &mut left), output, scratch)?;
        if incumbent.rank() == before {
            break;
        }
        // Rounds without a plan and their lists do not count.
        match incumbent.period_ns() {
            None => (left, without_plan) = (lists, without_plan.saturating_add(1)),
            Some(_) if left == 0 => break,
            Some(_) => rounds = rounds.saturating_add(1),
        }
    }
    Ok(())
}

/// Tries lists that add repeats to the best list so far, or to the first sequence.
pub(super) fn add_repeats(
    first: &Task<'_>,
    incumbent: &mut Incumbent<'_>,
    (round, left): (usize, &mut usize),
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let mut scratch = scratch.reborrow();
    let extended = match incumbent.len {
        0 => None,
        _ => Some(first.sequence.in_order(incumbent.launches(), &mut scratch)?),
    };
    let base = Task { sequence: extended.as_ref().unwrap_or(first.sequence), ..*first };
    Round::new(&base, incumbent, output.reborrow(), &mut scratch)?.run(round, left, &mut scratch)
}

/// A round: lists that add repeats to one sequence.
struct Round<'r, 'l, 'o> {
    base: &'r Task<'r>,
    memory: Memory<'r>,
    gaps: Gaps<'r>,
    used: Pressure<'r>,
    output: Output<'o>,
    /// The best list of all rounds.
    incumbent: &'r mut Incumbent<'l>,
    known: Known<'r>,
}

impl<'r, 'l, 'o> Round<'r, 'l, 'o> {
    fn new(
        base: &'r Task<'r>,
        incumbent: &'r mut Incumbent<'l>,
        mut output: Output<'o>,
        scratch: &mut Scratch<'r>,
    ) -> Result<Self, PlanningError> {
        let memory = Memory::new(base, Need::LargestOp, output.reborrow().arena, scratch)?;
        let gaps = Gaps::new(base.sequence, scratch)?;
        let used = Pressure::new(base.sequence.len(), scratch)?;
        let known = Known::new(base.sequence.len(), scratch)?;
        Ok(Self { base, memory, gaps, used, output, incumbent, known })
    }

    /// Tries prices, then lists with learned pressures, as long as there are lists left. Each of
    /// the two gets about half of `lists`.
    fn run(
        &mut self,
        lists: usize,
        left: &mut usize,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let for_later = left.saturating_sub(lists / 2);
        let before = self.incumbent.rank();
        let at_rest = self.used.mean_of_links();
        let mut climb = Climb::new();
        while let Some(at) = climb.next().filter(|_| *left > for_later) {
            let price = (Climb::price(at), false);
            let Some(judged) = self.try_price(price, left, scratch)? else { return Ok(()) };
            climb.record(at, judged.rank());
            let has_plan = self.incumbent.period_ns().is_some();
            let lacks_less = !has_plan && self.incumbent.rank() < before;
            if lacks_less && climb.tried_coarse() {
                // The next round adds repeats to the list that lacks least host memory. That finds
                // a plan with fewer lists than more prices do.
                return Ok(());
            }
        }
        let (best, mut least) = climb.best;
        let mut price = Climb::price(best);
        for percent in LEARNING.into_iter().cycle().take(LEARNED.min(lists / 2)) {
            // If links are under less pressure, a nanosecond of a link costs less.
            let scale = self.used.mean_of_links();
            let tried = price.saturating_mul(percent) / 100;
            let scaled = (tried.saturating_mul(scale).checked_div(at_rest).unwrap_or(tried), true);
            let Some(found) = self.try_price(scaled, left, scratch)? else { return Ok(()) };
            if found.rank() < least {
                (price, least) = (tried, found.rank());
            }
        }
        Ok(())
    }

    /// Judges the list of a price, by learned pressures or not. If the host has too little memory
    /// for that list, also judges one that fits the host. Returns `None` if no lists are left.
    fn try_price(
        &mut self,
        (compute_price, learns): (u64, bool),
        left: &mut usize,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Judged>, PlanningError> {
        let Some(fewer) = left.checked_sub(1) else { return Ok(None) };
        *left = fewer;
        let load_percent = LOAD_PERCENT[usize::from(learns)];
        let prices = Prices { compute_price, load_percent, host_bytes: UNLIMITED };
        let mut judged = self.probe(prices, learns, scratch)?;
        if judged.excess_bytes > 0 {
            let prices = Prices { host_bytes: self.base.machine.host_bytes, ..prices };
            let within = self.probe(prices, learns, scratch)?;
            judged.cost = within.cost.into_iter().chain(judged.cost).min();
        }
        Ok(Some(judged))
    }

    /// Judges the list of some prices, and keeps it if it is the best so far.
    fn probe(
        &mut self,
        prices: Prices,
        learns: bool,
        scratch: &mut Scratch<'_>,
    ) -> Result<Judged, PlanningError> {
        let mut scratch = scratch.reborrow();
        let base = self.base.sequence;
        let list = scratch.take(self.incumbent.launches.len(), OpId(0))?;
        let positions = scratch.take(base.len(), 0u32)?;
        let lists = Unrolled { launches: &mut *list, positions: &mut *positions };
        let (memory, gaps, used) = (&self.memory, &mut self.gaps, &self.used);
        let launches = super::launches(self.base, memory, gaps, used, prices, lists, &mut scratch)?;
        let Some(launches) = launches else { return Ok(Judged::default()) };
        let hash = order::hash(list[..launches].iter().copied());
        let known = self.known.get_or_judge(hash, |pressure| {
            let order = list[..launches].iter().copied();
            let sequence = base.in_order(order.clone(), &mut scratch)?;
            let task = Task { sequence: &sequence, ..*self.base };
            let judges = match self.incumbent.weight {
                Weight::Density => &BY_DENSITY,
                Weight::Spread => &BY_SPREAD,
            };
            let near_ns = self.incumbent.near_ns();
            let judging = Judging { near_ns, judges: &judges[..JUDGES] };
            let seen = Some((pressure, &*positions));
            let judged = judge(&task, self.output.reborrow(), judging, seen, &mut scratch)?;
            self.incumbent.keep_if_better(judged, order);
            Ok::<_, PlanningError>(judged)
        })?;
        if learns && known.judged.cost.is_some() {
            self.used.approach(&known.pressure);
        }
        Ok(known.judged)
    }
}

/// Writes paced lists of a sequence, and judges it by the best one. If one fits, `seen`
/// becomes the pressures of the last one, by the positions of the base's launches.
pub(super) fn judge(
    task: &Task<'_>,
    output: Output<'_>,
    judging: Judging,
    seen: Option<(&mut Pressure<'_>, &[u32])>,
    scratch: &mut Scratch<'_>,
) -> Result<Judged, PlanningError> {
    let mut scratch = scratch.reborrow();
    let Output { steps, resident, arena, pools, tensor_pool } = output;
    let mut trials = Trials::new(task, steps, resident, PoolTables { pools, tensor_pool });
    let memory = match Memory::new(task, Need::LargestOp, arena, &mut scratch) {
        // More small tensors may lie in the arena for longer, so that it does not fit.
        Err(PlanningError::Infeasible { .. }) => return Ok(Judged::default()),
        memory => memory?,
    };
    let uses = Uses::new(task.sequence, &mut scratch)?;
    let context = Context { memory: &memory, uses: &uses, arena: &arena[..memory.placed] };
    let mut search = Search::new(task.sequence, &mut scratch)?;
    let predicted = trials.sample_paced(judging, &context, &mut search, &mut scratch)?;
    let excess_bytes = trials
        .host_shortage_bytes
        .map_or(0, |needed_bytes| needed_bytes.saturating_sub(task.machine.host_bytes).max(1));
    if let (Some(_), Some((pressure, positions))) = (predicted, seen) {
        pressure.copy_at(&search.pressures.seen, positions);
    }
    Ok(Judged { cost: predicted.map(|predicted| predicted.cost()), excess_bytes })
}
