//! A choice of ops for the host.

#![expect(
    clippy::indexing_slicing,
    reason = "ids are those of the checked graph, and the arrays have an entry for each op and \
              tensor"
)]

use super::kinds::{self, Counts, Kinds, Places};
use super::turns::{self, moves_ns};
use crate::graph::{Graph, Kind, OpId, TensorId};
use crate::host_steps::HostStep;
use crate::hosted::Hosted;
use crate::machine::Direction;
use crate::planner::error::PlanningError;
use crate::planner::request::Request;
use crate::scratch::{Limits, OutOfScratch, Scratch, larger, total, words};
use crate::sequence::Sequence;
use bytemuck::Zeroable;

/// The share that means all ops of a class.
pub(super) const WHOLE: u32 = 1 << 16;

/// A choice of ops for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Share(Share),
    /// A number of ops of each kind. An op without a kind follows the ops around it.
    Counts(Counts, Places),
}

/// A share of the ops of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) class: OpClass,
    /// The share of the total time of all ops of the class.
    pub(super) share: u32,
    pub(super) position: Position,
}

/// The class of ops from which a choice takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpClass {
    /// All ops that may run on the host.
    Any,
    /// Of these, the ops whose results no launch reads in the same iteration, so that the device
    /// need not wait for them, and which do not take much longer on the host than their operands do
    /// on the links. These are usually updates of weights.
    Late,
}

/// The position of the taken ops among all ops of the class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    First,
    Last,
    /// At this many even distances.
    Spread(u32),
    /// The ops that the host ends sooner than the device, if the device waits until the link has
    /// uploaded the share of the op's states; see [`turns`].
    Ahead,
}

impl Choice {
    pub(super) const NONE: Self = Self::Share(Share::ALL.with(0));
    pub(super) const ALL: Self = Self::Share(Share::ALL);

    /// The canonical form of a choice with the same ops.
    pub(super) fn reduced(self) -> Self {
        match self {
            Self::Share(Share { share: 0, .. }) => Self::NONE,
            Self::Share(Share { class, share: WHOLE, .. }) => {
                Self::Share(Share { class, ..Share::ALL })
            }
            _ => self,
        }
    }

    /// Whether two choices differ only in the number of ops.
    pub(super) fn is_like(self, other: Self) -> bool {
        match (self, other) {
            (Self::Share(one), Self::Share(other)) => one.with(0) == other.with(0),
            (Self::Counts(_, places), Self::Counts(_, others)) => places == others,
            _ => false,
        }
    }
}

impl Share {
    pub(super) const ALL: Self =
        Self { class: OpClass::Any, share: WHOLE, position: Position::First };

    pub(super) const fn with(self, share: u32) -> Self {
        Self { share, ..self }
    }

    /// Whether an op is taken, by the middle of its time; not for [`Position::Ahead`].
    const fn takes(self, middle: u32) -> bool {
        match self.position {
            Position::First => middle < self.share,
            Position::Last => middle >= WHOLE.saturating_sub(self.share),
            Position::Spread(count) => middle.saturating_mul(count) % WHOLE < self.share,
            Position::Ahead => false,
        }
    }
}

/// The time that a late op may take, as a multiple of the time of its operands' transfers. A
/// balance: with less, a slow host idles; with more, it gets work that the device does in no time.
const SLOWER: u64 = 4;

/// The op is not of the class.
const NONE: u32 = u32::MAX;

/// The time at which each op has done half of its work on the host, as a part of [`WHOLE`], if all
/// ops of its class run one after the other as they become ready.
pub(super) struct Middles<'a> {
    any: &'a [u32],
    late: &'a [u32],
    pub(super) kinds: Kinds<'a>,
}

impl<'a> Middles<'a> {
    pub(super) const fn kept_words(limits: &Limits) -> usize {
        let middles = words::<u32>(limits.ops).saturating_mul(2);
        middles.saturating_add(Kinds::kept_words(limits))
    }

    /// Words in addition to those kept, also for [`take`](Self::take).
    pub(super) const fn working_words(limits: &Limits) -> usize {
        let late = total([
            words::<HostStep>(limits.ops),
            words::<u8>(limits.tensors),
            words::<u8>(limits.ops).saturating_mul(2),
            words::<u32>(limits.tensors),
            words::<u8>(limits.tensors),
        ]);
        larger(late, Kinds::working_words(limits))
    }

    pub(super) fn new(
        request: &Request<'_>,
        order: &[OpId],
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanningError> {
        let graph = request.graph;
        let any = scratch.take(graph.ops().len(), NONE)?;
        let late = scratch.take(graph.ops().len(), NONE)?;
        let kinds = Kinds::new(graph, order, scratch)?;
        let mut scratch = scratch.reborrow();
        if let Some(all) = Hosted::new(graph, |_| true, &mut scratch)? {
            let order = order.iter().copied();
            let sequence = Sequence::new(graph, Some(&all), order, &mut scratch)?;
            let steps = scratch.take(sequence.host_steps().len(), HostStep::zeroed())?;
            steps.copy_from_slice(sequence.host_steps());
            steps.sort_unstable_by_key(|step| (step.ready, step.op));
            let is_late = find_late(request, &all, &mut scratch)?;
            let ops = || steps.iter().map(|step| step.op);
            fill(graph, ops(), any, &mut scratch)?;
            fill(graph, ops().filter(|op| is_late[op.index()] == 1), late, &mut scratch)?;
        }
        Ok(Self { any, late, kinds })
    }

    /// Whether some ops are late and some are not.
    pub(super) fn has_classes(&self) -> bool {
        self.late.iter().any(|&middle| middle != NONE) && self.late != self.any
    }

    /// The ops of a choice, given the order of all ops.
    pub(super) fn take<'s>(
        &self,
        request: &Request<'_>,
        (choice, order): (Choice, &[OpId]),
        scratch: &mut Scratch<'s>,
    ) -> Result<Option<Hosted<'s>>, OutOfScratch> {
        let graph = request.graph;
        let taken = match choice {
            Choice::Counts(counts, places) => {
                self.with_neighbours(order, (&counts, places), scratch)?
            }
            Choice::Share(Share { position: Position::Ahead, share, .. }) => {
                turns::ahead(request, order, share, scratch)?
            }
            Choice::Share(share) => {
                let middles = match share.class {
                    OpClass::Any => self.any,
                    OpClass::Late => self.late,
                };
                let takes = |op: OpId| {
                    let middle = middles[op.index()];
                    middle != NONE && share.takes(middle)
                };
                return Hosted::new(graph, takes, scratch);
            }
        };
        Hosted::new(graph, |op| taken[op.index()] == 1, scratch)
    }

    /// For each op, 1 if the host runs it by the counts of kinds. An op without a kind runs on the
    /// host if the ops with a kind before and after it do.
    fn with_neighbours<'s>(
        &self,
        order: &[OpId],
        (counts, places): (&Counts, Places),
        scratch: &mut Scratch<'s>,
    ) -> Result<&'s [u8], OutOfScratch> {
        let taken = scratch.take(order.len(), 0u8)?;
        let mut before = true;
        for &op in order {
            before = self.kinds.takes(op, counts, places).unwrap_or(before);
            taken[op.index()] = u8::from(before);
        }
        let mut after = true;
        for &op in order.iter().rev() {
            after = self.kinds.takes(op, counts, places).unwrap_or(after);
            taken[op.index()] &= u8::from(after);
        }
        Ok(taken)
    }
}

/// Sums up the times of ops. An op that reads a state after another op has written it gets the
/// middle of that op: usually a cache, of which the other op writes a small part.
fn fill(
    graph: &Graph<'_>,
    ops: impl Iterator<Item = OpId> + Clone,
    middles: &mut [u32],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let of_writer = scratch.take(graph.tensors().len(), NONE)?;
    let time_ns = |op: OpId| u128::from(kinds::time_ns(graph, op));
    let sum_ns: u128 = ops.clone().map(time_ns).sum();
    let mut before_ns = 0u128;
    for op in ops {
        let middle_ns = before_ns.saturating_add(time_ns(op) / 2);
        let middle = middle_ns.saturating_mul(WHOLE.into()).checked_div(sum_ns).unwrap_or(0) as u32;
        let writers = graph.reads(op).iter().map(|tensor| of_writer[tensor.index()]);
        let middle = writers.fold(middle, u32::min);
        middles[op.index()] = middle;
        for &tensor in graph.writes(op) {
            if graph.tensor(tensor).kind == Kind::State {
                of_writer[tensor.index()] = middle;
            }
        }
        before_ns = before_ns.saturating_add(time_ns(op));
    }
    Ok(())
}

/// Finds the ops of the late class: only such ops read their results.
fn find_late<'s>(
    request: &Request<'_>,
    all: &Hosted<'_>,
    scratch: &mut Scratch<'s>,
) -> Result<&'s [u8], OutOfScratch> {
    let graph = request.graph;
    let is_late = scratch.take(graph.ops().len(), 0u8)?;
    // 1 if an op that is not late reads the current value of a tensor.
    let is_read = scratch.take(graph.tensors().len(), 0u8)?;
    for op in graph.op_ids().rev() {
        let writes = || graph.writes(op).iter().map(|tensor| tensor.index());
        let serves = all.contains(op) && writes().all(|tensor| is_read[tensor] == 0);
        let late = serves && !is_slow(request, op);
        is_late[op.index()] = u8::from(late);
        writes().for_each(|tensor| is_read[tensor] = 0);
        if !late {
            graph.reads(op).iter().for_each(|tensor| is_read[tensor.index()] = 1);
        }
    }
    Ok(is_late)
}

/// Whether an op takes much longer on the host than its operands do on the links.
fn is_slow(request: &Request<'_>, op: OpId) -> bool {
    let graph = request.graph;
    let operands_ns = |direction, tensors: &[TensorId]| {
        let bytes = tensors.iter().map(|&tensor| graph.tensor(tensor).bytes);
        let bytes = bytes.fold(0, u64::saturating_add);
        moves_ns(request, direction, bytes)
    };
    let up_ns = operands_ns(Direction::HostToDevice, graph.reads(op));
    let down_ns = operands_ns(Direction::DeviceToHost, graph.writes(op));
    let most_ns = up_ns.saturating_add(down_ns).saturating_mul(SLOWER);
    graph.op(op).host_ns.is_some_and(|host_ns| host_ns > most_ns)
}
