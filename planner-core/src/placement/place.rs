//! Turns a plan into the same plan with fixed objects.

#![expect(clippy::indexing_slicing, reason = "totals are those of these buffers")]

use super::contiguous;
use super::sweep::{self, sweep};
use crate::allocations::{Event, Totals, walk};
use crate::graph::{Graph, TensorId};
use crate::lower::{self, lower_pieces};
use crate::machine::Machine;
use crate::pieces::Pieces;
use crate::plan::Placements;
use crate::plan::{Plan, PlanError, Prediction};
use crate::schedule::Scheduled;
use crate::scratch::{Buffer, BufferTooShort, Limits, OutOfScratch, Scratch, larger, words};
use crate::timeline::{self, predict_pieces};
use core::fmt;

/// The kind of placements to search for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// The number of iterations that they cover before they repeat, at least 1. With more
    /// iterations, fewer objects suffice, but there is more to map before the plan runs.
    pub iterations: u32,
    /// Whether an allocation takes the objects of the previous iteration again if it can. Then
    /// there is less to map, but the objects suffice less often, and more steps may have to wait.
    pub settled: bool,
    /// Whether objects that are due soon for the transfers at the start of an iteration are avoided
    /// if another object will do. Then these transfers wait less, but other allocations may wait
    /// more.
    pub spares_due: bool,
    /// The search for objects ends once it lacks more objects than this. [`PlacementError::Short`]
    /// then has any larger number. With `u64::MAX`, it has the number of all lacking objects.
    pub most_lacking: u64,
}

/// Buffers for placements, owned by the caller. [`slots`] gives their lengths for a number of
/// iterations.
#[derive(Debug)]
pub struct PlacementOutput<'o> {
    /// The object numbers.
    pub objects: &'o mut [u64],
    /// The ends of all allocations.
    pub ends: &'o mut [u32],
}

/// Why a plan has no placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlacementError {
    /// The pools have too few objects.
    Short {
        /// The number of further objects that would suffice.
        objects: u64,
    },
    /// A tensor moves in parts, so its objects are not allocated together.
    InParts(TensorId),
    /// An output buffer is too short.
    BufferTooShort(BufferTooShort),
    /// The working memory is too small.
    Scratch(OutOfScratch),
    /// The plan breaks a rule, or its numbers exceed 32 bits.
    Plan(PlanError),
}

impl From<OutOfScratch> for PlacementError {
    fn from(error: OutOfScratch) -> Self {
        Self::Scratch(error)
    }
}

impl From<BufferTooShort> for PlacementError {
    fn from(error: BufferTooShort) -> Self {
        Self::BufferTooShort(error)
    }
}

impl From<PlanError> for PlacementError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Scratch(error) => Self::Scratch(error),
            PlanError::BufferTooShort(error) => Self::BufferTooShort(error),
            other => Self::Plan(other),
        }
    }
}

impl fmt::Display for PlacementError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short { objects } => write!(f, "the pools are short of {objects} objects"),
            Self::InParts(tensor) => {
                write!(f, "{tensor} moves in parts, so it cannot lie at consecutive addresses")
            }
            Self::BufferTooShort(error) => error.fmt(f),
            Self::Scratch(error) => error.fmt(f),
            Self::Plan(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PlacementError {}

/// Words of scratch that [`place`] needs. `iterations` and `objects` of the limits come from the
/// placements, the other limits from [`Limits::of_plan`]. 8 per object number, or the words for a
/// schedule and for lowering or predicting.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    beside(limits, sweep::scratch_words(limits))
}

/// The same for [`place_contiguously`].
#[must_use]
pub const fn contiguous_scratch_words(limits: &Limits) -> usize {
    beside(limits, contiguous::scratch_words(limits))
}

/// The words for finding objects and for judging them.
const fn beside(limits: &Limits, finding: usize) -> usize {
    let judge = larger(lower::scratch_words(limits), timeline::scratch_words(limits));
    let judge = judge.saturating_add(words::<Scheduled>(limits.entries()));
    Pieces::scratch_words(limits).saturating_add(larger(finding, judge))
}

/// The numbers of allocations and of object numbers that the placements of a plan have over a
/// number of iterations.
///
/// # Errors
/// A plan that breaks a rule of structure or residency, or whose numbers exceed 32 bits; more
/// iterations than [`Placements::MOST_ITERATIONS`], or none.
pub fn slots(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    iterations: u32,
    scratch: &mut Scratch<'_>,
) -> Result<(usize, usize), PlacementError> {
    Placements::check_iterations(iterations)?;
    let mut scratch = scratch.reborrow();
    let pieces = Pieces::new(graph, machine, plan, &mut scratch)?;
    let all = |_: Event<'_>| Ok(());
    let Totals { allocations, slots } = walk(graph, plan, &pieces, iterations, &mut scratch, all)?;
    Ok((allocations as usize, slots as usize))
}

/// The plan with fixed objects for everything that it allocates, and with the period that follows
/// from waiting for exactly these objects. The same plan always gets the same placements.
///
/// O(steps + operands + n log n) for n object numbers in all iterations, plus lowering and predicting. If
/// objects are scarce, up to 64 pairs of objects are tried for each number, and a million in addition.
///
/// # Errors
/// [`PlacementError::Short`] if the objects of a pool do not suffice; an invalid plan, and buffers
/// that are too short.
pub fn place<'o>(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'o>,
    over: Over,
    output: PlacementOutput<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Plan<'o>, PlacementError> {
    let iterations = over.iterations;
    place_by(graph, machine, plan, iterations, output, scratch, |plan, pieces, table, scratch| {
        Ok(sweep(graph, plan, pieces, over, table.objects, scratch)?)
    })
}

/// Does the same with consecutive objects for each allocation, so that each tensor and each
/// workspace is at consecutive addresses of a slab ([`addresses`](super::addresses())). This
/// usually takes more objects than [`place`]; more steps of [packing](crate::packing::pack) reduce
/// their number.
///
/// As [`place`], but O(allocations squared) at most.
///
/// # Errors
/// The errors of [`place`]; [`PlacementError::InParts`].
pub fn place_contiguously<'o>(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'o>,
    iterations: u32,
    most_steps: u64,
    output: PlacementOutput<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Plan<'o>, PlacementError> {
    let effort = (iterations, most_steps);
    place_by(graph, machine, plan, iterations, output, scratch, |plan, pieces, table, scratch| {
        let PlacementOutput { objects, ends } = table;
        contiguous::fill(graph, plan, pieces, effort, (objects, ends), scratch)
    })
}

/// Fixes the objects that `fill` finds. `fill` returns the number of objects that are lacking.
fn place_by<'o>(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'o>,
    iterations: u32,
    PlacementOutput { objects, ends }: PlacementOutput<'o>,
    scratch: &mut Scratch<'_>,
    fill: impl FnOnce(
        &Plan<'_>,
        &Pieces<'_>,
        PlacementOutput<'_>,
        &mut Scratch<'_>,
    ) -> Result<u64, PlacementError>,
) -> Result<Plan<'o>, PlacementError> {
    let mut scratch = scratch.reborrow();
    Placements::check_iterations(iterations)?;
    let plan = Plan { placements: None, ..*plan };
    let totals = {
        let mut scratch = scratch.reborrow();
        let pieces = Pieces::new(graph, machine, &plan, &mut scratch)?;
        let totals = walk(graph, &plan, &pieces, iterations, &mut scratch, |event| {
            if let Event::Take { allocation, slots, .. } = event
                && let Some(end) = ends.get_mut(allocation as usize)
            {
                *end = slots.end;
            }
            Ok(())
        })?;
        let ends = Buffer::Ends.first(ends, totals.allocations as usize)?;
        let objects = Buffer::Objects.first(objects, totals.slots as usize)?;
        let lacking = fill(&plan, &pieces, PlacementOutput { objects, ends }, &mut scratch)?;
        if lacking > 0 {
            return Err(PlacementError::Short { objects: lacking });
        }
        totals
    };
    let objects = &objects[..totals.slots as usize];
    let ends = &ends[..totals.allocations as usize];
    let placements = Some(Placements { iterations, objects, ends });
    let plan = Plan { placements, ..plan };
    let entries = plan.steps.len().saturating_mul(iterations as usize);
    let schedule = scratch.take(entries, Scheduled::EMPTY)?;
    let pieces = Pieces::new(graph, machine, &plan, &mut scratch)?;
    let schedule = lower_pieces(graph, &plan, &pieces, schedule, &mut scratch)?;
    let (exact, _) = predict_pieces(graph, machine, &plan, &pieces, &schedule, &mut scratch)?;
    let predicted = Prediction { period_ns: exact.period_ns, ..plan.predicted };
    Ok(Plan { predicted, ..plan })
}
