//! Lowers a plan to a schedule: finds the steps that each step must wait for.
//!
//! Lowering passes over the list three times. The first two passes follow the hazards of every
//! piece, once to learn the state at the end of an iteration and once for an iteration that follows
//! another. The third pass follows the queues of free objects. At the end, a transitive reduction
//! by vector clocks removes waits that other waits imply, since each wait costs the device a
//! semaphore.
//!
//! A point in time is a step of a stream relative to the current iteration. On a stream of `n`
//! steps, step `i` of the iteration `l` iterations back is the number `i - l * n`.

mod clocks;
mod hazards;
mod memory;
mod placements;
mod queues;

use crate::graph::Graph;
use crate::machine::Machine;
use crate::pieces::Pieces;
use crate::plan::{Plan, PlanError};
use crate::ranges::LastUses;
use crate::residency::Residency;
use crate::schedule::{PerStream, Schedule, Scheduled, Stream};
use crate::scratch::{Buffer, Limits, Scratch, larger, total, words};
use clocks::Clocks;
use hazards::Hazards;
use memory::memory_needs;
use placements::placed_needs;
use queues::Queues;

/// A point on each stream, relative to the current iteration.
type Points = PerStream<i64>;

/// Before all steps.
const NEVER: i64 = i64::MIN;

/// Words of scratch that [`lower`] needs, by [`Limits::of_plan`]: per step 11.7, per tensor 11.6, per
/// piece 8.1, per pool 17. With placements: 10.2 per step for each iteration that they cover, 2.5 per
/// object number, 4 per piece.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    let queued = Residency::scratch_words(limits).saturating_add(Queues::scratch_words(limits));
    total([
        Pieces::scratch_words(limits),
        words::<i64>(limits.tensors).saturating_mul(8),
        LastUses::scratch_words(limits).saturating_mul(2),
        words::<Points>(limits.entries()),
        larger(queued, placements::scratch_words(limits)),
        Clocks::scratch_words(limits),
    ])
}

/// Lowers a plan into `out`, which needs [`Limits::entries`] of [`Limits::of_plan`]: one entry for
/// each step of each iteration that the placements cover. O(steps + operands), times the few sweeps
/// that the vector clocks take, plus a sort of the placements by object.
///
/// # Errors
/// The plan breaks a rule of structure or residency, so it cannot be lowered.
/// [`verify`](crate::verify()) decides whether a plan is safe.
pub fn lower<'o>(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    out: &'o mut [Scheduled],
    scratch: &mut Scratch<'_>,
) -> Result<Schedule<'o>, PlanError> {
    let mut scratch = scratch.reborrow();
    let pieces = Pieces::new(graph, machine, plan, &mut scratch)?;
    lower_pieces(graph, plan, &pieces, out, &mut scratch)
}

/// Does the same as [`lower`], given the table of pieces.
pub(crate) fn lower_pieces<'o>(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    out: &'o mut [Scheduled],
    scratch: &mut Scratch<'_>,
) -> Result<Schedule<'o>, PlanError> {
    let mut scratch = scratch.reborrow();
    let iterations = plan.iterations();
    // The table of pieces has checked that the entries can be numbered.
    let entries = plan.steps.len().saturating_mul(iterations as usize);
    debug_assert!(entries < u32::MAX as usize);
    let out = Buffer::Schedule.first(out, entries)?;
    let stream_steps = number_steps(graph, plan, out);

    let needs = scratch.take(entries, PerStream::all(NEVER))?;
    let mut hazards = Hazards::new(graph, pieces, &mut scratch)?;
    for _iteration in 0..2 {
        hazards.start_iteration(stream_steps);
        for ((step, entry), needs) in plan.steps.iter().zip(&*out).zip(&mut *needs) {
            *needs = hazards.walk(graph, pieces, step, i64::from(entry.index()));
        }
    }
    if plan.placements.is_none() {
        memory_needs(graph, plan, pieces, out, stream_steps, needs, &mut scratch)?;
    } else {
        repeat(needs, plan.steps.len());
        placed_needs(graph, plan, pieces, out, stream_steps, needs, &mut scratch)?;
    }
    Clocks::new(out, stream_steps, iterations, needs, &mut scratch)?.reduce(out, needs);
    Ok(Schedule { steps: out, stream_steps, iterations })
}

/// Copies the first `count` values repeatedly until the slice is full.
fn repeat<T: Copy>(values: &mut [T], count: usize) {
    for first in (count..values.len()).step_by(count.max(1)) {
        values.copy_within(..count, first);
    }
}

/// Writes each step's position on its stream, in all iterations; returns the number of steps of
/// each stream in one iteration.
fn number_steps(graph: &Graph<'_>, plan: &Plan<'_>, out: &mut [Scheduled]) -> PerStream<u32> {
    let mut counts = PerStream::all(0u32);
    for (entry, step) in out.iter_mut().zip(plan.steps) {
        *entry = Scheduled::EMPTY;
        if let Some(stream) = Stream::of(graph, step) {
            let count = &mut counts[stream];
            *entry = Scheduled::new(Some(stream), *count);
            *count = count.saturating_add(1);
        }
    }
    repeat(out, plan.steps.len());
    counts
}

/// The point at which a step on a stream has ended; `None` for an evict, which is on no stream.
fn ended(entry: &Scheduled) -> Option<Points> {
    let stream = entry.stream()?;
    Some(PerStream::only(stream, i64::from(entry.index()), NEVER))
}

fn later(one: Points, other: Points) -> Points {
    PerStream::from_fn(|stream| one[stream].max(other[stream]))
}

/// The same points, relative to an iteration that many iterations later.
fn seen_later(points: Points, iterations: i64, stream_steps: PerStream<u32>) -> Points {
    PerStream::from_fn(|stream| {
        let steps = i64::from(stream_steps[stream]);
        points[stream].saturating_sub(iterations.saturating_mul(steps))
    })
}
