//! Which states stay on the device for good.

use super::builder::Builder;
use super::memory::CHUNKS;
use crate::graph::{Kind, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::sequence::LaunchId;

const NONE: u32 = u32::MAX;

/// When temporaries and inputs are on the device: chunks at each op, less those at the op
/// before, modulo 2^64.
#[derive(Debug)]
pub(super) struct Spans<'a> {
    change: &'a mut [u64],
    last: &'a mut [u32],
}

impl<'a> Spans<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u64>(limits.ops.saturating_add(1)).saturating_add(words::<u32>(limits.tensors))
    }

    /// None yet. O(operands).
    pub(super) fn new(
        builder: &Builder<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let sequence = builder.task.sequence;
        let change = scratch.take(sequence.len() + 1, 0u64)?;
        let last = scratch.take(sequence.tensors().len(), NONE)?;
        for op in sequence.launches() {
            for &tensor in sequence.operands_of(op) {
                last[tensor.index()] = op.0;
            }
        }
        Ok(Self { change, last })
    }

    /// The last op that touches a tensor.
    pub(super) fn last(&self, tensor: TensorId) -> Option<LaunchId> {
        let last = self.last[tensor.index()];
        (last != NONE).then_some(LaunchId(last))
    }

    /// A tensor is on the device from one op to another.
    pub(super) fn add(
        &mut self,
        builder: &Builder<'_>,
        tensor: TensorId,
        from: LaunchId,
        to: LaunchId,
    ) {
        let objects = builder.memory.objects(tensor);
        let (from, after) = (from.index(), to.index() + 1);
        self.change[from] = self.change[from].wrapping_add(objects);
        self.change[after] = self.change[after].wrapping_sub(objects);
    }

    /// Each temporary and input is on the device only for the ops that touch it.
    fn set_touches(&mut self, builder: &Builder<'_>) {
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

    /// A temporary or an input is on the device from its first touch to its last.
    pub(super) fn add_lifetime(&mut self, builder: &Builder<'_>, tensor: TensorId) {
        if builder.task.sequence.tensor(tensor).kind == Kind::State {
            return;
        }
        if let Some(last) = self.last(tensor) {
            self.add(builder, tensor, builder.first_op(tensor), last);
        }
    }
}

/// The states that stay: of those that the ops touch, in the order of their first use, as
/// many as fit beside the temporaries and inputs, the workspace, and the other states of
/// each op and of the one after it. Where temporaries and inputs do not fit even without any
/// that stays, some must leave between their uses in any case; then, only those count that an
/// op touches.
#[derive(Debug)]
pub(super) struct Residents<'a> {
    /// The rank of each state in the order of first use.
    rank: &'a mut [u32],
    ranked: u32,
    /// How many stay.
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
                ranked += 1;
            }
        }
        Ok(Self { rank, ranked, staying: 0, counted_for })
    }

    /// Whether a tensor is a state that stays.
    pub(super) fn stays(&self, tensor: TensorId) -> bool {
        self.rank[tensor.index()] < self.staying
    }

    /// As many as fit. One more never needs less memory at any op, so a binary search finds
    /// them. O((operands + tensors) log tensors).
    pub(super) fn choose(&mut self, builder: &Builder<'_>, spans: &mut Spans<'_>) {
        self.staying = 0;
        if !self.fit(builder, spans) {
            spans.set_touches(builder);
        }
        let (mut fitting, mut too_many) = (0, self.ranked + 1);
        while too_many - fitting > 1 {
            self.staying = fitting + (too_many - fitting) / 2;
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
            // No tensor counts twice, and all tensors together are below 2^64.
            let taken = (staying + alive + self.streamed(builder, op)).saturating_add(workspace);
            taken <= builder.memory.pool_objects(CHUNKS)
        })
    }

    /// Chunks of the states that do not stay, of an op and of the next one.
    fn streamed(&mut self, builder: &Builder<'_>, op: LaunchId) -> u64 {
        let sequence = builder.task.sequence;
        let next = LaunchId((op.0 + 1) % sequence.len() as u32);
        let mut streamed = 0;
        for &tensor in sequence.operands_of(op).iter().chain(sequence.operands_of(next)) {
            let (rank, counted_for) =
                (self.rank[tensor.index()], &mut self.counted_for[tensor.index()]);
            let counts = rank != NONE && rank >= self.staying;
            if counts && core::mem::replace(counted_for, op.0 + 1) != op.0 + 1 {
                streamed += builder.memory.objects(tensor);
            }
        }
        streamed
    }
}
