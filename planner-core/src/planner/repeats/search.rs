//! Searches for the repeats of the shortest plan: in which orders of the ops, and from which segments,
//! [rounds] of lists start.

use super::judged::{Judged, Rank};
use super::rounds::{self, Found, Incumbent, add_repeats, extend};
use super::segments::{
    self, Segments, extend_near, extend_own_segments, rank_of_layers, start_segments,
};
use crate::graph::OpId;
use crate::planner::best_plan::shorter;
use crate::planner::checkpoint::AfterLoss;
use crate::planner::error::PlanningError;
use crate::planner::helper::{Helper, Jobs, both};
use crate::planner::order::{self, Join};
use crate::planner::request::{Output, Task};
use crate::scratch::{Limits, Scratch, larger, words};
use crate::sequence::Sequence;
use core::{iter, ptr};

/// The most ways to join ops: with copies first, three sizes of sets, and two for each power of two
/// that is a number of micro-batches.
const MOST_JOINS: usize = 4 + 2 * u32::BITS as usize;

/// The most ways to join ops that the search goes on with, and the most orders to which it adds repeats:
/// these ways and the order of the task.
const MOST_WAYS: usize = 4;
const MOST_ORDERS: usize = MOST_WAYS + 1;

/// The most incumbents of one thread at once: two for each order, one spread, one by load, and one of
/// segments.
const MOST_INCUMBENTS: usize = 2 * MOST_ORDERS + 3;

/// The number of prices that rank two orders of the ops.
const RANK_LISTS: usize = 3;

/// The relative error of the rank, as a fraction of the period. It is rarely larger.
const RANK_ERROR: u64 = 128;

/// Words of scratch for a sequence that [`best`] returns. It keeps the words of four sequences, even
/// if it returns fewer.
pub(in crate::planner) const fn kept_words(limits: &Limits) -> usize {
    words::<OpId>(limits.ops).saturating_add(Sequence::scratch_words(limits))
}

/// Words of scratch that [`best`] needs, by limits [with repeats](Limits::with_repeats).
pub(in crate::planner) const fn scratch_words(limits: &Limits) -> usize {
    let segments = segments::scratch_words(limits);
    let round = words::<OpId>(limits.ops).saturating_add(rounds::scratch_words(limits));
    let arranged = order::arranged_words(limits)
        .saturating_add(larger(larger(order::list_schedule_words(limits), round), segments));
    let incumbents = words::<OpId>(limits.ops).saturating_mul(MOST_INCUMBENTS);
    let joined = incumbents.saturating_add(arranged);
    kept_words(limits).saturating_add(larger(joined, segments))
}

/// Orders to which repeats may be added: two given orders, and ways to join their ops.
pub(in crate::planner) type Starts<'s, J> = ([Option<Task<'s>>; 2], J);

/// The best sequences with repeats. Each is worth a plan, since sampled periods err by more than
/// their differences.
pub(in crate::planner) struct Best<'s> {
    /// The best sequence from sequences without repeats.
    pub(in crate::planner) once: Option<Found<'s>>,
    /// The same with sequences that were judged [by spread lists](Incumbent::by_spread); `None` if it
    /// is the same sequence.
    pub(in crate::planner) spread: Option<Found<'s>>,
    /// If micro-batches read states together, the best sequence from segments in any order, whether they
    /// [keep](AfterLoss::Kept) what follows a loss or not; `None` if it is the same sequence.
    pub(in crate::planner) kept: Option<Found<'s>>,
    /// The best sequence from the given segments; `None` if it is the same sequence as another.
    pub(in crate::planner) segments: Option<Found<'s>>,
    /// The least host memory that a tried sequence lacks: 0 if a sequence has a plan, `u64::MAX` if the
    /// search knows of no such sequence.
    pub(in crate::planner) lacks_bytes: u64,
}

impl Best<'_> {
    const NONE: Self =
        Self { once: None, spread: None, kept: None, segments: None, lacks_bytes: u64::MAX };
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
    let Some(ranked) = ranked else { return Ok(Best::NONE) };
    let task = ranked.task;
    let mut once = Incumbent::new(&task, scratch)?;
    let mut spread = Incumbent::new(&task, scratch)?.by_spread();
    let mut kept = Incumbent::new(&task, scratch)?;
    let mut segmented = Incumbent::new(&task, scratch)?;
    let incumbents = [&mut once, &mut spread, &mut kept, &mut segmented];
    extend_all(&ranked, segments.as_ref(), incumbents, lists, output, helper, scratch)?;
    let (lacks_bytes, _) = once.rank().min(spread.rank()).min(kept.rank()).min(segmented.rank());
    let of_segments = segments.map_or(task, |from| from.task);
    Ok(Best {
        lacks_bytes,
        once: once.sequence(&task, scratch)?,
        spread: spread.other_sequence(&[&once], &task, scratch)?,
        kept: kept.other_sequence(&[&once, &spread], &task, scratch)?,
        segments: segmented.other_sequence(&[&once, &spread, &kept], &of_segments, scratch)?,
    })
}

/// An order of the launches, and the best lists with repeats in this order.
struct InOrder<'l> {
    /// The way to join the ops of the task; `None` in the order of the task.
    join: Option<Join>,
    /// The best list.
    once: Incumbent<'l>,
    /// The best list from segments, if micro-batches read states together in this order.
    kept: Incumbent<'l>,
}

/// The order of the task, and each way to join its ops.
type InOrders<'l> = heapless::Vec<InOrder<'l>, MOST_ORDERS>;

impl<'l> InOrder<'l> {
    fn each(
        Ranked { task, ways, .. }: &Ranked<'_>,
        scratch: &mut Scratch<'l>,
    ) -> Result<InOrders<'l>, PlanningError> {
        let joins = ways.iter().map(|&(_, join)| Some(join));
        let new = |join| {
            let [once, kept] = [Incumbent::new(task, scratch)?, Incumbent::new(task, scratch)?];
            Ok(Self { join, once, kept })
        };
        iter::once(None).chain(joins).map(new).collect()
    }
}

/// The searches that two threads share. Each thread keeps the best lists that it has found.
struct Searches<'l> {
    spread: Incumbent<'l>,
    /// Judged by the loads of links, which only works with collectives have.
    by_load: Option<Incumbent<'l>>,
    orders: InOrders<'l>,
}

impl<'l> Searches<'l> {
    fn new(ranked: &Ranked<'_>, scratch: &mut Scratch<'l>) -> Result<Self, PlanningError> {
        let task = &ranked.task;
        let has_loads = task.sequence.graph().has_collectives();
        Ok(Self {
            spread: Incumbent::new(task, scratch)?.by_spread(),
            by_load: has_loads.then(|| Incumbent::new(task, scratch)).transpose()?,
            orders: InOrder::each(ranked, scratch)?,
        })
    }

    /// Adds repeats to the launches in each order, as long as there are jobs left.
    fn extend(
        &mut self,
        Ranked { task, ways, .. }: &Ranked<'_>,
        (lists, jobs): (usize, &Jobs),
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        // Whether the network has time to spare depends on the plan.
        let sequence = task.sequence.weighing_loads();
        let weighed = Task { sequence: &sequence, ..*task };
        // Works with ops on the host take long to plan already.
        let spread = task.sequence.host_steps().is_empty().then_some(&mut self.spread);
        let first_way = ways.first().map(|&(_, join)| join);
        let spread = spread.map(|spread| (task, first_way, spread));
        let by_load = self.by_load.as_mut().map(|by_load| (&weighed, None, by_load));
        let orders = self.orders.iter_mut().map(|order| (task, order.join, &mut order.once));
        let searches = spread.into_iter().chain(by_load).chain(orders);
        jobs.of(searches).try_for_each(|(_, (task, join, incumbent))| {
            in_order(task, join, scratch, |task, scratch| {
                extend(task, incumbent, lists, output, scratch)
            })
        })
    }

    /// Keeps the lists of the same searches that are better.
    fn keep_if_better(&mut self, other: &Searches<'_>) {
        let keep = |one: &mut Incumbent<'_>, other: &Incumbent<'_>| {
            one.keep_if_better(other.judged, other.launches());
        };
        keep(&mut self.spread, &other.spread);
        if let (Some(one), Some(other)) = (&mut self.by_load, &other.by_load) {
            keep(one, other);
        }
        for (one, other) in self.orders.iter_mut().zip(&other.orders) {
            keep(&mut one.once, &other.once);
            keep(&mut one.kept, &other.kept);
        }
    }

    /// Keeps the best list of all orders, the best spread list, and the best list from segments.
    fn keep_best(&self, reads_together: bool, [once, spread, kept]: [&mut Incumbent<'_>; 3]) {
        let of_task = self.orders.first().map_or(Judged::UNKNOWN.rank(), |task| task.once.rank());
        for InOrder { join, once: joined, kept: joined_kept } in &self.orders {
            // If the task reads states together, such ways without overlaps differ little from it.
            let is_like_task =
                reads_together && matches!(join, Some(Join::ByStates { overlaps: false, .. }));
            if !is_like_task || is_surely_less(joined.rank(), of_task) {
                once.keep_if_better(joined.judged, joined.launches());
            }
            kept.keep_if_better(joined_kept.judged, joined_kept.launches());
        }
        spread.keep_if_better(self.spread.judged, self.spread.launches());
        if let Some(by_load) = &self.by_load {
            once.keep_if_better(by_load.judged, by_load.launches());
        }
    }
}

/// Adds repeats to the launches in each order, and tries the segments. The best lists become `once`,
/// `spread` and `kept`, as in [`Best`], and the best segments `segmented`.
fn extend_all(
    ranked: &Ranked<'_>,
    segments: Option<&Segments<'_>>,
    [once, spread, kept, segmented]: [&mut Incumbent<'_>; 4],
    lists: usize,
    output: &mut Output<'_>,
    helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let mut scratch = scratch.reborrow();
    let mut own = Searches::new(ranked, &mut scratch)?;
    let mut helper = helper.map(Helper::reborrow);
    let mut helpers =
        helper.as_mut().map(|helper| Searches::new(ranked, &mut helper.scratch)).transpose()?;
    let &(lacks_bytes, (ranked_ns, _)) = &ranked.rank;
    let than_ns = if lacks_bytes == 0 { ranked_ns } else { u64::MAX };
    let jobs = Jobs::new();
    let jobs = (lists, &jobs);
    let ((), is_segmented) = both(
        helper.as_mut(),
        output,
        &mut scratch,
        |output, scratch| own.extend(ranked, jobs, output, scratch),
        |output, scratch| {
            let is_segmented = match segments {
                Some(from) => start_segments(from, than_ns, segmented, lists, output, scratch)?,
                None => false,
            };
            if let Some(helpers) = &mut helpers {
                helpers.extend(ranked, jobs, output, scratch)?;
            }
            Ok(is_segmented)
        },
    )?;
    if let Some(helpers) = &helpers {
        own.keep_if_better(helpers);
    }
    let reads_together = ranked.reads_together;
    own.keep_best(reads_together, [&mut *once, &mut *spread, &mut *kept]);
    let near = segments.filter(|_| is_segmented).map(|from| Near {
        task: &from.task,
        than_ns: once.period_ns().unwrap_or(u64::MAX),
        incumbent: segmented,
    });
    let given = segments.map(|from| from.task.sequence);
    let searches = (&mut own, helpers.as_mut());
    extend_segments((ranked, given), searches, near, lists, output, helper.as_mut(), &mut scratch)?;
    own.keep_best(reads_together, [once, spread, kept]);
    Ok(())
}

/// The best segments, from which a search goes on if their plan is near enough to the best plan so far.
struct Near<'n, 'l> {
    task: &'n Task<'n>,
    /// The period of the best plan so far.
    than_ns: u64,
    incumbent: &'n mut Incumbent<'l>,
}

/// Adds repeats to the segments of each order that only this search tries. Such an order joins ops, or reads
/// states together. The segments of the `given` order have been tried; the search goes on from them if they
/// are `near`. The best lists of both threads go to the first one's searches.
fn extend_segments(
    (Ranked { task, reads_together, .. }, given): (&Ranked<'_>, Option<&Sequence<'_>>),
    (own, mut helpers): (&mut Searches<'_>, Option<&mut Searches<'_>>),
    near: Option<Near<'_, '_>>,
    lists: usize,
    output: &mut Output<'_>,
    helper: Option<&mut Helper<'_>>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let extended_ns: heapless::Vec<_, MOST_ORDERS> =
        own.orders.iter().map(|order| order.once.period_ns()).collect();
    let is_given = given.is_some_and(|given| ptr::eq(given, task.sequence));
    let jobs = Jobs::new();
    let extend_each =
        |searches: &mut Searches<'_>, output: &mut Output<'_>, scratch: &mut Scratch<'_>| {
            let orders = searches.orders.iter_mut().zip(&extended_ns);
            jobs.of(orders).try_for_each(|(_, (order, than_ns))| {
                let Some(than_ns) = *than_ns else { return Ok(()) };
                let InOrder { join, once, kept } = order;
                // A single micro-batch has no second loss.
                let (is_tried, has_losses) = match join {
                    None => (is_given || !reads_together, *reads_together),
                    Some(Join::ByStates { .. }) => (false, true),
                    Some(_) => (false, false),
                };
                in_order(task, *join, scratch, |task, scratch| {
                    if !is_tried {
                        let mut bests = heapless::Vec::<_, 2>::from_array([&mut *once]);
                        bests.extend(has_losses.then_some(&mut *kept));
                        let from = (AfterLoss::Dropped, than_ns);
                        extend_own_segments(task, from, &mut bests, lists, output, scratch)?;
                    }
                    if has_losses {
                        let from = (AfterLoss::OnlyKept, than_ns);
                        extend_own_segments(task, from, &mut [kept], lists, output, scratch)?;
                    }
                    Ok(())
                })
            })
        };
    let ((), ()) = both(
        helper,
        output,
        scratch,
        |output, scratch| {
            if let Some(Near { task, than_ns, incumbent }) = near {
                extend_near(task, than_ns, incumbent, lists, output, scratch)?;
            }
            extend_each(own, output, scratch)
        },
        |output, scratch| match &mut helpers {
            Some(helpers) => extend_each(helpers, output, scratch),
            None => Ok(()),
        },
    )?;
    if let Some(helpers) = helpers {
        own.keep_if_better(helpers);
    }
    Ok(())
}

/// Calls a function with the task in the order of a way to join its ops, or in its own order. Does
/// nothing if the way changes no order.
fn in_order(
    task: &Task<'_>,
    join: Option<Join>,
    scratch: &mut Scratch<'_>,
    extend: impl FnOnce(&Task<'_>, &mut Scratch<'_>) -> Result<(), PlanningError>,
) -> Result<(), PlanningError> {
    let mut scratch = scratch.reborrow();
    let Some(join) = join else { return extend(task, &mut scratch) };
    match order::arrange(task.sequence, join, &mut scratch)? {
        Some(sequence) => extend(&Task { sequence: &sequence, ..*task }, &mut scratch),
        None => Ok(()),
    }
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

/// The best ways to join ops: up to two in which groups of micro-batches follow each other, and up to
/// two in which they overlap. There are several, since a few lists cannot tell which way leads to the
/// shortest plan.
type Ways = heapless::Vec<(Rank, Join), MOST_WAYS>;

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
    let jobs = Jobs::new();
    let rank_some = |output: &mut Output<'_>, scratch: &mut Scratch<'_>| {
        rank_joins(task, (least, jobs.of(joins.clone())), lists, output, scratch)
    };
    let (mut ranked, others) = both(
        helper,
        output,
        scratch,
        |output, scratch| rank_some(output, scratch),
        |output, scratch| rank_some(output, scratch),
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
