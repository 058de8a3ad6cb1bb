//! The search for the repeats that make the shortest plan.
//!
//! One price of compute leads to one list of launches. Prices are tried from a coarse grid; where
//! links limit and compute idles, far lower ones, by bisection on what limits; then
//! near the best one, then with the pressures that the lists so far showed. In the next round the
//! best list replaces the sequence, so that what was made again may be dropped again. Where memory is
//! so short that much has to be made again, no price leads to lists as good as the segments of
//! [checkpointing](checkpoint), so that there is a search from these too.

use super::{Prices, Unrolled};
use crate::graph::OpId;
use crate::machine::transmission_ns;
use crate::plan::Prediction;
use crate::planner::checkpoint::{self, Staying};
use crate::planner::error::PlanningError;
use crate::planner::gaps::Gaps;
use crate::planner::memory::{self, Memory};
use crate::planner::pressure::Pressure;
use crate::planner::request::{Output, PoolTables, Task};
use crate::planner::strategy::Need;
use crate::planner::trials::{Basis, Search, Trials};
use crate::planner::uses::Uses;
use crate::scratch::{Limits, Scratch, larger, total, words};
use crate::sequence::Sequence;

/// What a nanosecond of compute costs where one of a link that is fully pressed costs 255, best
/// guess first. Most works have their best price between 3000 and 7000.
const COARSE: [u64; 7] = [4700, 3300, 6600, 2300, 9300, 1200, 16_000];

/// Where links limit and compute idles, compute is cheap, and the grid above is far off. How far down
/// the next price is then, until compute limits.
const DESCENT: u64 = 4;

/// Below this, all that can run again does.
const LEAST_PRICE: u64 = 16;

/// Prices this close, in percent, are the same.
const SAME: u64 = 130;

/// Of a period, in percent, what a link takes that limits, and what launches take at most then.
const BUSY: u64 = 90;
const IDLE: u64 = 85;

/// Factors, in percent, of the best price so far.
const FINE: [u64; 6] = [119, 84, 109, 92, 104, 96];

/// The same while the pressures of the lists before are learned.
const LEARNING: [u64; 8] = [100, 90, 110, 80, 125, 100, 90, 110];

/// Rounds beyond which no work gained more than 0.1 % of its period.
const ROUNDS: usize = 3;

/// Lists that are tried at most.
pub(in crate::planner) const MOST_LISTS: usize =
    ROUNDS * (COARSE.len() + FINE.len() + LEARNING.len());

/// Words of scratch that [`best`] and [`best_of_segments`] keep, each.
pub(in crate::planner) const fn kept_words(limits: &Limits) -> usize {
    words::<OpId>(limits.ops).saturating_add(Sequence::scratch_words(limits))
}

/// Words of scratch that [`best`] and [`best_of_segments`] ask for, by limits [with repeats](Limits::with_repeats).
pub(in crate::planner) const fn scratch_words(limits: &Limits) -> usize {
    let judge = total([
        memory::scratch_words(limits),
        Uses::scratch_words(limits),
        Search::scratch_words(limits),
    ]);
    let probe = total([
        words::<OpId>(limits.ops),
        words::<u32>(limits.ops),
        larger(super::scratch_words(limits), Sequence::scratch_words(limits).saturating_add(judge)),
    ]);
    let round = total([
        Sequence::scratch_words(limits),
        memory::scratch_words(limits),
        Gaps::scratch_words(limits),
        Pressure::scratch_words(limits),
        probe,
    ]);
    let segments = total([memory::scratch_words(limits), checkpoint::scratch_words(limits), judge]);
    kept_words(limits).saturating_add(larger(round, segments))
}

/// The best list of launches so far, and what a plan of it comes to: if there is none, the list that
/// needs least of the host, to which more repeats may be added.
struct Leader<'l> {
    predicted: Option<Prediction>,
    /// What the host has too little, if there is no plan.
    excess_bytes: u64,
    launches: &'l mut [OpId],
    len: usize,
}

impl<'l> Leader<'l> {
    fn new(task: &Task<'_>, scratch: &mut Scratch<'l>) -> Result<Self, PlanningError> {
        let most = task.sequence.graph().ops().len().saturating_mul(2);
        let launches = scratch.take(most, OpId(0))?;
        Ok(Self { predicted: None, excess_bytes: u64::MAX, launches, len: 0 })
    }

    /// The list as a sequence, and what a plan of it comes to.
    fn sequence<'s>(
        &self,
        task: &Task<'s>,
        scratch: &mut Scratch<'s>,
    ) -> Result<Option<(Sequence<'s>, Prediction)>, PlanningError> {
        let Some(predicted) = self.predicted else { return Ok(None) };
        Ok(Some((task.sequence.in_order(self.launches(), scratch)?, predicted)))
    }

    /// What there is less of, the better the list is.
    fn rank(&self) -> Rank {
        Judged { predicted: self.predicted, excess_bytes: self.excess_bytes }.rank()
    }

    fn launches(&self) -> impl Iterator<Item = OpId> + Clone {
        self.launches[..self.len].iter().copied()
    }

    /// Keeps a list if it is better.
    fn offer(&mut self, sequence: &Sequence<'_>, judged: Judged) {
        if self.rank() <= judged.rank() {
            return;
        }
        Judged { predicted: self.predicted, excess_bytes: self.excess_bytes } = judged;
        self.len = sequence.len();
        for (kept, launch) in self.launches.iter_mut().zip(sequence.launches()) {
            *kept = sequence.op(launch);
        }
    }
}

/// The best sequence with repeats of `lists` that are tried, and what a plan of it comes to; none
/// where none is found.
pub(in crate::planner) fn best<'s>(
    task: &Task<'s>,
    lists: usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'s>,
) -> Result<Option<(Sequence<'s>, Prediction)>, PlanningError> {
    let mut leader = Leader::new(task, scratch)?;
    extend(task, &mut leader, lists, output, scratch)?;
    leader.sequence(task, scratch)
}

/// The same from the segments of checkpointing, as far as a plan of these is shorter than `than_ns`;
/// and the least time of the launches of any segments.
pub(in crate::planner) fn best_of_segments<'s>(
    task: &Task<'s>,
    (than_ns, staying): (u64, Staying),
    lists: usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'s>,
) -> Result<(Option<(Sequence<'s>, Prediction)>, u64), PlanningError> {
    let mut leader = Leader::new(task, scratch)?;
    if staying == Staying::Needed {
        // Memory is so short that another order than the best of those with each op once may do better.
        extend(task, &mut leader, lists, output, scratch)?;
    }
    let before = leader.rank();
    let launches_ns = try_segments(task, (than_ns, staying), &mut leader, output, scratch)?;
    if leader.rank() != before {
        extend(task, &mut leader, lists, output, scratch)?;
    }
    Ok((leader.sequence(task, scratch)?, launches_ns))
}

/// Adds repeats in rounds, as long as that gains anything and there are lists left.
fn extend(
    task: &Task<'_>,
    leader: &mut Leader<'_>,
    lists: usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let mut left = lists;
    for _round in 0..ROUNDS {
        let before = leader.rank();
        add_repeats(task, leader, &mut left, output, scratch)?;
        if left == 0 || leader.rank() == before {
            break;
        }
    }
    Ok(())
}

/// Tries lists that add repeats to the best one so far, or to the first.
fn add_repeats(
    first: &Task<'_>,
    leader: &mut Leader<'_>,
    left: &mut usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let mut scratch = scratch.reborrow();
    let extended = match leader.len {
        0 => None,
        _ => Some(first.sequence.in_order(leader.launches(), &mut scratch)?),
    };
    let base = Task { sequence: extended.as_ref().unwrap_or(first.sequence), ..*first };
    Round::new(&base, leader, output.reborrow(), &mut scratch)?.run(left, &mut scratch)
}

/// Tries the lists that each number of segments leads to, and returns the least time of the launches
/// of one. No plan takes less than its launches.
fn try_segments(
    task: &Task<'_>,
    (than_ns, staying): (u64, Staying),
    leader: &mut Leader<'_>,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<u64, PlanningError> {
    let (mut scratch, mut least_launches_ns) = (scratch.reborrow(), u64::MAX);
    let memory = checkpoint::memory(task, output.arena, &mut scratch)?;
    checkpoint::each(task, &memory, staying, &mut scratch, |sequence, scratch| {
        let least_ns = leader.predicted.map_or(than_ns, |predicted| predicted.period_ns);
        let launches_ns = sequence.compute_ns();
        least_launches_ns = least_launches_ns.min(launches_ns);
        if launches_ns < least_ns {
            let task = Task { sequence, ..*task };
            let judged = judge(&task, output.reborrow(), None, scratch)?;
            if judged.predicted.is_none_or(|found| found.period_ns < least_ns) {
                leader.offer(sequence, judged);
            }
        }
        Ok(())
    })?;
    Ok(least_launches_ns)
}

/// The tries of a round.
struct Tries<'t> {
    left: &'t mut usize,
    /// The mean pressure of the links before any was learned.
    at_rest: u64,
    /// The best price so far.
    top: Option<((u64, u64), u64)>,
}

/// Between which prices the best one is, by what limits.
#[derive(Clone, Copy, Debug, Default)]
struct Scale {
    /// The highest at which compute limits, as far as it is below the other.
    low: Option<u64>,
    /// The least at which compute idles.
    high: Option<u64>,
    /// Whether the coarse prices are left for lower ones.
    has_descended: bool,
}

impl Scale {
    /// The next price: of the coarse ones; where the first is too high, a lower one, then one between
    /// those on both sides.
    fn next(&mut self, coarse: &mut impl Iterator<Item = u64>) -> Option<u64> {
        let next = match (self.low, self.high) {
            (None, Some(high)) => high / DESCENT,
            (Some(low), Some(high)) if self.has_descended => {
                let is_same = high.saturating_mul(100) <= low.saturating_mul(SAME);
                if is_same { 0 } else { low.saturating_mul(high).isqrt() }
            }
            _ => return coarse.next(),
        };
        self.has_descended = true;
        (next >= LEAST_PRICE).then_some(next)
    }

    fn see(&mut self, price: u64, is_idle: bool) {
        if is_idle {
            self.high = Some(self.high.map_or(price, |high| high.min(price)));
            self.low = self.low.filter(|&low| Some(low) < self.high);
        } else if self.high.is_none_or(|high| price < high) {
            self.low = Some(self.low.map_or(price, |low| low.max(price)));
        }
    }
}

/// The host's bytes that are missing, the period and the repeats.
type Rank = (u64, (u64, u64));

/// What a paced list comes to, if it fits.
#[derive(Clone, Copy, Debug, Default)]
struct Judged {
    predicted: Option<Prediction>,
    /// What the host had too little before less was moved.
    excess_bytes: u64,
}

impl Judged {
    fn rank(&self) -> Rank {
        match (self.predicted, self.excess_bytes) {
            (Some(predicted), _) => (0, predicted.cost()),
            (None, 0) => (u64::MAX, (0, 0)),
            (None, excess_bytes) => (excess_bytes, (0, 0)),
        }
    }
}

/// Lists that add repeats to one sequence.
struct Round<'r, 'l, 'o> {
    base: &'r Task<'r>,
    memory: Memory<'r>,
    gaps: Gaps<'r>,
    used: Pressure<'r>,
    output: Output<'o>,
    /// The best list of all rounds.
    leader: &'r mut Leader<'l>,
}

impl<'r, 'l, 'o> Round<'r, 'l, 'o> {
    fn new(
        base: &'r Task<'r>,
        leader: &'r mut Leader<'l>,
        mut output: Output<'o>,
        scratch: &mut Scratch<'r>,
    ) -> Result<Self, PlanningError> {
        let memory = Memory::new(base, Need::LargestOp, output.reborrow().arena, scratch)?;
        let gaps = Gaps::new(base.sequence, scratch)?;
        let used = Pressure::new(base.sequence.len(), scratch)?;
        Ok(Self { base, memory, gaps, used, output, leader })
    }

    /// Tries one price after the other, as long as there are lists left.
    fn run(&mut self, left: &mut usize, scratch: &mut Scratch<'_>) -> Result<(), PlanningError> {
        let mut tries = Tries { left, at_rest: self.used.mean_of_links(), top: None };
        let (mut scale, mut coarse) = (Scale::default(), COARSE.iter().copied());
        while let Some(price) = scale.next(&mut coarse) {
            let Some(judged) = self.try_price(price, 100, false, &mut tries, scratch)? else {
                return Ok(());
            };
            let is_idle = judged.predicted.is_some_and(|found| self.is_idle(&found));
            scale.see(price, is_idle || judged.excess_bytes > 0);
        }
        let fine = FINE.iter().map(|&percent| (percent, false));
        for (percent, learns) in fine.chain(LEARNING.iter().map(|&percent| (percent, true))) {
            let Some((_, price)) = tries.top else { return Ok(()) };
            if self.try_price(price, percent, learns, &mut tries, scratch)?.is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Tries a price, of which so many percent are taken; none where no list is left to be tried.
    fn try_price(
        &mut self,
        price: u64,
        percent: u64,
        learns: bool,
        tries: &mut Tries<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Judged>, PlanningError> {
        let Some(fewer) = tries.left.checked_sub(1) else { return Ok(None) };
        *tries.left = fewer;
        // Where links are pressed less, a nanosecond of theirs costs less.
        let scale = self.used.mean_of_links();
        let price = price.saturating_mul(percent) / 100;
        let scaled = price.saturating_mul(scale) / tries.at_rest;
        let mut judged = self.probe(scaled, learns, None, scratch)?;
        if judged.excess_bytes > 0 {
            let host_bytes = Some(self.base.machine.host_bytes);
            let within = self.probe(scaled, learns, host_bytes, scratch)?;
            let both = within.predicted.into_iter().chain(judged.predicted);
            judged.predicted = both.min_by_key(Prediction::cost);
        }
        if let Some(predicted) = judged.predicted
            && tries.top.is_none_or(|(least, _)| predicted.cost() < least)
        {
            tries.top = Some((predicted.cost(), price));
        }
        Ok(Some(judged))
    }

    /// Whether a link limits, and compute idles.
    fn is_idle(&self, found: &Prediction) -> bool {
        let machine = self.base.machine;
        let link_ns = |bytes, bytes_per_s| transmission_ns(bytes, bytes_per_s).unwrap_or(u64::MAX);
        let up_ns = link_ns(found.h2d_bytes, machine.h2d_bytes_per_s);
        let down_ns = link_ns(found.d2h_bytes, machine.d2h_bytes_per_s);
        let launches_ns = found.compute_ns.saturating_add(found.repeat_ns);
        let share = |percent| found.period_ns / 100 * percent;
        up_ns.max(down_ns) >= share(BUSY) && launches_ns <= share(IDLE)
    }

    /// What the list that a price leads to comes to. It is kept if it is the best so far.
    fn probe(
        &mut self,
        compute_price: u64,
        learns: bool,
        host_bytes: Option<u64>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Judged, PlanningError> {
        let mut scratch = scratch.reborrow();
        let base = self.base.sequence;
        let list = scratch.take(self.leader.launches.len(), OpId(0))?;
        let positions = scratch.take(base.len(), 0u32)?;
        let lists = Unrolled { launches: &mut *list, positions: &mut *positions };
        let (memory, gaps, used) = (&self.memory, &mut self.gaps, &self.used);
        let prices = Prices { compute_price, host_bytes };
        let launches = super::launches(self.base, memory, gaps, used, prices, lists, &mut scratch)?;
        let Some(launches) = launches else { return Ok(Judged::default()) };
        let order = list[..launches].iter().copied();
        let sequence = base.in_order(order, &mut scratch)?;
        let task = Task { sequence: &sequence, ..*self.base };
        let learner = learns.then_some((&mut self.used, &*positions));
        let judged = judge(&task, self.output.reborrow(), learner, &mut scratch)?;
        self.leader.offer(&sequence, judged);
        Ok(judged)
    }
}

/// What a paced list of a sequence comes to; none where it does not fit. The pressures that it
/// shows are learned, for the launches of the base by their positions.
fn judge(
    task: &Task<'_>,
    output: Output<'_>,
    learner: Option<(&mut Pressure<'_>, &[u32])>,
    scratch: &mut Scratch<'_>,
) -> Result<Judged, PlanningError> {
    let mut scratch = scratch.reborrow();
    let Output { steps, resident, arena, pools, tensor_pool } = output;
    let mut trials = Trials::new(task, steps, resident, PoolTables { pools, tensor_pool });
    let memory = match Memory::new(task, Need::LargestOp, arena, &mut scratch) {
        // More of what is small lies in the arena for longer.
        Err(PlanningError::Infeasible { .. }) => return Ok(Judged::default()),
        memory => memory?,
    };
    let uses = Uses::new(task.sequence, &mut scratch)?;
    let basis = Basis { memory: &memory, uses: &uses, arena: &arena[..memory.placed] };
    let mut search = Search::new(task.sequence, &mut scratch)?;
    let predicted = trials.sample_paced(&basis, &mut search, &mut scratch)?;
    let excess_bytes = trials
        .host_shortage_bytes
        .map_or(0, |needed_bytes| needed_bytes.saturating_sub(task.machine.host_bytes).max(1));
    if let (Some(_), Some((used, positions))) = (predicted, learner) {
        used.learn(&search.pressures.seen, positions);
    }
    Ok(Judged { predicted, excess_bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The prices that are tried where compute idles from one on.
    fn tried(idle_from: u64) -> heapless::Vec<u64, 16> {
        let (mut scale, mut coarse) = (Scale::default(), COARSE.iter().copied());
        let next = || {
            let price = scale.next(&mut coarse)?;
            scale.see(price, price >= idle_from);
            Some(price)
        };
        core::iter::from_fn(next).collect()
    }

    #[test]
    fn prices_find_their_scale() {
        assert_eq!(tried(u64::MAX), COARSE);
        assert_eq!(tried(4800), COARSE);
        assert_eq!(tried(100), [4700, 1175, 293, 73, 146, 103, 86]);
        assert_eq!(tried(0), [4700, 1175, 293, 73, 18]);
    }
}
