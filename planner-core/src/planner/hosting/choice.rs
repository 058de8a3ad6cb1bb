//! Which of the ops that may run on the host are taken.

use crate::graph::{Graph, Kind, Op, OpId, TensorId};
use crate::host_steps::HostStep;
use crate::hosted::Hosted;
use crate::machine::Direction;
use crate::planner::error::PlanningError;
use crate::planner::request::Request;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::Sequence;
use bytemuck::Zeroable;

/// The time of all ops of a sort, which shares are fractions of.
pub(super) const WHOLE: u32 = 1 << 16;

/// Ops that are taken for the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) sort: Sort,
    /// Of the time of all ops of the sort.
    pub(super) share: u32,
    pub(super) from: From,
}

/// Which ops may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// All that may run on the host.
    Any,
    /// Of these, the ops whose results no launch reads in the same iteration, so that the device need
    /// not wait for them, and which do not take much longer there than their operands do on
    /// the links: updates of weights, as a rule.
    Late,
}

/// Where the ops are that are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum From {
    First,
    Last,
    /// At so many even distances.
    Spread(u32),
    /// The ops that the host ends sooner than the device, if the device waits until the link has brought in
    /// the share of the op's states; see [`Turns`].
    Ahead,
}

impl Choice {
    pub(super) const NONE: Self = Self { sort: Sort::Any, share: 0, from: From::First };
    pub(super) const ALL: Self = Self { sort: Sort::Any, share: WHOLE, from: From::First };

    /// The same ops, said in one way.
    pub(super) fn reduced(self) -> Self {
        match self.share {
            0 => Self::NONE,
            WHOLE => Self { from: From::First, ..self },
            _ => self,
        }
    }

    /// The same with a smaller and a larger share.
    pub(super) fn around(self, step: u32) -> [Self; 2] {
        let shares = [self.share.saturating_sub(step), (self.share + step).min(WHOLE)];
        shares.map(|share| Self { share, ..self })
    }

    /// Whether an op is taken, by the middle of its time; not for [`From::Ahead`].
    const fn takes(self, middle: u32) -> bool {
        match self.from {
            From::First => middle < self.share,
            From::Last => middle >= WHOLE - self.share,
            From::Spread(count) => (middle * count) % WHOLE < self.share,
            From::Ahead => false,
        }
    }
}

/// How many times as long as the transfers of its operands a late op may take. A balance: with
/// less, a slow host is left idle; with more, it gets work that the device does in no time.
const SLOWER: u64 = 4;

/// No op of the sort.
const NONE: u32 = u32::MAX;

/// When each op has done half of its time on the host, if all ops of its sort run one after the other
/// as they are ready.
pub(super) struct Middles<'a> {
    any: &'a [u32],
    late: &'a [u32],
}

impl<'a> Middles<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u32>(limits.ops).saturating_mul(2),
            words::<HostStep>(limits.ops),
            words::<u8>(limits.tensors),
            words::<u8>(limits.ops).saturating_mul(2),
            words::<u32>(limits.tensors),
            words::<u8>(limits.tensors),
        ])
    }

    pub(super) fn new(
        request: &Request<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanningError> {
        let graph = request.graph;
        let any = scratch.take(graph.ops().len(), NONE)?;
        let late = scratch.take(graph.ops().len(), NONE)?;
        let mut scratch = scratch.reborrow();
        if let Some(all) = Hosted::new(graph, |_| true, &mut scratch)? {
            let sequence = Sequence::as_given(graph, Some(&all), &mut scratch)?;
            let steps = scratch.take(sequence.host_steps().len(), HostStep::zeroed())?;
            steps.copy_from_slice(sequence.host_steps());
            steps.sort_unstable_by_key(|step| (step.ready, step.op));
            let is_late = find_late(request, &all, &mut scratch)?;
            let ops = || steps.iter().map(|step| step.op);
            fill(graph, ops(), any, &mut scratch)?;
            fill(graph, ops().filter(|op| is_late[op.index()] == 1), late, &mut scratch)?;
        }
        Ok(Self { any, late })
    }

    /// Whether no op may be taken.
    pub(super) fn is_none(&self) -> bool {
        self.any.iter().all(|&middle| middle == NONE)
    }

    /// Whether some ops are late, and some are not.
    pub(super) fn has_sorts(&self) -> bool {
        self.late.iter().any(|&middle| middle != NONE) && self.late != self.any
    }

    /// The ops of a choice.
    pub(super) fn take<'s>(
        &self,
        request: &Request<'_>,
        choice: Choice,
        scratch: &mut Scratch<'s>,
    ) -> Result<Option<Hosted<'s>>, OutOfScratch> {
        let graph = request.graph;
        if choice.from == From::Ahead {
            let taken = Turns::all(request, choice.share, scratch)?;
            return Hosted::new(graph, |op| taken[op.index()] == 1, scratch);
        }
        let middles = match choice.sort {
            Sort::Any => self.any,
            Sort::Late => self.late,
        };
        let takes = |op: OpId| {
            let middle = middles[op.index()];
            middle != NONE && choice.takes(middle)
        };
        Hosted::new(graph, takes, scratch)
    }
}

/// Sums up the times of ops. An op that reads a state after another has written it goes where that one
/// goes: a cache, as a rule, of which the other writes a small part.
fn fill(
    graph: &Graph<'_>,
    ops: impl Iterator<Item = OpId> + Clone,
    middles: &mut [u32],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let of_writer = scratch.take(graph.tensors().len(), NONE)?;
    let time_ns = |op: OpId| u128::from(graph.op(op).host_ns.unwrap_or(0).max(1));
    let sum_ns: u128 = ops.clone().map(time_ns).sum();
    let mut before_ns = 0;
    for op in ops {
        let middle_ns = before_ns + time_ns(op) / 2;
        let middle = (middle_ns * u128::from(WHOLE) / sum_ns.max(1)) as u32;
        let writers = graph.reads(op).iter().map(|tensor| of_writer[tensor.index()]);
        let middle = writers.fold(middle, u32::min);
        middles[op.index()] = middle;
        for &tensor in graph.writes(op) {
            if graph.tensor(tensor).kind == Kind::State {
                of_writer[tensor.index()] = middle;
            }
        }
        before_ns += time_ns(op);
    }
    Ok(())
}

/// The part of the budget, as a fraction, that the link may fill before it is needed. A balance: with more,
/// the device gets whole layers in a row, which need memory at once; with less, the link rests.
const FILLED: u64 = 8;

/// Bits for the processors that made a value.
const DEVICE: u8 = 1;
const HOST: u8 = 2;

/// Two processors that run one op after the other. Before the device runs an op, the link brings in a share of
/// each state that the op reads; the rest has stayed. The link goes on while the host computes.
struct Turns<'t> {
    request: &'t Request<'t>,
    share: u32,
    /// The processor that made the value of each tensor in this iteration.
    made_by: &'t mut [u8],
    /// When the last op ended.
    now_ns: u64,
    /// When the link has brought in all states of the ops so far.
    link_ns: u64,
    /// The longest time that the link may be ahead of the ops.
    filled_ns: u64,
    /// The time in which a value reaches the other processor.
    to_device_ns: u64,
    to_host_ns: u64,
}

impl Turns<'_> {
    /// Returns 1 for each op that the host ends sooner, and 0 for every other op.
    fn all<'s>(
        request: &Request<'_>,
        share: u32,
        scratch: &mut Scratch<'s>,
    ) -> Result<&'s [u8], OutOfScratch> {
        let graph = request.graph;
        let taken = scratch.take(graph.ops().len(), 0u8)?;
        let made_by = scratch.take(graph.tensors().len(), 0u8)?;
        let moves_ns = |direction, bytes| moves_ns(request, direction, bytes);
        let mut turns = Turns {
            request,
            share,
            made_by,
            now_ns: 0,
            link_ns: 0,
            filled_ns: moves_ns(Direction::HostToDevice, request.budget_bytes / FILLED),
            // On average, a value waits for half of a chunk that the link is moving.
            to_device_ns: moves_ns(Direction::HostToDevice, request.machine.chunk_bytes / 2),
            to_host_ns: moves_ns(Direction::DeviceToHost, 1),
        };
        // The first iteration shows how far the link is ahead when the second one begins.
        for _iteration in 0..2 {
            turns.made_by.fill(0);
            for op in graph.op_ids() {
                taken[op.index()] = u8::from(turns.is_on_host(op));
            }
        }
        Ok(taken)
    }

    /// Runs an op on the processor that ends it sooner, and returns whether that is the host. An op that
    /// reads an updated state runs on the processor that updated the state.
    fn is_on_host(&mut self, op: OpId) -> bool {
        let graph = self.request.graph;
        let Op { time_ns, host_ns, .. } = graph.op(op);
        let makers = |kind| {
            let read = graph.reads(op).iter().filter(|tensor| graph.tensor(**tensor).kind == kind);
            read.fold(0, |makers, tensor| makers | self.made_by[tensor.index()])
        };
        let (of_states, of_values) = (makers(Kind::State), makers(Kind::Temporary));
        let up_ns = if of_values & HOST == 0 { 0 } else { self.to_device_ns };
        let down_ns = if of_values & DEVICE == 0 { 0 } else { self.to_host_ns };
        let brought_ns = self.link_ns.saturating_add(self.brings_ns(op));
        let start_ns = self.now_ns.saturating_add(up_ns).max(brought_ns);
        let device_ns = start_ns.saturating_add(time_ns);
        let host_ns = host_ns.filter(|_| of_states != DEVICE);
        let host_ns = host_ns.map(|ns| self.now_ns.saturating_add(down_ns).saturating_add(ns));
        let sooner = host_ns.filter(|&host_ns| of_states == HOST || host_ns < device_ns);
        self.now_ns = sooner.unwrap_or(device_ns);
        self.link_ns = if sooner.is_some() { self.link_ns } else { brought_ns };
        self.link_ns = self.link_ns.max(self.now_ns.saturating_sub(self.filled_ns));
        for tensor in graph.writes(op) {
            self.made_by[tensor.index()] = if sooner.is_some() { HOST } else { DEVICE };
        }
        sooner.is_some()
    }

    /// The time in which the link brings in the share of the states that an op reads.
    fn brings_ns(&self, op: OpId) -> u64 {
        let graph = self.request.graph;
        let tensors = graph.reads(op).iter().map(|&tensor| graph.tensor(tensor));
        let states = tensors.filter(|tensor| tensor.kind == Kind::State);
        let bytes = states.fold(0u64, |sum, state| sum.saturating_add(state.bytes));
        match u128::from(bytes) * u128::from(self.share) / u128::from(WHOLE) {
            0 => 0,
            // A share is at most the whole, so the quotient is at most `bytes`.
            bytes => moves_ns(self.request, Direction::HostToDevice, bytes as u64),
        }
    }
}

/// The time of a transfer; the longest time if it overflows.
fn moves_ns(request: &Request<'_>, direction: Direction, bytes: u64) -> u64 {
    request.machine.transfer_ns(direction, bytes).unwrap_or(u64::MAX)
}

/// Finds the ops of [`Sort::Late`]: what they make is read by such ops alone.
fn find_late<'s>(
    request: &Request<'_>,
    all: &Hosted<'_>,
    scratch: &mut Scratch<'s>,
) -> Result<&'s [u8], OutOfScratch> {
    let graph = request.graph;
    let is_late = scratch.take(graph.ops().len(), 0u8)?;
    // Whether an op that is not late reads the value that a tensor has at some point.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Tensor;
    use crate::machine::Machine;

    const S: u64 = 1_000_000_000;

    /// Whether each of eight layers is done sooner on the host. The device takes a second for one, the link 100
    /// seconds for all of its weights; the link may be two layers ahead.
    fn layers_on_host(share: u32, host_s: u64) -> [bool; 8] {
        let weights = Tensor { bytes: 100, kind: Kind::State };
        let value = Tensor { bytes: 1, kind: Kind::Temporary };
        let mut tensors = [weights; 16];
        tensors[8..].fill(value);
        let mut operands = [TensorId(0); 23];
        let mut ops = [Op { time_ns: S, host_ns: Some(host_s * S), ..Op::default() }; 8];
        let mut at = 0;
        for layer in 0..8u32 {
            let reads = if layer == 0 { &[0][..] } else { &[layer, 7 + layer] };
            let touched = reads.iter().copied().chain([8 + layer]);
            let op = &mut ops[layer as usize];
            (op.first_operand, op.reads, op.writes) = (at as u32, reads.len() as u32, 1);
            for tensor in touched {
                operands[at] = TensorId(tensor);
                at += 1;
            }
        }
        let mut words = [0; 1024];
        let mut scratch = Scratch::new(&mut words);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let machine = Machine::of_chunks(1);
        let request = Request { graph: &graph, machine: &machine, budget_bytes: 200 * FILLED };
        let taken = Turns::all(&request, share, &mut scratch).unwrap();
        core::array::from_fn(|layer| taken[layer] == 1)
    }

    #[test]
    fn host_and_device_take_turns_where_the_host_is_little_faster_than_the_link() {
        let on_host = layers_on_host(WHOLE, 60);
        assert_eq!(on_host.iter().filter(|&&on_host| on_host).count(), 4, "{on_host:?}");
        assert!(on_host.windows(2).all(|pair| pair[0] != pair[1]), "{on_host:?}");
    }

    #[test]
    fn a_slow_host_gets_nothing_nor_does_one_whose_device_waits_for_nothing() {
        assert_eq!(layers_on_host(WHOLE, 1000), [false; 8]);
        assert_eq!(layers_on_host(0, 100), [false; 8]);
    }

    #[test]
    fn who_reads_an_updated_state_runs_where_it_was_updated() {
        let tensor = |bytes, kind| Tensor { bytes, kind };
        let tensors = [tensor(100, Kind::State), tensor(1, Kind::State)];
        let op = |first_operand, reads, writes, host_s| {
            let (time_ns, host_ns) = (S, Some(host_s * S));
            Op { time_ns, first_operand, reads, writes, host_ns, ..Op::default() }
        };
        let operands = [0, 1, 1].map(TensorId);
        for (host_s, reader_host_s, side) in [(5, 10_000, 1), (5000, 0, 0)] {
            let ops = [op(0, 1, 1, host_s), op(2, 1, 0, reader_host_s)];
            let mut words = [0; 1024];
            let mut scratch = Scratch::new(&mut words);
            let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
            let machine = Machine::of_chunks(1);
            let request = Request { graph: &graph, machine: &machine, budget_bytes: 100 };
            assert_eq!(Turns::all(&request, WHOLE, &mut scratch).unwrap(), [side; 2]);
        }
    }
}
