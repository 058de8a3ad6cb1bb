//! Segments of [checkpointing](checkpoint) from which the search starts: if many values must be
//! repeated, no price leads to lists as good as theirs.

use super::judged::Rank;
use super::rounds::{self, Incumbent, extend, judge};
use crate::graph::OpId;
use crate::planner::best_plan::shorter;
use crate::planner::checkpoint::{self, AfterLoss, Division};
use crate::planner::error::PlanningError;
use crate::planner::memory;
use crate::planner::order::{self, Join};
use crate::planner::recipe::{BY_DENSITY, Order};
use crate::planner::request::{Output, Task};
use crate::planner::trials::Judging;
use crate::scratch::{Limits, Scratch, larger, total, words};
use crate::sequence::Sequence;

/// The search goes on from segments of checkpointing if their plan exceeds the best one by at most
/// this fraction. Segments are judged by more lists if the first list does so too, since a few
/// lists are not more accurate.
const NEAR_SEGMENTS: u64 = 32;

/// The same for segments of whole layers: their first list may be longer than the best list by a
/// tenth.
const NEAR_LAYERS: u64 = 8;

/// Segments are not tried if their launches take longer than the best list less this fraction: at best, their
/// plan gains less. A balance: each takes time, and no plan of 60 random works was longer without them.
const LEAST_GAIN: u64 = 128;

/// If the plan of segments is longer than the best one, that search gets one list in this many.
const SHARE_OF_SEGMENTS: usize = 4;

/// Words of scratch that the functions that try segments need.
pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        memory::scratch_words(limits),
        checkpoint::scratch_words(limits),
        words::<OpId>(limits.ops),
        larger(
            order::list_schedule_words(limits),
            Sequence::scratch_words(limits).saturating_add(rounds::judge_words(limits)),
        ),
    ])
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
pub(super) fn start_segments(
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
pub(super) fn extend_near(
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

/// Adds repeats to the segments of an order that only this search tries, if their plan is near enough to
/// the best one in that order, which takes `than_ns`. Each incumbent keeps the best list.
pub(super) fn extend_own_segments(
    task: &Task<'_>,
    (after_loss, than_ns): (AfterLoss, u64),
    incumbents: &mut [&mut Incumbent<'_>],
    lists: usize,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanningError> {
    let mut scratch = scratch.reborrow();
    let mut segmented = Incumbent::new(task, &mut scratch)?;
    let from = Segments { task: *task, is_short: false, order: Order::Free, after_loss };
    if start_segments(&from, than_ns, &mut segmented, lists, output, &mut scratch)? {
        extend_near(task, than_ns, &mut segmented, lists, output, &mut scratch)?;
    }
    for incumbent in incumbents {
        incumbent.keep_if_better(segmented.judged, segmented.launches());
    }
    Ok(())
}

/// The rank of segments at which one micro-batch gives way to another. In orders by layers, prices
/// may not lead to lists as good as these.
pub(super) fn rank_of_layers(
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
        try_segmented(&task, division, u64::MAX, &mut incumbent, output, scratch).map(drop)
    })?;
    Ok(incumbent.rank())
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
        let is_near = try_segmented(&task, division, than_ns, incumbent, output, scratch)?;
        // Another order of the copies gains less than the distance of segments that are not near.
        if order == Order::Given || !is_near {
            return Ok(());
        }
        let mut scratch = scratch.reborrow();
        let arranged = order::arrange_launches(sequence, Join::CopiesFirst, &mut scratch)?;
        if let Some(sequence) = &arranged {
            let task = Task { sequence, ..task };
            try_segmented(&task, division, than_ns, incumbent, output, &mut scratch)?;
        }
        Ok(())
    })
}

/// Judges launches in segments if their plan may be [shorter enough](LEAST_GAIN) than the best list, or than
/// `than_ns` if there is none. Keeps them if their plan is better. Returns whether it is near that period.
fn try_segmented(
    task: &Task<'_>,
    division: Division,
    than_ns: u64,
    incumbent: &mut Incumbent<'_>,
    output: &mut Output<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<bool, PlanningError> {
    let sequence = task.sequence;
    let least_ns = incumbent.period_ns().unwrap_or(than_ns);
    if sequence.launches_ns() >= shorter(least_ns, LEAST_GAIN) {
        return Ok(false);
    }
    // There are few of them, so each is judged by several lists if the first one is near.
    let near_ns = least_ns.saturating_add(match division {
        Division::Valleys(_) | Division::Batches => least_ns / NEAR_LAYERS,
        Division::Equal(_) => least_ns / NEAR_SEGMENTS,
    });
    let judging = Judging { near_ns, judges: &BY_DENSITY };
    let judged = judge(task, output.reborrow(), judging, None, scratch)?;
    if judged.cost.is_none_or(|(found_ns, _)| found_ns < least_ns) {
        incumbent.keep_if_better(judged, sequence.launches().map(|launch| sequence.op(launch)));
    }
    let found_ns = judged.cost.map_or(u64::MAX, |(found_ns, _)| found_ns);
    Ok(found_ns <= near_segments_ns(least_ns))
}
