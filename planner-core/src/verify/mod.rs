//! Proves that a schedule is safe.
//!
//! `verify` trusts neither the plan nor the schedule. It shares two modules with
//! [`lower`](crate::lower()): the table of pieces (`pieces`) and the trees over pieces (`ranges`);
//! an error in these could hide from it. From the waits alone, it proves for every execution that
//! respects them that
//!
//! * each op reads the current value of every tensor, and each repeat reads the values that the
//!   first launch read (`order`, `values`),
//! * no step overwrites memory that another step still uses: device memory and the host copy of one
//!   tensor (`races`), and host bytes that temporaries share (`slots`),
//! * no object has two owners, and no pool gives out more objects than it has (`grants`, or
//!   `placements` if the plan fixes the objects of each allocation),
//! * no value is lost, and each iteration ends in the state in which it began (`values`).
//!
//! It computes the layout of the host block as the executor does, so it also proves that the
//! machine has enough host memory and that no two slots overlap, except slots of temporaries that
//! are used one after the other (`slots`).

mod arena;
mod clocks;
mod copies;
mod grants;
mod order;
mod placements;
mod races;
mod slots;
mod values;
mod versions;

use crate::graph::{Graph, TensorId};
use crate::host::HostLayout;
use crate::machine::Machine;
use crate::pieces::Pieces;
use crate::plan::{Plan, PlanError, Step};
use crate::schedule::{PerStream, Schedule, Stream};
use crate::scratch::{Limits, OutOfScratch, Scratch, larger, total};
use clocks::Clocks;
use core::fmt;

/// A plan with its schedule, proved safe. An executor runs nothing else.
#[derive(Clone, Copy, Debug)]
pub struct Verified<'a> {
    graph: Graph<'a>,
    machine: Machine,
    plan: Plan<'a>,
    schedule: Schedule<'a>,
}

impl<'a> Verified<'a> {
    /// The graph.
    #[must_use]
    pub const fn graph(&self) -> &Graph<'a> {
        &self.graph
    }

    /// The machine.
    #[must_use]
    pub const fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The plan.
    #[must_use]
    pub const fn plan(&self) -> &Plan<'a> {
        &self.plan
    }

    /// The schedule.
    #[must_use]
    pub const fn schedule(&self) -> &Schedule<'a> {
        &self.schedule
    }

    /// Whether the op that writes a tensor last in an iteration runs on the host. Then the host
    /// holds the last value, and the device may hold an older one. O(steps), or O(1) if no op runs
    /// on the host.
    pub(crate) fn is_last_written_on_host(&self, tensor: TensorId) -> bool {
        let writes = |step: &&Step| {
            let launched = step.launched();
            launched.is_some_and(|launched| self.graph.written_by(launched).any(|it| it == tensor))
        };
        self.schedule.stream_steps[Stream::Host] > 0
            && matches!(self.plan.steps.iter().rev().find(writes), Some(Step::Host(_)))
    }
}

/// Why a schedule is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerifyError {
    /// The plan itself breaks a rule.
    Plan(PlanError),
    /// The schedule does not belong to this plan, from this step on.
    NotThisPlan {
        /// The step.
        step: u32,
    },
    /// A wait for a step that does not exist, is on the same stream, or is listed later.
    BadWait {
        /// The step that waits.
        step: u32,
        /// The stream that it waits for.
        stream: Stream,
    },
    /// The waits let a step start while another step still uses the same memory, or before the data
    /// it needs is there.
    Race {
        /// The step that may start too early; for an evict, whose memory may count as free too
        /// early.
        step: u32,
        /// The stream whose step it must wait for.
        stream: Stream,
        /// The tensor that both use.
        tensor: TensorId,
    },
    /// A slot of the tensor shares bytes of the host block with another slot, or reaches past the
    /// block's end.
    HostBytes {
        /// The tensor.
        tensor: TensorId,
    },
    /// The step reads bytes of the host block that another tensor has overwritten.
    HostTaken {
        /// The step.
        step: u32,
        /// The tensor that it reads.
        tensor: TensorId,
    },
    /// The waits let a step allocate objects whose last owner may still use them.
    Memory {
        /// The step that allocates.
        step: u32,
        /// The stream whose step it must wait for.
        stream: Stream,
        /// The pool.
        pool: u32,
    },
}

impl From<PlanError> for VerifyError {
    fn from(error: PlanError) -> Self {
        Self::Plan(error)
    }
}

impl From<OutOfScratch> for VerifyError {
    fn from(error: OutOfScratch) -> Self {
        Self::Plan(PlanError::Scratch(error))
    }
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(error) => error.fmt(f),
            Self::NotThisPlan { step } => {
                write!(f, "step {step}: the schedule was not made from this plan")
            }
            Self::BadWait { step, stream } => {
                write!(f, "step {step}: it cannot wait for this step of the {stream} stream")
            }
            Self::Race { step, stream, tensor } => write!(
                f,
                "step {step}: nothing makes it wait for the {stream} stream, which may still \
                 use {tensor}"
            ),
            Self::HostBytes { tensor } => {
                write!(f, "{tensor} shares bytes of the host block with another tensor")
            }
            Self::HostTaken { step, tensor } => write!(
                f,
                "step {step}: it reads {tensor} on the host, but another tensor overwrote its bytes"
            ),
            Self::Memory { step, stream, pool } => write!(
                f,
                "step {step}: nothing makes it wait for the {stream} stream, which may still \
                 use the objects that it takes from pool {pool}"
            ),
        }
    }
}

impl core::error::Error for VerifyError {}

/// A step of each stream, relative to the current iteration. On a stream of `n` steps, step `i` of
/// the iteration `l` iterations back is the number `i - l * n`.
type Points = PerStream<i64>;

/// Before all steps.
const NEVER: i64 = i64::MIN;

fn later(one: Points, other: Points) -> Points {
    PerStream::from_fn(|stream| one[stream].max(other[stream]))
}

/// The same points, relative to an iteration that many iterations later.
fn seen_later(points: Points, iterations: i64, stream_steps: PerStream<u32>) -> Points {
    // Nearly all waits are for steps of the same iteration.
    if iterations == 0 {
        return points;
    }
    PerStream::from_fn(|stream| {
        let steps = i64::from(stream_steps[stream]);
        points[stream].saturating_sub(iterations.saturating_mul(steps))
    })
}

/// Words of scratch that [`verify`] needs, by [`Limits::of_plan`]: per step 18, per tensor 28 (and
/// 300), per operand 1, per piece 11, per op 0.2, per pool 2. With placements: 9 per step and 5
/// more for each iteration that they cover, and 2 per object number.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    // These checks run one after the other, before the clocks are computed.
    let of_plan = larger(
        order::scratch_words(limits),
        larger(arena::scratch_words(limits), values::scratch_words(limits)),
    );
    let of_schedule = total([
        Clocks::scratch_words(limits),
        races::scratch_words(limits),
        larger(
            slots::scratch_words(limits),
            larger(grants::scratch_words(limits), placements::scratch_words(limits)),
        ),
    ]);
    let proof = larger(of_plan, of_schedule);
    let host = HostLayout::words_beside_pieces(limits);
    let kept = HostLayout::kept_words(limits);
    total([Pieces::scratch_words(limits), kept, larger(host, proof)])
}

/// Proves a schedule safe. O((steps + operands) log steps), plus the time of [`HostLayout::new`].
///
/// # Errors
/// The first broken rule or missing wait, with the step.
pub fn verify<'a>(
    graph: &Graph<'a>,
    machine: &Machine,
    plan: &Plan<'a>,
    schedule: &Schedule<'a>,
    scratch: &mut Scratch<'_>,
) -> Result<Verified<'a>, VerifyError> {
    let mut scratch = scratch.reborrow();
    let pieces = Pieces::new(graph, machine, plan, &mut scratch)?;
    order::check(graph, plan, &mut scratch.reborrow())?;
    arena::check(&pieces, &mut scratch.reborrow())?;
    values::check(graph, plan, &pieces, &mut scratch.reborrow())?;
    let layout = HostLayout::of_pieces(graph, machine, plan, &pieces, &mut scratch)?;
    let clocks = Clocks::new(graph, plan, schedule, &mut scratch)?;
    let freed = races::check(graph, &pieces, &clocks, &mut scratch)?;
    slots::check(&pieces, &layout, &clocks, &mut scratch.reborrow())?;
    match plan.placements {
        None => grants::check(graph, plan, &pieces, &clocks, freed, &mut scratch)?,
        Some(table) => {
            placements::check(graph, plan, table, &pieces, &clocks, freed, &mut scratch)?;
        }
    }
    Ok(Verified { graph: *graph, machine: *machine, plan: *plan, schedule: *schedule })
}
