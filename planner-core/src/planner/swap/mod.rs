//! The swap planner of SwapAdvisor (Huang et al., ASPLOS 2020, section 4.2): whole tensors in size
//! classes, in a given order of the ops.
//!
//! * [`Classes`] are pools of objects of one size. A tensor takes one object.
//! * If an op needs an object of a class without a free object, a tensor of the class is evicted:
//!   among the tensors last used at least a [`Threshold`] of time ago, the tensor whose next use is
//!   last (`belady`).
//! * Evicts and prefetches happen as early as is safe (`timing`).
//!
//! A value that the host holds is dropped without a copy, as published for parameters. There is no
//! arena: small tensors have classes of their own.
//!
//! This planner does not use the builder's residency: a class grants memory by count before the
//! list shows it free, and evicts are chosen before anything is listed.

#![expect(clippy::indexing_slicing, reason = "lengths are those of lists in these buffers")]

mod arrivals;
mod belady;
mod classes;
mod recent;
mod timing;

pub use classes::Classes;

use super::error::PlanningError;
use super::list::{Lengths, List, Stuck};
use super::request::{Request, Task};
use super::uses::Uses;
use crate::host::HostLayout;
use crate::lower::{self, lower_pieces};
use crate::machine::{Direction, Machine};
use crate::pieces::Pieces;
use crate::plan::{Plan, Prediction, Resident, Step};
use crate::schedule::Scheduled;
use crate::scratch::{Buffer, BufferTooShort, Limits, Scratch, larger, total, words};
use crate::sequence::Sequence;
use crate::timeline::{self, predict_pieces};
use belady::Choice;

/// The least time since its last use after which a tensor is evicted, if there is such a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Threshold {
    /// The time of a transfer of an object of the class to the host and back.
    #[default]
    RoundTrip,
    /// This many nanoseconds of compute.
    Ns(u64),
}

impl Threshold {
    fn ns(self, machine: &Machine, object_bytes: u64) -> u64 {
        let transfer_ns =
            |direction| machine.transfer_ns(direction, object_bytes).unwrap_or(u64::MAX);
        match self {
            Self::Ns(ns) => ns,
            Self::RoundTrip => transfer_ns(Direction::DeviceToHost)
                .saturating_add(transfer_ns(Direction::HostToDevice)),
        }
    }
}

/// Buffers for the lists of a plan, owned by the caller. Their lengths follow from the [limits of
/// the graph](Limits::of_graph).
#[derive(Debug)]
pub struct SwapOutput<'o> {
    /// The list. [`Limits::max_steps`] entries always suffice.
    pub steps: &'o mut [Step],
    /// One entry for each tensor.
    pub resident: &'o mut [Resident],
}

/// Words of scratch that [`plan`] needs, by the [limits of the graph](Limits::of_graph) with as
/// many [steps](Limits::with_steps) as the output has; `pools` is the number of classes. Per
/// operand 8, per tensor 10 and per op 1 while the list is written; or the words for a schedule and
/// for lowering or predicting the list.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    let write = larger(belady::scratch_words(limits), timing::scratch_words(limits));
    let write = total([
        Sequence::scratch_words(limits),
        Sequence::working_words(limits),
        Uses::scratch_words(limits),
        Choice::scratch_words(limits),
        write,
    ]);
    let predict = larger(timeline::scratch_words(limits), HostLayout::scratch_words(limits));
    let judge = larger(lower::scratch_words(limits), predict);
    let schedule = words::<Scheduled>(limits.steps);
    let judge = total([schedule, Pieces::scratch_words(limits), judge]);
    larger(Classes::needs_scratch_words(limits).saturating_add(limits.pools), larger(write, judge))
}

/// Plans in these classes. The same input always gives the same plan.
///
/// # Errors
/// Classes that exceed the budget or are too small for an op, with the least budget for classes of
/// these sizes; a host that is too small; buffers that are too short; too little scratch.
pub fn plan<'o>(
    request: &Request<'_>,
    classes: Classes<'o>,
    threshold: Threshold,
    output: SwapOutput<'o>,
    scratch: &mut Scratch<'_>,
) -> Result<Plan<'o>, PlanningError> {
    let (budget_bytes, device_bytes) = (request.budget_bytes, request.machine.device_bytes);
    if budget_bytes > device_bytes {
        return Err(PlanningError::BudgetAboveDevice { budget_bytes, device_bytes });
    }
    let SwapOutput { steps, resident } = output;
    let buffers = SwapOutput { steps: &mut *steps, resident: &mut *resident };
    let (lengths, _) = write(request, &classes, threshold, buffers, scratch)?;
    let plan = Plan {
        budget_bytes,
        arena_bytes: 0,
        arena: &[],
        pools: classes.pools,
        tensor_pool: classes.tensor_pool,
        workspace_pool: classes.workspace_pool,
        resident_at_start: &resident[..lengths.resident],
        steps: &steps[..lengths.steps],
        placements: None,
        predicted: Prediction::default(),
    };
    let mut scratch = scratch.reborrow();
    let Request { graph, machine, .. } = *request;
    let schedule = scratch.take(plan.steps.len(), Scheduled::EMPTY)?;
    let pieces = Pieces::new(graph, machine, &plan, &mut scratch)?;
    let schedule = lower_pieces(graph, &plan, &pieces, schedule, &mut scratch)?;
    let (predicted, _) = predict_pieces(graph, machine, &plan, &pieces, &schedule, &mut scratch)?;
    let host = HostLayout::of_pieces(graph, machine, &plan, &pieces, &mut scratch)?;
    let predicted = Prediction { host_bytes: host.moved_bytes(), ..predicted };
    Ok(Plan { predicted, ..plan })
}

/// The time of an iteration of [`plan`] by the planner's own simulation, which does not model the
/// order in which memory is freed. It is close to the period, for part of the work.
///
/// # Errors
/// The errors of [`plan`], except for a host that is too small.
pub fn estimate_ns(
    request: &Request<'_>,
    classes: Classes<'_>,
    threshold: Threshold,
    output: SwapOutput<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<u64, PlanningError> {
    let (_, iteration_ns) = write(request, &classes, threshold, output, scratch)?;
    Ok(iteration_ns)
}

fn write(
    request: &Request<'_>,
    classes: &Classes<'_>,
    threshold: Threshold,
    SwapOutput { steps, resident }: SwapOutput<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(Lengths, u64), PlanningError> {
    classes.check(request, scratch)?;
    let len = steps.len();
    let resident = Buffer::Resident.first(resident, request.graph.tensors().len())?;
    let mut scratch = scratch.reborrow();
    let sequence = Sequence::as_given(request.graph, None, &mut scratch)?;
    let task = Task::new(request, &sequence);
    let uses = Uses::new(&sequence, &mut scratch)?;
    let mut choice = Choice::new(&sequence, &mut scratch)?;
    choice.choose(&task, classes, &uses, threshold, &mut scratch)?;
    match timing::write(&task, classes, &uses, &choice, List::new(steps, resident), &mut scratch) {
        Ok(written) => Ok(written),
        Err(Stuck::ManySteps { needed }) => {
            Err(BufferTooShort { buffer: Buffer::Steps, needed, len }.into())
        }
        Err(Stuck::Scratch(error)) => Err(error.into()),
        Err(Stuck::NoMemory) => Err(PlanningError::Stuck),
    }
}
