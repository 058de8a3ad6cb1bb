//! Chooses the states that stay on the device permanently.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors and ops are those of the sequence, and the arrays have an entry for each"
)]

use super::builder::Builder;
use super::memory::CHUNKS;
use crate::graph::{Kind, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::sequence::LaunchId;

const NONE: u32 = u32::MAX;

/// The memory that temporaries and inputs take: for each op, the chunks on the device less the
/// chunks at the op before, modulo 2^64.
#[derive(Debug)]
pub(super) struct Spans<'a> {
    change: &'a mut [u64],
    last: &'a mut [u32],
}

impl<'a> Spans<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u64>(limits.ops.saturating_add(1)).saturating_add(words::<u32>(limits.tensors))
    }

    /// Creates the spans; no tensor takes memory yet. O(operands).
    pub(super) fn new(
        builder: &Builder<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let sequence = builder.task.sequence;
        let change = scratch.take(sequence.len().saturating_add(1), 0u64)?;
        let last = scratch.take(sequence.tensors().len(), NONE)?;
        for op in sequence.launches() {
            for &tensor in sequence.operands_of(op) {
                last[tensor.index()] = op.0;
            }
        }
        Ok(Self { change, last })
    }

    /// The last op that uses a tensor.
    pub(super) fn last(&self, tensor: TensorId) -> Option<LaunchId> {
        let last = self.last[tensor.index()];
        (last != NONE).then_some(LaunchId(last))
    }

    /// Adds a tensor that is on the device from one op to another.
    pub(super) fn add(
        &mut self,
        builder: &Builder<'_>,
        tensor: TensorId,
        from: LaunchId,
        to: LaunchId,
    ) {
        let objects = builder.memory.objects(tensor);
        let (from, after) = (from.index(), to.next().index());
        self.change[from] = self.change[from].wrapping_add(objects);
        self.change[after] = self.change[after].wrapping_sub(objects);
    }

    /// Adds each temporary and input only for the ops that use it.
    fn set_uses(&mut self, builder: &Builder<'_>) {
        self.change.fill(0);
        self.last.fill(NONE);
        let sequence = builder.task.sequence;
        for op in sequence.launches() {
            for &tensor in sequence.operands_of(op) {
                let again = core::mem::replace(&mut self.last[tensor.index()], op.0) == op.0;
                if !again && sequence.tensor(tensor).kind != Kind::State {
                    self.add(builder, tensor, op, op);
                }
            }
        }
    }

    /// Adds a temporary or an input from its first use to its last.
    pub(super) fn add_lifetime(&mut self, builder: &Builder<'_>, tensor: TensorId) {
        if builder.task.sequence.tensor(tensor).kind == Kind::State {
            return;
        }
        if let Some(last) = self.last(tensor) {
            self.add(builder, tensor, builder.first_op(tensor), last);
        }
    }
}

/// The states that stay: as many as fit, in the order of their first use, beside the temporaries
/// and inputs, the workspace, and the other states of each op and of the next one. If temporaries
/// and inputs do not fit even without any staying state, some must leave between their uses in any
/// case; then only the operands of each op count.
#[derive(Debug)]
pub(super) struct Residents<'a> {
    /// The rank of each state in the order of first use.
    rank: &'a mut [u32],
    ranked: u32,
    /// The number of states that stay.
    staying: u32,
    /// The last op for which each state was counted, from 1.
    counted_for: &'a mut [u32],
}

impl<'a> Residents<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.tensors).saturating_mul(2)
    }

    /// No state stays yet.
    pub(super) fn new(
        builder: &Builder<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let sequence = builder.task.sequence;
        let rank = scratch.take(sequence.tensors().len(), NONE)?;
        let counted_for = scratch.take(sequence.tensors().len(), 0u32)?;
        let mut ranked = 0;
        for &tensor in sequence.launches().flat_map(|op| sequence.operands_of(op)) {
            let counts =
                sequence.tensor(tensor).kind == Kind::State && !builder.memory.in_arena(tensor);
            if counts && rank[tensor.index()] == NONE {
                rank[tensor.index()] = ranked;
                ranked = ranked.saturating_add(1);
            }
        }
        Ok(Self { rank, ranked, staying: 0, counted_for })
    }

    /// Whether a tensor is a state that stays.
    pub(super) fn stays(&self, tensor: TensorId) -> bool {
        self.rank[tensor.index()] < self.staying
    }

    /// Chooses as many states as fit. Another staying state never needs less memory at any op, so a
    /// binary search finds the number. O((operands + tensors) log tensors).
    pub(super) fn choose(&mut self, builder: &Builder<'_>, spans: &mut Spans<'_>) {
        self.staying = 0;
        if !self.fit(builder, spans) {
            spans.set_uses(builder);
        }
        let (mut fitting, mut too_many) = (0u32, self.ranked.saturating_add(1));
        while fitting.saturating_add(1) < too_many {
            self.staying = u32::midpoint(fitting, too_many);
            match self.fit(builder, spans) {
                true => fitting = self.staying,
                false => too_many = self.staying,
            }
        }
        self.staying = fitting;
    }

    fn fit(&mut self, builder: &Builder<'_>, spans: &Spans<'_>) -> bool {
        let sequence = builder.task.sequence;
        let staying = sequence.tensor_ids().filter(|&tensor| self.stays(tensor));
        let staying: u64 = staying.map(|tensor| builder.memory.objects(tensor)).sum();
        self.counted_for.fill(0);
        let mut alive = 0u64;
        sequence.launches().zip(&*spans.change).all(|(op, &change)| {
            alive = alive.wrapping_add(change);
            let workspace = builder.memory.workspace(builder.task, op);
            let held = staying.saturating_add(alive).saturating_add(self.streamed(builder, op));
            let taken = held.saturating_add(workspace);
            taken <= builder.memory.pool_objects(CHUNKS)
        })
    }

    /// Chunks of the states of an op and of the next one that do not stay.
    fn streamed(&mut self, builder: &Builder<'_>, op: LaunchId) -> u64 {
        let sequence = builder.task.sequence;
        let (next, number) = (sequence.following(op), op.next().0);
        let mut streamed = 0u64;
        for &tensor in sequence.operands_of(op).iter().chain(sequence.operands_of(next)) {
            let (rank, counted_for) =
                (self.rank[tensor.index()], &mut self.counted_for[tensor.index()]);
            let counts = rank != NONE && rank >= self.staying;
            if counts && core::mem::replace(counted_for, number) != number {
                streamed = streamed.saturating_add(builder.memory.objects(tensor));
            }
        }
        streamed
    }
}
