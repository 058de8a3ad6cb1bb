//! A graph: tensors, and the ops of one iteration, which repeats for ever (`docs/format.md`, 1).

#![expect(
    clippy::indexing_slicing,
    reason = "`Graph::new` checks all ids of the graph; functions that take an id panic on a \
              foreign one"
)]

use crate::schedule::{PerStream, Stream};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use bytemuck::{Pod, Zeroable};
use core::fmt;

/// A position in [`Graph::tensors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct TensorId(pub u32);

/// A position in [`Graph::ops`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct OpId(pub u32);

impl TensorId {
    /// The id as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl OpId {
    /// The id as an index.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor {}", self.0)
    }
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op {}", self.0)
    }
}

/// Where a tensor's value comes from, and how long it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The value is kept from iteration to iteration; the value after the last iteration is a
    /// result.
    State,
    /// The host has a fresh value before each iteration. The value is dropped after it.
    Input,
    /// An op writes it before any op reads it, in each iteration. The value is dropped after it.
    Temporary,
    /// An op writes it before any op reads it, in each iteration. The host gets the last value.
    Output,
}

impl Kind {
    /// Whether a tensor has no value until an op of the iteration writes it: a temporary or an
    /// output.
    #[must_use]
    pub const fn is_made(self) -> bool {
        matches!(self, Self::Temporary | Self::Output)
    }

    /// Whether a tensor has two slots on the host, which iterations use alternately: an input or an
    /// output.
    #[must_use]
    pub const fn has_two_slots(self) -> bool {
        matches!(self, Self::Input | Self::Output)
    }
}

/// One tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tensor {
    /// Size in bytes, not zero.
    pub bytes: u64,
    /// Where its value comes from.
    pub kind: Kind,
}

impl Tensor {
    /// A tensor of a size and a kind.
    #[must_use]
    pub const fn new(bytes: u64, kind: Kind) -> Self {
        Self { bytes, kind }
    }
}

/// One operation. Its operands are consecutive in the graph's operand array, after the operands of
/// the ops before it: first the tensors it reads, then the tensors it writes. A tensor in both
/// lists is updated in place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Op {
    /// Time on the compute stream.
    pub time_ns: u64,
    /// Device memory that is taken only while the op runs.
    pub workspace_bytes: u64,
    /// Position of its first operand.
    pub first_operand: u32,
    /// Number of tensors read.
    pub reads: u32,
    /// Number of tensors written.
    pub writes: u32,
    /// Whether the op may be launched again: if it reads the same values as the first time, it
    /// writes the same bytes into its temporaries (`docs/format.md`, 1).
    pub repeatable: bool,
    /// Time on the host, if the op may run there instead.
    pub host_ns: Option<u64>,
    /// Whether the op exchanges data with other processes, so that it runs beside the other ops, on
    /// [`Stream::Network`].
    pub collective: bool,
}

impl Op {
    /// An op without operands and workspace, which runs once, on the device.
    #[must_use]
    pub const fn new(time_ns: u64) -> Self {
        Self {
            time_ns,
            workspace_bytes: 0,
            first_operand: 0,
            reads: 0,
            writes: 0,
            repeatable: false,
            host_ns: None,
            collective: false,
        }
    }

    /// The stream of the op's launches: [`Stream::Compute`] or [`Stream::Network`].
    #[must_use]
    #[inline]
    pub const fn stream(&self) -> Stream {
        if self.collective { Stream::Network } else { Stream::Compute }
    }

    /// Position of the first operand that the op writes.
    #[inline]
    pub(crate) const fn first_write(&self) -> usize {
        (self.first_operand as usize).saturating_add(self.reads as usize)
    }

    /// Position after the last operand.
    #[inline]
    const fn end_operand(&self) -> usize {
        self.first_write().saturating_add(self.writes as usize)
    }
}

setters!(Op {
    workspace_bytes: u64 => with_workspace_bytes,
    first_operand: u32 => with_first_operand,
    reads: u32 => with_reads,
    writes: u32 => with_writes,
    repeatable: bool => with_repeatable,
    host_ns: Option<u64> => with_host_ns,
    collective: bool => with_collective,
});

/// A launch of an op: the first of an iteration, or a repeat. A repeat neither reads nor writes the
/// states, inputs and outputs that the op writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Launched {
    /// The op.
    pub op: OpId,
    /// Whether the op has been launched before in the same iteration.
    pub is_repeat: bool,
}

impl Launched {
    /// The first launch of an op in an iteration.
    #[must_use]
    pub const fn first(op: OpId) -> Self {
        Self { op, is_repeat: false }
    }

    /// A later launch of an op in an iteration.
    #[must_use]
    pub const fn repeat(op: OpId) -> Self {
        Self { op, is_repeat: true }
    }
}

/// A checked graph: every id is in range, and every value that is read has been written.
#[derive(Clone, Copy, Debug)]
pub struct Graph<'a> {
    tensors: &'a [Tensor],
    ops: &'a [Op],
    operands: &'a [TensorId],
}

/// Why a graph is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphError {
    /// The graph has no ops.
    NoOps,
    /// More tensors, ops or operands than ids can name.
    TooManyIds,
    /// The tensor has no bytes.
    EmptyTensor(TensorId),
    /// The op's operands reach past the end of the array.
    OperandsOutOfRange(OpId),
    /// The op's operands begin before the end of an earlier op's operands.
    OperandsOutOfOrder(OpId),
    /// The op names a tensor that does not exist.
    UnknownTensor {
        /// The op.
        op: OpId,
        /// The unknown id.
        tensor: TensorId,
    },
    /// The op reads the tensor twice, or writes it twice.
    RepeatedOperand {
        /// The op.
        op: OpId,
        /// The repeated tensor.
        tensor: TensorId,
    },
    /// The op reads a temporary or an output that no earlier op writes.
    ReadBeforeWrite {
        /// The op.
        op: OpId,
        /// The tensor without a value.
        tensor: TensorId,
    },
    /// The sum of all times, or of the sizes of workspaces and tensors (inputs and outputs twice),
    /// exceeds 64 bits.
    Overflow,
    /// No op writes the output.
    NeverWritten(TensorId),
    /// The op may run on the host, but writes an input.
    HostWritesInput {
        /// The op.
        op: OpId,
        /// The input that it writes.
        tensor: TensorId,
    },
    /// The op exchanges data with other processes, but has a time on the host.
    CollectiveOnHost(OpId),
    /// The working memory is too small.
    Scratch(OutOfScratch),
}

impl From<OutOfScratch> for GraphError {
    fn from(error: OutOfScratch) -> Self {
        Self::Scratch(error)
    }
}

impl fmt::Display for GraphError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoOps => write!(f, "the graph has no ops"),
            Self::TooManyIds => {
                write!(f, "the graph has more than 2^31 - 1 tensors, ops or operands")
            }
            Self::EmptyTensor(tensor) => write!(f, "{tensor} has zero bytes"),
            Self::OperandsOutOfRange(op) => write!(f, "{op} lists operands that do not exist"),
            Self::OperandsOutOfOrder(op) => {
                write!(f, "the operands of {op} begin before the end of an earlier op's operands")
            }
            Self::UnknownTensor { op, tensor } => {
                write!(f, "{op} names {tensor}, which does not exist")
            }
            Self::RepeatedOperand { op, tensor } => {
                write!(f, "{op} lists {tensor} twice in its reads or twice in its writes")
            }
            Self::ReadBeforeWrite { op, tensor } => {
                write!(f, "{op} reads {tensor}, which has no value before an op writes it")
            }
            Self::NeverWritten(tensor) => write!(f, "{tensor} is an output that no op writes"),
            Self::HostWritesInput { op, tensor } => write!(
                f,
                "{op} has a time on the host (host_ns) and writes {tensor}, an input: such an op \
                 runs on the device alone"
            ),
            Self::CollectiveOnHost(op) => write!(
                f,
                "{op} is a collective and has a time on the host (host_ns): a collective runs on \
                 the device alone"
            ),
            Self::Overflow => write!(f, "sizes or times add up to more than 64 bits"),
            Self::Scratch(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for GraphError {}

impl<'a> Graph<'a> {
    /// Words of scratch that [`Graph::new`] needs.
    #[must_use]
    pub const fn scratch_words(tensors: usize) -> usize {
        words::<u32>(tensors).saturating_mul(2)
    }

    /// Checks a graph. O(tensors + operands).
    ///
    /// # Errors
    /// The first defect, in the order of the ops.
    pub fn new(
        tensors: &'a [Tensor],
        ops: &'a [Op],
        operands: &'a [TensorId],
        scratch: &mut Scratch<'_>,
    ) -> Result<Self, GraphError> {
        let graph = Self { tensors, ops, operands };
        graph.check_sizes()?;
        graph.check_operands(&mut scratch.reborrow())?;
        Ok(graph)
    }

    fn check_sizes(&self) -> Result<(), GraphError> {
        if self.ops.is_empty() {
            return Err(GraphError::NoOps);
        }
        // An id with a flag, or twice the number of ids, must fit into 32 bits.
        let most = i32::MAX as usize;
        if self.tensors.len() > most || self.ops.len() > most || self.operands.len() > most {
            return Err(GraphError::TooManyIds);
        }
        let mut bytes = 0u64;
        for (id, tensor) in self.tensor_ids().zip(self.tensors) {
            if tensor.bytes == 0 {
                return Err(GraphError::EmptyTensor(id));
            }
            // The host holds two values of an input or an output.
            let values = if tensor.kind.has_two_slots() { 2 } else { 1 };
            bytes = tensor
                .bytes
                .checked_mul(values)
                .and_then(|more| bytes.checked_add(more))
                .ok_or(GraphError::Overflow)?;
        }
        let (mut time_ns, mut host_ns) = (0u64, 0u64);
        for op in self.ops {
            bytes = bytes.checked_add(op.workspace_bytes).ok_or(GraphError::Overflow)?;
            time_ns = time_ns.checked_add(op.time_ns).ok_or(GraphError::Overflow)?;
            let op_host_ns = op.host_ns.unwrap_or(0);
            host_ns = host_ns.checked_add(op_host_ns).ok_or(GraphError::Overflow)?;
        }
        Ok(())
    }

    fn check_operands(&self, scratch: &mut Scratch<'_>) -> Result<(), GraphError> {
        const NEVER: u32 = u32::MAX;
        let read_by = scratch.take(self.tensors.len(), NEVER)?;
        let written_by = scratch.take(self.tensors.len(), NEVER)?;
        let mut end_before = 0;
        for (id, op) in self.op_ids().zip(self.ops) {
            let (first, end) = (op.first_operand as usize, op.end_operand());
            let operands =
                self.operands.get(first..end).ok_or(GraphError::OperandsOutOfRange(id))?;
            if !operands.is_empty() {
                // The operands of all ops together must fit into the array.
                if first < end_before {
                    return Err(GraphError::OperandsOutOfOrder(id));
                }
                end_before = end;
            }
            let (reads, writes) = operands.split_at(op.reads as usize);
            for &tensor in reads {
                let data = self
                    .tensors
                    .get(tensor.index())
                    .ok_or(GraphError::UnknownTensor { op: id, tensor })?;
                if core::mem::replace(&mut read_by[tensor.index()], id.0) == id.0 {
                    return Err(GraphError::RepeatedOperand { op: id, tensor });
                }
                if data.kind.is_made() && written_by[tensor.index()] == NEVER {
                    return Err(GraphError::ReadBeforeWrite { op: id, tensor });
                }
            }
            for &tensor in writes {
                let last = written_by
                    .get_mut(tensor.index())
                    .ok_or(GraphError::UnknownTensor { op: id, tensor })?;
                if core::mem::replace(last, id.0) == id.0 {
                    return Err(GraphError::RepeatedOperand { op: id, tensor });
                }
                if op.host_ns.is_some() && self.tensors[tensor.index()].kind == Kind::Input {
                    return Err(GraphError::HostWritesInput { op: id, tensor });
                }
            }
            if op.collective && op.host_ns.is_some() {
                return Err(GraphError::CollectiveOnHost(id));
            }
        }
        let is_missing = |id: &TensorId| {
            self.tensors[id.index()].kind == Kind::Output && written_by[id.index()] == NEVER
        };
        self.tensor_ids().find(is_missing).map_or(Ok(()), |id| Err(GraphError::NeverWritten(id)))
    }

    /// All tensors.
    #[must_use]
    pub const fn tensors(&self) -> &'a [Tensor] {
        self.tensors
    }

    /// All ops, in one legal order.
    #[must_use]
    pub const fn ops(&self) -> &'a [Op] {
        self.ops
    }

    /// The operands of all ops.
    #[must_use]
    pub const fn operands(&self) -> &'a [TensorId] {
        self.operands
    }

    /// The ids of all tensors, in order.
    pub fn tensor_ids(
        &self,
    ) -> impl ExactSizeIterator<Item = TensorId> + DoubleEndedIterator + use<> {
        (0..self.tensors.len() as u32).map(TensorId)
    }

    /// The ids of all ops, in order.
    pub fn op_ids(&self) -> impl ExactSizeIterator<Item = OpId> + DoubleEndedIterator + use<> {
        (0..self.ops.len() as u32).map(OpId)
    }

    /// One tensor.
    ///
    /// # Panics
    /// There is no such tensor: the id is not of this graph.
    #[must_use]
    pub fn tensor(&self, id: TensorId) -> Tensor {
        self.tensors[id.index()]
    }

    /// One op.
    ///
    /// # Panics
    /// There is no such op: the id is not of this graph.
    #[must_use]
    pub fn op(&self, id: OpId) -> Op {
        self.ops[id.index()]
    }

    /// The tensors that an op reads.
    ///
    /// # Panics
    /// There is no such op.
    #[must_use]
    pub fn reads(&self, id: OpId) -> &'a [TensorId] {
        let op = self.op(id);
        &self.operands[op.first_operand as usize..op.first_write()]
    }

    /// The tensors that an op writes.
    ///
    /// # Panics
    /// There is no such op.
    #[must_use]
    pub fn writes(&self, id: OpId) -> &'a [TensorId] {
        let op = self.op(id);
        &self.operands[op.first_write()..op.end_operand()]
    }

    /// The tensors that an op reads, then the tensors that it writes. A tensor updated in place
    /// appears twice.
    ///
    /// # Panics
    /// There is no such op.
    #[must_use]
    pub fn operands_of(&self, id: OpId) -> &'a [TensorId] {
        let op = self.op(id);
        &self.operands[op.first_operand as usize..op.end_operand()]
    }

    /// Every tensor that an op reads or writes, each once: its reads, then the tensors that it only
    /// writes.
    ///
    /// # Panics
    /// There is no such op.
    pub fn touches(&self, id: OpId) -> impl Iterator<Item = TensorId> + use<'a> {
        let reads = self.reads(id);
        let only_written = self.writes(id).iter().filter(|tensor| !reads.contains(tensor));
        reads.iter().chain(only_written).copied()
    }

    /// Whether a launch does not access an operand of its op. A repeat does not access the states,
    /// inputs and outputs that the op writes. O(writes).
    ///
    /// # Panics
    /// There is no such op or tensor.
    #[must_use]
    pub fn leaves_alone(&self, launched: Launched, operand: TensorId) -> bool {
        launched.is_repeat
            && !self.is_written_again(operand)
            && self.writes(launched.op).contains(&operand)
    }

    /// The tensors that a launch reads. A repeat does not read the states, inputs and outputs that
    /// the op writes.
    ///
    /// # Panics
    /// There is no such op.
    pub fn read_by(
        &self,
        launched: Launched,
    ) -> impl DoubleEndedIterator<Item = TensorId> + Clone + use<'a> {
        let graph = *self;
        let reads = self.reads(launched.op).iter().copied();
        reads.filter(move |&tensor| !graph.leaves_alone(launched, tensor))
    }

    /// The tensors that a launch writes. A repeat writes only temporaries.
    ///
    /// # Panics
    /// There is no such op.
    pub fn written_by(
        &self,
        launched: Launched,
    ) -> impl DoubleEndedIterator<Item = TensorId> + Clone + use<'a> {
        let graph = *self;
        let is_written = move |tensor: &TensorId| graph.is_written_by(launched, *tensor);
        self.writes(launched.op).iter().copied().filter(is_written)
    }

    /// Whether a launch writes a tensor that its op writes.
    pub(crate) fn is_written_by(&self, launched: Launched, tensor: TensorId) -> bool {
        !launched.is_repeat || self.is_written_again(tensor)
    }

    /// Whether a repeat writes a tensor that its op writes. A temporary is written again even if an op on
    /// the host reads it, and the device therefore sees it as an output.
    pub(crate) fn is_written_again(&self, tensor: TensorId) -> bool {
        self.tensor(tensor).kind == Kind::Temporary
    }

    /// The tensors that a launch reads, then the tensors that it writes. A tensor updated in place
    /// appears twice.
    ///
    /// # Panics
    /// There is no such op.
    pub fn operands_by(
        &self,
        launched: Launched,
    ) -> impl DoubleEndedIterator<Item = TensorId> + Clone + use<'a> {
        self.read_by(launched).chain(self.written_by(launched))
    }

    /// The sum of all op times.
    #[must_use]
    pub fn compute_ns(&self) -> u64 {
        // The constructor has checked that the sum does not overflow.
        self.ops.iter().map(|op| op.time_ns).sum()
    }

    /// The sum of the op times on each stream, if every op is launched once. O(ops).
    #[must_use]
    pub fn launches_ns(&self) -> PerStream<u64> {
        let mut sums_ns = PerStream::all(0);
        for op in self.ops {
            let sum_ns = &mut sums_ns[op.stream()];
            *sum_ns = op.time_ns.saturating_add(*sum_ns);
        }
        sums_ns
    }

    /// Writes 1 for each tensor that a collective touches. O(ops), plus the operands of collectives.
    pub(crate) fn mark_exchanged(&self, marks: &mut [u8]) {
        for op in self.op_ids().filter(|&op| self.op(op).collective) {
            self.operands_of(op).iter().for_each(|tensor| marks[tensor.index()] = 1);
        }
    }

    /// Whether an op exchanges data with other processes. O(ops).
    #[must_use]
    pub fn has_collectives(&self) -> bool {
        self.ops.iter().any(|op| op.collective)
    }
}

impl Limits {
    /// The sizes of a graph, for planning: enough steps and pieces for every strategy. A fraction
    /// of the steps is enough for most plans; see [`Limits::with_steps`]. O(ops).
    #[must_use]
    pub fn of_graph(graph: &Graph<'_>) -> Self {
        let count = |op: &Op| (op.reads as usize).saturating_add(op.writes as usize);
        let operands = graph.ops.iter().map(count).fold(0, usize::saturating_add);
        let limits = Self {
            ops: graph.ops.len(),
            operands: operands.max(graph.operands.len()),
            tensors: graph.tensors.len(),
            pools: 2,
            ..Self::default()
        };
        limits.with_steps(limits.max_steps())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPORARY: Tensor = Tensor { bytes: 8, kind: Kind::Temporary };
    const STATE: Tensor = Tensor { bytes: 8, kind: Kind::State };

    fn op(first_operand: u32, reads: u32, writes: u32) -> Op {
        Op { time_ns: 1, first_operand, reads, writes, ..Op::default() }
    }

    fn check(tensors: &[Tensor], ops: &[Op], operands: &[u32]) -> Result<(), GraphError> {
        let operands: [TensorId; 4] = core::array::from_fn(|i| TensorId(operands[i]));
        let mut memory = [0; 16];
        Graph::new(tensors, ops, &operands, &mut Scratch::new(&mut memory)).map(|_| ())
    }

    #[test]
    fn defects_are_named() {
        let (first, second) = (OpId(0), OpId(1));
        let tensors = [STATE, TEMPORARY];
        let none = [0; 4];
        assert_eq!(check(&tensors, &[], &none), Err(GraphError::NoOps));
        assert_eq!(
            check(&[Tensor { bytes: 0, ..STATE }], &[op(0, 0, 0)], &none),
            Err(GraphError::EmptyTensor(TensorId(0)))
        );
        assert_eq!(
            check(&tensors, &[op(3, 1, 1)], &none),
            Err(GraphError::OperandsOutOfRange(first))
        );
        assert_eq!(
            check(&tensors, &[op(u32::MAX, u32::MAX, u32::MAX)], &none),
            Err(GraphError::OperandsOutOfRange(first))
        );
        assert_eq!(
            check(&tensors, &[op(0, 1, 0)], &[9, 0, 0, 0]),
            Err(GraphError::UnknownTensor { op: first, tensor: TensorId(9) })
        );
        for (reads, writes) in [(2, 0), (0, 2)] {
            assert_eq!(
                check(&tensors, &[op(0, reads, writes)], &none),
                Err(GraphError::RepeatedOperand { op: first, tensor: TensorId(0) })
            );
        }
        assert_eq!(
            check(&tensors, &[op(0, 1, 0), op(1, 1, 1)], &[0, 1, 1, 0]),
            Err(GraphError::ReadBeforeWrite { op: second, tensor: TensorId(1) })
        );
        let huge = Tensor { bytes: u64::MAX, kind: Kind::State };
        assert_eq!(check(&[huge, STATE], &[op(0, 0, 0)], &none), Err(GraphError::Overflow));
        let half = |kind| [Tensor { bytes: 1 << 63, kind }];
        assert_eq!(check(&half(Kind::State), &[op(0, 0, 0)], &none), Ok(()));
        assert_eq!(check(&half(Kind::Input), &[op(0, 0, 0)], &none), Err(GraphError::Overflow));
        for second_run in [op(0, 1, 1), op(1, 1, 1)] {
            assert_eq!(
                check(&tensors, &[op(0, 1, 1), second_run], &[0, 1, 1, 0]),
                Err(GraphError::OperandsOutOfOrder(second))
            );
        }
        assert_eq!(
            check(&tensors, &[op(0, 1, 1), op(0, 0, 0), op(2, 1, 1)], &[0, 1, 1, 0]),
            Ok(())
        );
    }

    #[test]
    fn touches_lists_each_tensor_once() {
        let operands = [TensorId(0), TensorId(1), TensorId(0), TensorId(2)];
        let tensors = [STATE; 3];
        let ops = [op(0, 2, 2)];
        let mut memory = [0; 16];
        let graph = Graph::new(&tensors, &ops, &operands, &mut Scratch::new(&mut memory)).unwrap();
        assert!(graph.touches(OpId(0)).eq([TensorId(0), TensorId(1), TensorId(2)]));
    }
}
