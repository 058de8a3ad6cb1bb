//! Searches for the repeats of the shortest plan.
//!
//! One price of compute leads to one list of launches. If links limit the plan and compute idles,
//! the best price is a hundredth of the best price under limiting compute, so the search must find
//! the scale of prices. Then it goes on with the pressures of the lists so far. In the next round
//! the best list replaces the sequence, so that repeated values may be dropped again. If many
//! values must be repeated, no price leads to lists as good as the segments of
//! [checkpointing](checkpoint), so a second search starts from segments.

#![expect(
    clippy::indexing_slicing,
    reason = "prices are below `PRICES`, and lengths are those of lists in these buffers"
)]

use super::climb::{CLIMBED, Climb};
use super::judged::{Judged, Known, Rank};
use super::{Prices, Unrolled};
use crate::graph::OpId;
use crate::planner::best_plan::shorter;
use crate::planner::checkpoint::{self, AfterLoss, Division};
use crate::planner::error::PlanningError;
use crate::planner::gaps::Gaps;
use crate::planner::helper::{Helper, both};
use crate::planner::host_memory::UNLIMITED;
use crate::planner::memory::{self, Memory};
use crate::planner::order::{self, Join};
use crate::planner::pressure::Pressure;
use crate::planner::recipe::{Order, SPARING};
use crate::planner::request::{Output, PoolTables, Task};
use crate::planner::strategy::Need;
use crate::planner::trials::{Context, Judging, Search, Trials};
use crate::planner::uses::Uses;
use crate::scratch::{Limits, Scratch, larger, total, words};
use crate::sequence::Sequence;

/// The most ways to join ops: with copies first, three sizes of sets, and two for each power of two
/// that is a number of micro-batches.
const MOST_JOINS: usize = 4 + 2 * u32::BITS as usize;

/// The number of prices that rank two orders of the ops.
const RANK_LISTS: usize = 3;

/// The relative error of the rank, as a fraction of the period. It is rarely larger.
const RANK_ERROR: u64 = 128;

/// Factors of the best price, in percent. Lists that use the pressures of earlier lists take them
/// in turn.
const LEARNING: [u64; 8] = [100, 90, 110, 80, 125, 100, 90, 110];

/// The [`load_percent`](Prices::load_percent) of the first lists, and of lists with learned
/// pressures, which already include the load of the links.
const LOAD_PERCENT: [u64; 2] = [100, 20];

/// A sequence is [judged](Trials::sample_paced) by several lists if its first list exceeds the best
/// period so far by at most this fraction.
const NEAR: u64 = 200;

/// The number of lists in a round that use learned pressures.
const LEARNED: usize = 24;

/// The number of lists in a round.
const ROUND: usize = CLIMBED + LEARNED;

/// The number of lists in a round if there are too few lists for a whole one. A balance: with fewer
/// lists, prices are too far apart.
const SHORT_ROUND: usize = 24;

/// The most rounds with a plan. No work gained more than 0.1 % of its period by further rounds.
const ROUNDS: usize = 3;

/// The search goes on from segments of checkpointing if their plan exceeds the best one by at most
/// this fraction. Segments are judged by more lists if the first list does so too, since a few
/// lists are not more accurate.
const NEAR_SEGMENTS: u64 = 32;

/// The same for segments of whole layers: their first list may be longer than the best list by a
/// tenth.
const NEAR_LAYERS: u64 = 8;

/// If the plan of segments is longer than the best one, that search gets one list in this many.
const SHARE_OF_SEGMENTS: usize = 4;

/// The most lists that the search tries.
pub(in crate::planner) const MOST_LISTS: usize = ROUNDS * ROUND;

/// Words of scratch for a sequence that [`best`] returns. It keeps the words of three sequences, even
/// if it returns fewer.
pub(in crate::planner) const fn kept_words(limits: &Limits) -> usize {
    words::<OpId>(limits.ops).saturating_add(Sequence::scratch_words(limits))
}

/// Words of scratch that [`best`] needs, by limits [with repeats](Limits::with_repeats).
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
        Known::scratch_words(limits),
        probe,
    ]);
    let segments = total([
        memory::scratch_words(limits),
        checkpoint::scratch_words(limits),
        words::<OpId>(limits.ops),
        larger(
            order::list_schedule_words(limits),
            Sequence::scratch_words(limits).saturating_add(judge),
        ),
    ]);
    let round = words::<OpId>(limits.ops).saturating_add(round);
    let arranged = order::arranged_words(limits)
        .saturating_add(larger(larger(order::list_schedule_words(limits), round), segments));
    let joined = words::<OpId>(limits.ops).saturating_mul(8).saturating_add(arranged);
    kept_words(limits).saturating_add(larger(joined, segments))
}

/// Orders to which repeats may be added: two given orders, and ways to join their ops.
pub(in crate::planner) type Starts<'s, J> = ([Option<Task<'s>>; 2], J);

/// A sequence, and the period of its sampled plan.
pub(in crate::planner) type Found<'s> = (Sequence<'s>, u64);

/// The best list of launches so far. If no list has a plan yet, the list that exceeds host memory
/// least, to which more repeats may be added.
struct Incumbent<'l> {
    judged: Judged,
    launches: &'l mut [OpId],
    len: usize,
}

impl<'l> Incumbent<'l> {
    fn new(task: &Task<'_>, scratch: &mut Scratch<'l>) -> Result<Self, PlanningError> {
        let most = task.sequence.graph().ops().len().saturating_mul(2);
        let launches = scratch.take(most, OpId(0))?;
        Ok(Self { judged: Judged::UNKNOWN, launches, len: 0 })
    }

    /// The list as a sequence, and the period of its plan.
    fn sequence<'s>(
        &self,
        task: &Task<'s>,
        scratch: &mut Scratch<'s>,
    ) -> Result<Option<Found<'s>>, PlanningError> {
        let Some(period_ns) = self.period_ns() else { return Ok(None) };
        Ok(Some((task.sequence.in_order(self.launches(), scratch)?, period_ns)))
    }

    /// The rank of the list; a better list has a smaller rank.
    fn rank(&self) -> Rank {
        self.judged.rank()
    }

    fn period_ns(&self) -> Option<u64> {
        self.judged.cost.map(|(period_ns, _)| period_ns)
    }

    /// A sequence whose first list takes longer than this is judged by that list alone.
    fn near_ns(&self) -> u64 {
        let least_ns = self.period_ns().unwrap_or(u64::MAX);
        least_ns.saturating_add(least_ns / NEAR)
    }

    fn launches(&self) -> impl Iterator<Item = OpId> + Clone {
        self.launches[..self.len].iter().copied()
    }

    /// Keeps a list if it is better.
    fn keep_if_better(&mut self, judged: Judged, launches: impl Iterator<Item = OpId>) {
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

/// The best sequences with repeats. Each is worth a plan, since sampled periods err by more than
/// their differences.
#[derive(Default)]
pub(in crate::planner) struct Best<'s> {
    /// The best sequence from sequences without repeats.
    pub(in crate::planner) once: Option<Found<'s>>,
    /// If micro-batches read states together, the best sequence from segments that
    /// [keep](AfterLoss::Kept) what follows a loss.
    pub(in crate::planner) kept: Option<Found<'s>>,
    /// The best sequence from the given segments.
    pub(in crate::planner) segments: Option<Found<'s>>,
}

/// The best of `lists` tried sequences with repeats. There may be several orders of the ops: two
/// given orders, and ways to join ops. A few lists of each order tell which is best; the search goes
/// on with the best given order and the best ways. If there are `segments`, a second search starts
/// from them.
pub(in crate::planner) fn best<'s>(
    starts: Starts<'s, impl Iterator<Item = Join> + Clone + Sync>,
    segments: Option<Segments<'s>>,
    lists: usize,
    output: &mut Output<'_>,
    mut helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'s>,
) -> Result<Best<'s>, PlanningError> {
    let ranked = best_starts(starts, lists, output, helper.as_deref_mut(), scratch)?;
    let Some(ranked) = ranked else { return Ok(Best::default()) };
    let task = ranked.task;
    let mut once = Incumbent::new(&task, scratch)?;
    let mut kept = Incumbent::new(&task, scratch)?;
    let mut segmented = Incumbent::new(&task, scratch)?;
    let incumbents = [&mut once, &mut kept, &mut segmented];
    let from = segments.as_ref();
    let is_segmented = extend_all(&ranked, from, incumbents, lists, output, helper, scratch)?;
    if let Some(from) = from.filter(|_| is_segmented) {
        let than_ns = once.period_ns().unwrap_or(u64::MAX);
        extend_near(&from.task, than_ns, &mut segmented, lists, output, scratch)?;
    }
    Ok(Best {
        once: once.sequence(&task, scratch)?,
        kept: kept.sequence(&task, scratch)?,
        segments: segmented.sequence(&segments.map_or(task, |from| from.task), scratch)?,
    })
}

/// Adds repeats to the launches in each order, and tries the segments. The best lists become `once`
/// and `kept`, as in [`Best`], and the best segments `segmented`. Returns whether segments may lead to
/// a shorter plan.
fn extend_all(
    Ranked { task, rank, reads_together, ways }: &Ranked<'_>,
    segments: Option<&Segments<'_>>,
    [once, kept, segmented]: [&mut Incumbent<'_>; 3],
    lists: usize,
    output: &mut Output<'_>,
    helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<bool, PlanningError> {
    let mut scratch = scratch.reborrow();
    let mut joined = |at: usize| {
        let way = ways.get(at).map(|&(_, join)| join);
        Ok::<_, PlanningError>((way, Incumbent::new(task, &mut scratch)?))
    };
    // One thread starts with the order of the task, so the other one takes the first way.
    let (mut helpers, mut own) = ([joined(0)?, joined(2)?], [joined(1)?, joined(3)?]);
    // Whether the network has time to spare depends on the plan.
    let sequence = task.sequence.weighing_loads();
    let weighed = Task { sequence: &sequence, ..*task };
    let mut by_load = (task.sequence.graph().has_collectives())
        .then(|| Incumbent::new(task, &mut scratch))
        .transpose()?;
    let mut helpers_kept = Incumbent::new(task, &mut scratch)?;
    let &(lacks_bytes, (ranked_ns, _)) = rank;
    let than_ns = if lacks_bytes == 0 { ranked_ns } else { u64::MAX };
    let ((), is_segmented) = both(
        helper,
        output,
        &mut scratch,
        |output, scratch| {
            extend(task, once, lists, output, scratch)?;
            if *reads_together {
                extend_own_segments(task, (once, Some(kept)), lists, output, scratch)?;
            }
            extend_joined(task, (&mut own[..], kept), lists, output, scratch)
        },
        |output, scratch| {
            let helpers = (&mut helpers[..], &mut helpers_kept);
            extend_joined(task, helpers, lists, output, scratch)?;
            if let Some(by_load) = &mut by_load {
                extend(&weighed, by_load, lists, output, scratch)?;
            }
            let Some(from) = segments else { return Ok(false) };
            start_segments(from, than_ns, segmented, lists, output, scratch)
        },
    )?;
    if let Some(by_load) = by_load {
        once.keep_if_better(by_load.judged, by_load.launches());
    }
    let of_task = once.rank();
    let [[first, third], [second, fourth]] = [helpers, own];
    for (way, joined) in [first, second, third, fourth] {
        // If the task reads states together, such ways without overlaps differ little from it.
        let is_like_task =
            *reads_together && matches!(way, Some(Join::ByStates { overlaps: false, .. }));
        if !is_like_task || is_surely_less(joined.rank(), of_task) {
            once.keep_if_better(joined.judged, joined.launches());
        }
    }
    kept.keep_if_better(helpers_kept.judged, helpers_kept.launches());
    Ok(is_segmented)
}

/// The period of the best of a few lists with repeats in each order, and of `lists` lists in the best
/// order. `None` if no list has a plan.
pub(in crate::planner) fn trial_ns(
    starts: Starts<'_, impl Iterator<Item = Join> + Clone + Sync>,
    lists: usize,
    output: &mut Output<'_>,
    helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<u64>, PlanningError> {
    let ranked = best_starts(starts, lists, output, helper, scratch)?;
    let Some(Ranked { task, rank, ways, .. }) = ranked else { return Ok(None) };
    let mut scratch = scratch.reborrow();
    let best_way = ways.into_iter().min_by_key(|&(rank, _)| rank);
    let (rank, joined) = match best_way.filter(|&(best, _)| best < rank) {
        Some((best, join)) => (best, order::arrange(task.sequence, join, &mut scratch)?),
        None => (rank, None),
    };
    let task = Task { sequence: joined.as_ref().unwrap_or(task.sequence), ..task };
    let mut incumbent = Incumbent::new(&task, &mut scratch)?;
    extend(&task, &mut incumbent, lists, output, &mut scratch)?;
    let (lacks_bytes, (period_ns, _)) = incumbent.rank().min(rank);
    Ok((lacks_bytes == 0).then_some(period_ns))
}

/// The orders to which the search adds repeats.
struct Ranked<'s> {
    task: Task<'s>,
    rank: Rank,
    /// Whether ops of the task read states together.
    reads_together: bool,
    /// The best ways to join the ops of the task.
    ways: Ways,
}

/// The better of the given orders, and the best ways to join its ops. `None` without a given order. If
/// there is a second order, it reads states together.
fn best_starts<'s>(
    (orders, joins): Starts<'s, impl Iterator<Item = Join> + Clone + Sync>,
    lists: usize,
    output: &mut Output<'_>,
    mut helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Ranked<'s>>, PlanningError> {
    let [Some(task), other] = orders else { return Ok(None) };
    if other.is_none() && joins.clone().next().is_none() {
        let rank = Judged::UNKNOWN.rank();
        return Ok(Some(Ranked { task, rank, reads_together: false, ways: Ways::default() }));
    }
    let (rank_of_task, rank_of_other) = both(
        helper.as_deref_mut(),
        output,
        scratch,
        |output, scratch| rank(&task, lists, output, scratch),
        |output, scratch| other.map(|other| rank(&other, lists, output, scratch)).transpose(),
    )?;
    let (task, rank, reads_together) = match (other, rank_of_other) {
        (Some(other), Some(rank)) if rank < rank_of_task => (other, rank, true),
        _ => (task, rank_of_task, false),
    };
    let ways = best_joins(&task, (rank, joins), lists, output, helper, scratch)?;
    Ok(Some(Ranked { task, rank, reads_together, ways }))
}

/// Adds repeats to the launches in the order of each way to join them, and to their segments.
/// `kept` becomes the best list from segments that keep what follows a loss.
fn extend_joined(
    task: &Task<'_>,
    (ways, kept): (&mut [(Option<Join>, Incumbent<'_>)], &mut Incumbent<'_>),
    lists: usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    for (way, incumbent) in ways {
        let Some(join) = *way else { continue };
        let mut scratch = scratch.reborrow();
        if let Some(sequence) = order::arrange(task.sequence, join, &mut scratch)? {
            let task = Task { sequence: &sequence, ..*task };
            extend(&task, incumbent, lists, output, &mut scratch)?;
            // A single micro-batch has no second loss.
            let kept = matches!(join, Join::ByStates { .. }).then_some(&mut *kept);
            extend_own_segments(&task, (incumbent, kept), lists, output, &mut scratch)?;
        }
    }
    Ok(())
}

/// Adds repeats to the segments of an order that only this search tries. The best list of segments
/// that keep what follows a loss becomes `kept`.
fn extend_own_segments(
    task: &Task<'_>,
    (incumbent, kept): (&mut Incumbent<'_>, Option<&mut Incumbent<'_>>),
    lists: usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let Some(than_ns) = incumbent.period_ns() else { return Ok(()) };
    let mut keep_best = |best: &mut Incumbent<'_>, after_loss| {
        let mut scratch = scratch.reborrow();
        let mut segmented = Incumbent::new(task, &mut scratch)?;
        let from = Segments { task: *task, is_short: false, order: Order::Free, after_loss };
        if start_segments(&from, than_ns, &mut segmented, lists, output, &mut scratch)? {
            extend_near(task, than_ns, &mut segmented, lists, output, &mut scratch)?;
        }
        best.keep_if_better(segmented.judged, segmented.launches());
        Ok::<_, PlanningError>(())
    };
    keep_best(incumbent, AfterLoss::Dropped)?;
    kept.map_or(Ok(()), |kept| keep_best(kept, AfterLoss::Kept))
}

/// The best ways to join ops: up to two in which groups of micro-batches follow each other, and up to
/// two in which they overlap. There are several, since a few lists cannot tell which way leads to the
/// shortest plan.
type Ways = heapless::Vec<(Rank, Join), 4>;

/// Ranks ways to join ops, and returns the best ways. A way must be better than the given order by
/// more than the error of ranks. A way with overlaps must not be worse than the best way without
/// overlaps by more than this error.
fn best_joins(
    task: &Task<'_>,
    (least, joins): (Rank, impl Iterator<Item = Join> + Clone + Sync),
    lists: usize,
    output: &mut Output<'_>,
    helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<Ways, PlanningError> {
    let rank_half = |skipped, output: &mut Output<'_>, scratch: &mut Scratch<'_>| {
        let joins = joins.clone().enumerate().skip(skipped).step_by(2);
        rank_joins(task, (least, joins), lists, output, scratch)
    };
    let (mut ranked, others) = both(
        helper,
        output,
        scratch,
        |output, scratch| rank_half(0, output, scratch),
        |output, scratch| rank_half(1, output, scratch),
    )?;
    for way in others {
        let _ = ranked.push(way);
    }
    ranked.sort_unstable_by_key(|&(rank, at, _)| (rank, at));
    let of_kind = |overlapping| {
        let is_of_kind = move |&&(_, _, join): &&(Rank, usize, Join)| {
            matches!(join, Join::ByStates { overlaps: true, .. }) == overlapping
        };
        ranked.iter().filter(is_of_kind)
    };
    let mut apart = of_kind(false);
    let [first, second] = [apart.next(), apart.next()];
    let may_be_better = |&&(rank, _, _): &&(Rank, usize, Join)| {
        first.is_none_or(|&(first, _, _)| !is_surely_less(first, rank))
    };
    let overlapping = of_kind(true).filter(may_be_better).take(2);
    let ways = first.into_iter().chain(second).chain(overlapping);
    Ok(ways.map(|&(rank, _, join)| (rank, join)).collect())
}

/// The ranks of the ways to join ops that are better than the given order, each with its number.
fn rank_joins(
    task: &Task<'_>,
    (least, joins): (Rank, impl Iterator<Item = (usize, Join)>),
    lists: usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<heapless::Vec<(Rank, usize, Join), MOST_JOINS>, PlanningError> {
    let mut ranked = heapless::Vec::new();
    for (at, join) in joins {
        let mut scratch = scratch.reborrow();
        let Some(sequence) = order::arrange(task.sequence, join, &mut scratch)? else { continue };
        let joined = Task { sequence: &sequence, ..*task };
        let rank = rank(&joined, lists, output, &mut scratch)?;
        let rank = match join {
            Join::ByStates { .. } => rank.min(rank_of_layers(&joined, output, &mut scratch)?),
            Join::Light | Join::All | Join::CopiesFirst => rank,
        };
        if is_surely_less(rank, least) {
            let _ = ranked.push((rank, at, join));
        }
    }
    Ok(ranked)
}

/// Whether a rank is less than another by more than the error of the lists that both come from.
const fn is_surely_less((lacks, (one_ns, _)): Rank, (other_lacks, (other_ns, _)): Rank) -> bool {
    lacks < other_lacks || lacks == other_lacks && one_ns < shorter(other_ns, RANK_ERROR)
}

/// The rank of a few lists with repeats. If one does not fit, the rank of no list: in another order,
/// for example, more small tensors may be alive at once, so that the arena does not fit.
fn rank(
    task: &Task<'_>,
    lists: usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Rank, PlanningError> {
    let mut scratch = scratch.reborrow();
    let mut incumbent = Incumbent::new(task, &mut scratch)?;
    let of_no_list = incumbent.rank();
    let mut left = lists.min(RANK_LISTS);
    match add_repeats(task, &mut incumbent, (usize::MAX, &mut left), output, &mut scratch) {
        Err(error) if error.is_of_one_list() => Ok(of_no_list),
        added => added.map(|()| incumbent.rank()),
    }
}

/// The rank of segments at which one micro-batch gives way to another. In orders by layers, prices
/// may not lead to lists as good as these.
fn rank_of_layers(
    task: &Task<'_>,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Rank, PlanningError> {
    let mut scratch = scratch.reborrow();
    let mut incumbent = Incumbent::new(task, &mut scratch)?;
    let memory = checkpoint::memory(task, output.arena, &mut scratch)?;
    let wanted = (AfterLoss::Kept, |division: &Division| matches!(division, Division::Batches));
    checkpoint::each_wanted(task, &memory, wanted, &mut scratch, |sequence, division, scratch| {
        let task = Task { sequence, ..*task };
        try_segmented(&task, division, u64::MAX, &mut incumbent, output, scratch)
    })?;
    Ok(incumbent.rank())
}

/// The segments of checkpointing from which a search starts.
#[derive(Clone, Copy, Debug)]
pub(in crate::planner) struct Segments<'s> {
    /// Launches each op once.
    pub(in crate::planner) task: Task<'s>,
    /// Whether memory is so short that no list has fitted.
    pub(in crate::planner) is_short: bool,
    /// Whether the launches may also be arranged in another order.
    pub(in crate::planner) order: Order,
    pub(in crate::planner) after_loss: AfterLoss,
}

/// A plan of segments that is slightly longer than the best plan so far may lead to a shorter one.
const fn near_segments_ns(than_ns: u64) -> u64 {
    than_ns.saturating_add(than_ns / NEAR_SEGMENTS)
}

/// Tries each division into segments. Returns whether the best one may lead to a shorter plan than
/// `than_ns`.
fn start_segments(
    from: &Segments<'_>,
    than_ns: u64,
    incumbent: &mut Incumbent<'_>,
    lists: usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<bool, PlanningError> {
    if from.is_short {
        // Another order than the best one without repeats may be better.
        extend(&from.task, incumbent, lists, output, scratch)?;
    }
    let before = incumbent.rank();
    try_segments(from, near_segments_ns(than_ns), incumbent, output, scratch)?;
    Ok(incumbent.rank() != before)
}

/// Adds repeats to the best segments if their plan is near enough to the best plan so far, which takes
/// `than_ns`.
fn extend_near(
    task: &Task<'_>,
    than_ns: u64,
    incumbent: &mut Incumbent<'_>,
    lists: usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let lists = match incumbent.period_ns() {
        Some(best_ns) if best_ns >= near_segments_ns(than_ns) => return Ok(()),
        Some(best_ns) if best_ns >= than_ns => lists.div_ceil(SHARE_OF_SEGMENTS),
        _ => lists,
    };
    extend(task, incumbent, lists, output, scratch)
}

/// The least time of the launches over all numbers of segments. No plan takes less time than its
/// launches.
pub(in crate::planner) fn least_of_segments(
    task: &Task<'_>,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<u64, PlanningError> {
    let (mut scratch, mut least_ns) = (scratch.reborrow(), u64::MAX);
    let memory = checkpoint::memory(task, output.arena, &mut scratch)?;
    checkpoint::each(task, &memory, AfterLoss::Dropped, &mut scratch, |sequence, _, _| {
        least_ns = least_ns.min(sequence.launches_ns());
        Ok(())
    })?;
    Ok(least_ns)
}

/// Adds repeats in rounds, until a round gains nothing or no lists are left.
fn extend(
    task: &Task<'_>,
    incumbent: &mut Incumbent<'_>,
    lists: usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let mut left = lists;
    let mut rounds = 0usize;
    // If there are few lists, another round gains more than better prices in the first round.
    let round = if lists < ROUND { SHORT_ROUND } else { ROUND };
    while rounds < ROUNDS {
        let before = incumbent.rank();
        add_repeats(task, incumbent, (round, &mut left), output, scratch)?;
        if left == 0 || incumbent.rank() == before {
            break;
        }
        // A round that ends without a plan does not count.
        rounds = rounds.saturating_add(incumbent.period_ns().is_some().into());
    }
    Ok(())
}

/// Tries lists that add repeats to the best list so far, or to the first sequence.
fn add_repeats(
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

/// Tries each division into segments.
fn try_segments(
    &Segments { ref task, order, after_loss, .. }: &Segments<'_>,
    than_ns: u64,
    incumbent: &mut Incumbent<'_>,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let mut scratch = scratch.reborrow();
    let memory = checkpoint::memory(task, output.arena, &mut scratch)?;
    checkpoint::each(task, &memory, after_loss, &mut scratch, |sequence, division, scratch| {
        let task = Task { sequence, ..*task };
        try_segmented(&task, division, than_ns, incumbent, output, scratch)?;
        if order == Order::Given {
            return Ok(());
        }
        let mut scratch = scratch.reborrow();
        match order::arrange_launches(sequence, Join::CopiesFirst, &mut scratch)? {
            Some(sequence) => {
                let task = Task { sequence: &sequence, ..task };
                try_segmented(&task, division, than_ns, incumbent, output, &mut scratch)
            }
            None => Ok(()),
        }
    })
}

/// Judges launches in segments if their launches take less time than the best list, or than
/// `than_ns` if there is none. Keeps them if their plan is better.
fn try_segmented(
    task: &Task<'_>,
    division: Division,
    than_ns: u64,
    incumbent: &mut Incumbent<'_>,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let sequence = task.sequence;
    let least_ns = incumbent.period_ns().unwrap_or(than_ns);
    if sequence.launches_ns() >= least_ns {
        return Ok(());
    }
    // There are few of them, so each is judged by several lists if the first one is near.
    let near_ns = least_ns.saturating_add(match division {
        Division::Valleys(_) | Division::Batches => least_ns / NEAR_LAYERS,
        Division::Equal(_) => least_ns / NEAR_SEGMENTS,
    });
    let judging = Judging { near_ns, sparing: &SPARING };
    let judged = judge(task, output.reborrow(), judging, None, scratch)?;
    if judged.cost.is_none_or(|(found_ns, _)| found_ns < least_ns) {
        incumbent.keep_if_better(judged, sequence.launches().map(|launch| sequence.op(launch)));
    }
    Ok(())
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
        let near_ns = self.incumbent.near_ns();
        let known = self.known.get_or_judge((hash, near_ns), |pressure| {
            let order = list[..launches].iter().copied();
            let sequence = base.in_order(order.clone(), &mut scratch)?;
            let task = Task { sequence: &sequence, ..*self.base };
            let judging = Judging { near_ns, sparing: &SPARING[..1] };
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
fn judge(
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
