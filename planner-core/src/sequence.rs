//! A sequence: the launches of ops in the order in which they run. The second launch of an op and
//! every later launch of it are repeats.

#![expect(
    clippy::indexing_slicing,
    reason = "ids are those of the sequence and the checked graph, and `launches` has one entry \
              more"
)]

use crate::graph::{Graph, Launched, OpId, Tensor, TensorId};
use crate::host_steps::{self, HostStep};
use crate::hosted::Hosted;
use crate::plan::PlanError;
use crate::schedule::{PerStream, Stream};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use bytemuck::{Pod, Zeroable};
use core::ops::Range;

/// A position in a [`Sequence`]: one launch of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct LaunchId(pub(crate) u32);

impl LaunchId {
    /// The id as an index.
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }

    /// The position after this one.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "launches are numbered in 31 bits")]
    pub(crate) const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

/// One launch. Its operands have slots of their own, since two launches of an op differ in the next
/// uses of their tensors.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Launch {
    op: OpId,
    /// 1 for a repeat.
    is_repeat: u32,
    first_slot: u32,
    /// The slot of the first operand that is written.
    first_write: u32,
}

/// Launches, and the operands of all of them. The last entry of `launches` is not a launch: its
/// first slot is the end of the operands of the launch before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sequence<'a> {
    graph: &'a Graph<'a>,
    launches: &'a [Launch],
    operands: &'a [TensorId],
    hosted: Option<&'a Hosted<'a>>,
    host_steps: &'a [HostStep],
    /// The time of all launches of each stream.
    busy_ns: PerStream<u64>,
    weighs_loads: bool,
}

impl<'a> Sequence<'a> {
    /// Words that a sequence takes.
    pub(crate) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<Launch>(limits.ops.saturating_add(1)),
            words::<TensorId>(limits.operands),
            words::<u8>(limits.ops),
            host_steps::scratch_words(limits),
        ])
    }

    /// Words of scratch for making a sequence; they are free again afterwards.
    pub(crate) const fn working_words(limits: &Limits) -> usize {
        host_steps::working_words(limits)
    }

    /// Launches ops of a graph in an order that keeps its dependencies, except the ops that run on
    /// the host. O(operands), plus sorting the ops on the host.
    ///
    /// # Errors
    /// More launches or operands than fit into 31 bits; too little scratch.
    pub(crate) fn new(
        graph: &'a Graph<'a>,
        hosted: Option<&'a Hosted<'a>>,
        order: impl Iterator<Item = OpId> + Clone,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let on_host = |op| hosted.is_some_and(|hosted| hosted.contains(op));
        let order = order.filter(|&op| !on_host(op));
        let (mut len, mut slots) = (0usize, 0usize);
        for op in order.clone() {
            len = len.saturating_add(1);
            slots = slots.saturating_add(graph.operands_of(op).len());
        }
        // The planner marks launches and slots with one more bit.
        const MOST: usize = u32::MAX as usize >> 1;
        if len > MOST || slots > MOST {
            return Err(PlanError::TooManySteps);
        }
        let launches = scratch.take(len.saturating_add(1), Launch::zeroed())?;
        let operands = scratch.take(slots, TensorId(0))?;
        let seen = scratch.reborrow().take(graph.ops().len(), 0u8)?;
        let mut slot = 0usize;
        for (launch, op) in launches.iter_mut().zip(order) {
            let is_repeat = core::mem::replace(&mut seen[op.index()], 1) == 1;
            let launched = Launched { op, is_repeat };
            let first_slot = slot as u32;
            let mut push = |tensor| {
                operands[slot] = tensor;
                slot = slot.saturating_add(1);
            };
            graph.read_by(launched).for_each(&mut push);
            let reads = graph.read_by(launched).count() as u32;
            graph.written_by(launched).for_each(push);
            *launch = Launch {
                op,
                is_repeat: u32::from(is_repeat),
                first_slot,
                first_write: first_slot.saturating_add(reads),
            };
        }
        launches[len].first_slot = slot as u32;
        let operands = &operands[..slot];
        let busy_ns = PerStream::all(0u64);
        let (host_steps, weighs_loads) = (&[][..], false);
        let mut sequence =
            Self { graph, launches, operands, hosted, host_steps, busy_ns, weighs_loads };
        for launch in sequence.launches() {
            let (stream, time_ns) = (sequence.stream(launch), sequence.time_ns(launch));
            let busy_ns = &mut sequence.busy_ns[stream];
            *busy_ns = busy_ns.saturating_add(time_ns);
        }
        if let Some(hosted) = hosted {
            sequence.host_steps = host_steps::new(&sequence, hosted, scratch)?;
        }
        Ok(sequence)
    }

    /// Launches the ops of a graph in the given order.
    ///
    /// # Errors
    /// The errors of [`Sequence::new`].
    pub(crate) fn as_given(
        graph: &'a Graph<'a>,
        hosted: Option<&'a Hosted<'a>>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let ops = 0..graph.ops().len() as u32;
        Self::new(graph, hosted, ops.map(OpId), scratch)
    }

    /// The same work with other launches: the ops in some order, in which ops may be repeated.
    ///
    /// # Errors
    /// The errors of [`Sequence::new`].
    pub(crate) fn in_order(
        &self,
        order: impl Iterator<Item = OpId> + Clone,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let sequence = Self::new(self.graph, self.hosted, order, scratch)?;
        Ok(Self { weighs_loads: self.weighs_loads, ..sequence })
    }

    /// The ops that run on the host, in the order in which they run.
    pub(crate) const fn host_steps(&self) -> &'a [HostStep] {
        self.host_steps
    }

    /// Whether an op on the host uses a tensor.
    pub(crate) fn is_used_by_host(&self, tensor: TensorId) -> bool {
        self.hosted.is_some_and(|hosted| hosted.touches(tensor))
    }

    /// Whether launches read a value that an op on the host writes.
    pub(crate) fn is_made_by_host(&self, tensor: TensorId) -> bool {
        self.hosted.is_some_and(|hosted| hosted.makes(tensor))
    }

    /// Whether launches read the value that this op on the host writes, and no later op there
    /// writes it.
    pub(crate) fn is_completed_by(&self, op: OpId, tensor: TensorId) -> bool {
        self.hosted.is_some_and(|hosted| hosted.completes(op, tensor))
    }

    /// Whether launches read a value that an op on the host has written in the same iteration.
    pub(crate) fn is_made_first(&self, tensor: TensorId) -> bool {
        self.hosted.is_some_and(|hosted| hosted.makes_first(tensor))
    }

    /// The graph whose ops are launched.
    pub(crate) const fn graph(&self) -> &'a Graph<'a> {
        self.graph
    }

    /// Whether any op is repeated.
    pub(crate) const fn has_repeats(&self) -> bool {
        self.len().saturating_add(self.host_steps.len()) > self.graph.ops().len()
    }

    /// The number of launches.
    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.launches.len().saturating_sub(1)
    }

    /// All launches, in order.
    pub(crate) fn launches(
        &self,
    ) -> impl ExactSizeIterator<Item = LaunchId> + DoubleEndedIterator + use<> {
        (0..self.len() as u32).map(LaunchId)
    }

    /// The launches of some iterations, one after the other, each with the number of its iteration.
    pub(crate) fn iterations(
        &self,
        count: u32,
    ) -> impl DoubleEndedIterator<Item = (u32, LaunchId)> + use<> {
        let launches = self.len() as u32;
        (0..count).flat_map(move |iteration| {
            (0..launches).map(move |launch| (iteration, LaunchId(launch)))
        })
    }

    /// The launch after another one in the cyclic sequence.
    #[inline]
    pub(crate) const fn following(&self, launch: LaunchId) -> LaunchId {
        let next = launch.next();
        if next.index() < self.len() { next } else { LaunchId(0) }
    }

    /// The op of a launch.
    #[inline]
    pub(crate) const fn op(&self, launch: LaunchId) -> OpId {
        self.launches[launch.index()].op
    }

    /// The op of a launch, and whether it is a repeat.
    pub(crate) const fn launched(&self, launch: LaunchId) -> Launched {
        let Launch { op, is_repeat, .. } = self.launches[launch.index()];
        Launched { op, is_repeat: is_repeat == 1 }
    }

    /// Whether the op of a launch may be launched again.
    pub(crate) fn is_repeatable(&self, launch: LaunchId) -> bool {
        self.graph.op(self.op(launch)).repeatable
    }

    /// The time of a launch.
    #[inline]
    pub(crate) fn time_ns(&self, launch: LaunchId) -> u64 {
        self.graph.op(self.op(launch)).time_ns
    }

    /// The stream of a launch.
    #[inline]
    pub(crate) fn stream(&self, launch: LaunchId) -> Stream {
        self.graph.op(self.op(launch)).stream()
    }

    /// Whether no plan of these launches is shorter, since no op waits.
    pub(crate) fn is_ideal(&self, period_ns: u64) -> bool {
        period_ns <= self.launches_ns()
    }

    /// The time of all launches on the compute stream, or on the network stream if these take longer.
    pub(crate) fn launches_ns(&self) -> u64 {
        self.busy_ns.0.into_iter().fold(0, u64::max)
    }

    /// The same launches, whose repeats cost less on a stream that has less to do than the other.
    pub(crate) const fn weighing_loads(self) -> Self {
        Self { weighs_loads: true, ..self }
    }

    /// The cost of a repeat: its time. If loads are weighed, it is less on the stream of launches that
    /// has less to do, where one more launch may not lengthen the period.
    pub(crate) fn repeat_ns(&self, launch: LaunchId) -> u64 {
        let (time_ns, busy_ns) = (self.time_ns(launch), self.busy_ns[self.stream(launch)]);
        let most_ns = self.launches_ns();
        if !self.weighs_loads || busy_ns == most_ns {
            return time_ns;
        }
        let load_ns =
            u128::from(time_ns).saturating_mul(busy_ns.into()).checked_div(most_ns.into());
        load_ns.and_then(|load_ns| u64::try_from(load_ns).ok()).unwrap_or(time_ns)
    }

    pub(crate) const fn start_words(limits: &Limits) -> usize {
        total([words::<u64>(limits.ops.saturating_add(1)), words::<u64>(limits.tensors)])
    }

    /// The start of each launch, and the end of all of them, if launches wait only for the launches
    /// before them on their stream, and for values that the host or the other stream of launches
    /// writes in the same iteration. O(operands).
    pub(crate) fn starts_ns<'s>(
        &self,
        scratch: &mut Scratch<'s>,
    ) -> Result<&'s [u64], OutOfScratch> {
        let starts_ns = scratch.take(self.launches.len(), 0u64)?;
        let mut scratch = scratch.reborrow();
        let made_ns = scratch.take(self.tensors().len(), 0u64)?;
        let has_collectives = self.graph.has_collectives();
        let (mut free_ns, mut end_ns, mut host_ns) = (PerStream::all(0u64), 0u64, 0u64);
        let mut host_steps = self.host_steps.iter().peekable();
        for launch in self.launches() {
            while let Some(step) = host_steps.next_if(|step| step.after <= launch.0) {
                let time_ns = self.graph.op(step.op).host_ns.unwrap_or(0);
                host_ns = host_ns.max(end_ns).saturating_add(time_ns);
                for tensor in self.graph.writes(step.op) {
                    if self.is_made_first(*tensor) {
                        made_ns[tensor.index()] = host_ns;
                    }
                }
            }
            let free_ns = &mut free_ns[self.stream(launch)];
            let read_ns = self.reads(launch).iter().map(|tensor| made_ns[tensor.index()]);
            let start_ns = read_ns.fold(*free_ns, u64::max);
            starts_ns[launch.index()] = start_ns;
            *free_ns = start_ns.saturating_add(self.time_ns(launch));
            end_ns = end_ns.max(*free_ns);
            if has_collectives {
                for tensor in self.writes(launch) {
                    made_ns[tensor.index()] = *free_ns;
                }
            }
        }
        starts_ns[self.len()] = end_ns;
        Ok(starts_ns)
    }

    /// Device memory that is held only during a launch, in bytes.
    #[inline]
    pub(crate) fn workspace_bytes(&self, launch: LaunchId) -> u64 {
        self.graph.op(self.op(launch)).workspace_bytes
    }

    /// The tensors that a launch reads.
    #[inline]
    pub(crate) fn reads(&self, launch: LaunchId) -> &'a [TensorId] {
        let Launch { first_slot, first_write, .. } = self.launches[launch.index()];
        &self.operands[first_slot as usize..first_write as usize]
    }

    /// The tensors that a launch writes.
    #[inline]
    pub(crate) fn writes(&self, launch: LaunchId) -> &'a [TensorId] {
        &self.operands[self.written_slots(launch)]
    }

    /// The tensors that a launch reads, then the tensors that it writes. A tensor updated in place
    /// appears twice.
    #[inline]
    pub(crate) fn operands_of(&self, launch: LaunchId) -> &'a [TensorId] {
        &self.operands[self.slots(launch)]
    }

    /// The slot of a launch's first operand.
    #[inline]
    pub(crate) const fn first_slot(&self, launch: LaunchId) -> usize {
        self.launches[launch.index()].first_slot as usize
    }

    /// The slots of a launch's operands.
    #[inline]
    pub(crate) const fn slots(&self, launch: LaunchId) -> Range<usize> {
        self.first_slot(launch)..self.first_slot(launch.next())
    }

    /// The slots of the operands that a launch writes.
    #[inline]
    pub(crate) const fn written_slots(&self, launch: LaunchId) -> Range<usize> {
        self.first_write(launch)..self.first_slot(launch.next())
    }

    /// The slot of the first operand that a launch writes.
    pub(crate) const fn first_write(&self, launch: LaunchId) -> usize {
        self.launches[launch.index()].first_write as usize
    }

    /// The operands of all launches, by slot.
    pub(crate) const fn operands(&self) -> &'a [TensorId] {
        self.operands
    }

    /// All tensors, as the device sees them.
    pub(crate) fn tensors(&self) -> impl ExactSizeIterator<Item = Tensor> {
        self.tensor_ids().map(|id| self.tensor(id))
    }

    /// The ids of all tensors, in order.
    pub(crate) fn tensor_ids(
        &self,
    ) -> impl ExactSizeIterator<Item = TensorId> + DoubleEndedIterator + use<> {
        self.graph.tensor_ids()
    }

    /// One tensor, as the device sees it: a tensor that the host writes is an input, and one that
    /// it reads is an output.
    #[inline]
    pub(crate) fn tensor(&self, id: TensorId) -> Tensor {
        let tensor = self.graph.tensor(id);
        self.hosted.map_or(tensor, |hosted| hosted.tensor(id, tensor))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Kind, Op};

    #[test]
    fn an_op_is_launched_twice() {
        let tensor = |kind| Tensor { bytes: 8, kind };
        let tensors = [tensor(Kind::State), tensor(Kind::Temporary)];
        let operands = [0, 1, 1, 0].map(TensorId);
        let op = |time_ns, first_operand| Op {
            time_ns,
            first_operand,
            reads: 1,
            writes: 1,
            ..Op::default()
        };
        let ops = [op(5, 0), op(7, 2)];
        let mut memory = [0; 64];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let order = [0, 0, 1].map(OpId);
        let sequence = Sequence::new(&graph, None, order.into_iter(), &mut scratch).unwrap();
        assert_eq!((sequence.len(), sequence.launches_ns()), (3, 17));
        let of = |launch| {
            let launch = LaunchId(launch);
            (sequence.op(launch), sequence.reads(launch)[0], sequence.first_slot(launch))
        };
        assert_eq!(of(0), (OpId(0), TensorId(0), 0));
        assert_eq!(of(1), (OpId(0), TensorId(0), 2));
        assert_eq!(of(2), (OpId(1), TensorId(1), 4));
        assert_eq!(sequence.operands(), [0, 1, 0, 1, 1, 0].map(TensorId));
        assert_eq!(sequence.writes(LaunchId(1)), [TensorId(1)]);
        let twice = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)];
        let twice = twice.map(|(iteration, launch)| (iteration, LaunchId(launch)));
        assert!(sequence.iterations(2).eq(twice));
        assert!(sequence.iterations(2).rev().eq(twice.into_iter().rev()));
    }
}
