//! The bytes that must cross each link in any order of the ops; `docs/research/bounds.md` has the proof.
//!
//! Each op gives such a bound. Up to 64 ops are examined together, with one bit of a word for each.

#![expect(
    clippy::indexing_slicing,
    reason = "ops and tensors are those of the checked graph, and the arrays have an entry for \
              each; positions are below `OPS`"
)]

use super::reached::Reached;
use super::{Alive, BoundOrder, Reads};
use crate::graph::{Graph, Kind, OpId, Tensor, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

/// The number of ops that are examined together: one for each bit of a word.
const OPS: usize = u64::BITS as usize;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    let choice = Alive::touched_scratch_words(limits);
    let lives = total([
        words::<u8>(limits.tensors),
        Reads::scratch_words(limits),
        words::<u64>(limits.ops),
        Reached::<u64>::scratch_words(limits),
        words::<[u64; 3]>(limits.tensors),
    ]);
    if choice > lives { choice } else { lives }
}

/// The least bytes that cross each link in one iteration.
pub(super) struct LinkBytes {
    pub(super) upload_bytes: u64,
    pub(super) download_bytes: u64,
    /// The op around which the most bytes are held.
    pub(super) worst: OpId,
}

/// The least bytes that cross each link in one iteration, and the op around which the most bytes
/// are held. It finds the worst of some ops, one from each stretch of the given order; then the
/// worst within that op's stretch, down to single ops.
pub(super) fn link_bytes(
    graph: &Graph<'_>,
    budget_bytes: u64,
    scratch: &mut Scratch<'_>,
) -> Result<LinkBytes, OutOfScratch> {
    let (mut upload_bytes, mut download_bytes) = (0, 0);
    let (mut first, mut length) = (0usize, graph.ops().len());
    loop {
        let chosen = Chosen::new(graph, first, length.div_ceil(OPS), scratch)?;
        let held = Held::new(graph, &chosen, scratch)?;
        let mut worst = (0, 0);
        for (at, (upload, download)) in
            held.upload_bytes.into_iter().zip(held.download_bytes).enumerate()
        {
            (upload_bytes, download_bytes) =
                (upload_bytes.max(upload), download_bytes.max(download));
            worst = worst.max((upload.saturating_add(download), at));
        }
        if chosen.stretch <= 1 {
            let upload_bytes = upload_bytes.saturating_sub(budget_bytes);
            let download_bytes = download_bytes.saturating_sub(budget_bytes);
            return Ok(LinkBytes {
                upload_bytes: upload_bytes.saturating_add(held.arriving_bytes),
                download_bytes,
                worst: chosen.ops[worst.1].unwrap_or(OpId(0)),
            });
        }
        first = first.saturating_add(chosen.stretch.saturating_mul(worst.1));
        length = chosen.stretch;
    }
}

/// For each of up to 64 stretches of the given order, the op around which the most bytes are alive.
struct Chosen {
    first: usize,
    stretch: usize,
    ops: [Option<OpId>; OPS],
}

impl Chosen {
    fn new(
        graph: &Graph<'_>,
        first: usize,
        stretch: usize,
        scratch: &mut Scratch<'_>,
    ) -> Result<Self, OutOfScratch> {
        let size_bytes = |tensor| graph.tensor(tensor).bytes;
        let mut scratch = scratch.reborrow();
        let alive = Alive::touched(graph, size_bytes, &mut scratch)?;
        let mut chosen = Self { first, stretch, ops: [None; OPS] };
        let mut most_bytes = [0; OPS];
        for (op, live_bytes) in graph.op_ids().zip(alive.bytes(graph)) {
            let Some(at) = chosen.at(op) else { continue };
            if chosen.ops[at].is_none() || live_bytes > most_bytes[at] {
                (chosen.ops[at], most_bytes[at]) = (Some(op), live_bytes);
            }
        }
        Ok(chosen)
    }

    /// The stretch of an op.
    fn at(&self, op: OpId) -> Option<usize> {
        let at = op.index().checked_sub(self.first)?.checked_div(self.stretch)?;
        (at < OPS).then_some(at)
    }

    /// The bit of an op; zero if the op is not chosen.
    fn bit(&self, op: OpId) -> u64 {
        self.at(op).filter(|&at| self.ops[at] == Some(op)).map_or(0, |at| 1 << at)
    }
}

pub(super) const READ: u8 = 1;
const WRITTEN: u8 = 2;
/// An op overwrites the tensor without reading it; before that, its value may be dead.
pub(super) const OVERWRITTEN: u8 = 4;
/// For an input: the first op that uses it reads it, so the value comes from the host.
pub(super) const ARRIVES: u8 = 8;

/// For each chosen op, the bytes that are on the device or on the host while it runs, and that must
/// cross a link once an iteration for every byte on the host.
struct Held {
    upload_bytes: [u64; OPS],
    download_bytes: [u64; OPS],
    /// The bytes that cross the link in every plan.
    arriving_bytes: u64,
}

impl Held {
    fn new(
        graph: &Graph<'_>,
        chosen: &Chosen,
        scratch: &mut Scratch<'_>,
    ) -> Result<Self, OutOfScratch> {
        let mut scratch = scratch.reborrow();
        let mut reads = Reads::new(graph, &mut scratch)?;
        let flags = flags(graph, &mut reads, &mut scratch)?;
        let arrives = |tensor: &TensorId| {
            graph.tensor(*tensor).kind == Kind::Input && flags[tensor.index()] & ARRIVES != 0
        };
        let arriving_bytes = sum_bytes(graph, graph.tensor_ids().filter(arrives));
        let mut held = Self { upload_bytes: [0; OPS], download_bytes: [0; OPS], arriving_bytes };
        held.add_states(graph, &mut reads, flags, chosen);
        held.add_lives(graph, &mut reads, flags, chosen, &mut scratch)?;
        Ok(held)
    }

    /// Adds workspaces and states. A state that an op overwrites unread may be dead wherever it is
    /// not used.
    fn add_states(
        &mut self,
        graph: &Graph<'_>,
        reads: &mut Reads<'_>,
        flags: &[u8],
        chosen: &Chosen,
    ) {
        for (held_bytes, moves) in
            [(&mut self.upload_bytes, READ), (&mut self.download_bytes, WRITTEN)]
        {
            let is_state = |tensor: &TensorId| graph.tensor(*tensor).kind == Kind::State;
            let lives = |tensor: &TensorId| flags[tensor.index()] & (moves | OVERWRITTEN) == moves;
            let living = graph.tensor_ids().filter(is_state).filter(lives);
            let living_bytes = sum_bytes(graph, living);
            for (held_bytes, &op) in held_bytes.iter_mut().zip(&chosen.ops) {
                let Some(op) = op else { continue };
                reads.note(graph, op);
                let others =
                    reads.touches(graph, op).filter(is_state).filter(|tensor| !lives(tensor));
                let own_bytes = graph.op(op).workspace_bytes;
                *held_bytes =
                    living_bytes.saturating_add(own_bytes).saturating_add(sum_bytes(graph, others));
            }
        }
    }

    /// Adds inputs and temporaries.
    fn add_lives(
        &mut self,
        graph: &Graph<'_>,
        reads: &mut Reads<'_>,
        flags: &mut [u8],
        chosen: &Chosen,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), OutOfScratch> {
        let tensors = graph.tensors().len();
        let mut reached =
            Reached::new(graph, BoundOrder::Any, 0, core::ops::BitOr::bitor, scratch)?;
        let after = scratch.take(graph.ops().len(), 0u64)?;
        for op in graph.op_ids().rev() {
            after[op.index()] = reached.step(graph, op, |bits| bits | chosen.bit(op));
        }
        reached.clear();
        let lives = scratch.take(tensors, [0u64; 3])?;
        for op in graph.op_ids() {
            let bit = chosen.bit(op);
            let touch = [after[op.index()], reached.step(graph, op, |bits| bits | bit), bit];
            reads.note(graph, op);
            for tensor in reads.overwrites(graph, op) {
                let life = core::mem::take(&mut lives[tensor.index()]);
                self.add_life(graph, tensor, life, flags[tensor.index()]);
                flags[tensor.index()] &= !ARRIVES;
            }
            for tensor in reads.touches(graph, op) {
                for (bits, touch) in lives[tensor.index()].iter_mut().zip(touch) {
                    *bits |= touch;
                }
            }
        }
        for (tensor, &life) in graph.tensor_ids().zip(&*lives) {
            self.add_life(graph, tensor, life, flags[tensor.index()]);
        }
        Ok(())
    }

    /// Adds the life of a value, from its first use until it is overwritten unread. `life` has the
    /// chosen ops that come after a use in every order, the chosen ops that come before a use in
    /// every order, and the chosen ops that use the value.
    fn add_life(&mut self, graph: &Graph<'_>, tensor: TensorId, life: [u64; 3], flags: u8) {
        let Tensor { bytes, kind } = graph.tensor(tensor);
        if kind == Kind::State {
            return;
        }
        let [after, before, touched] = life;
        let alive = after & before;
        // An input is evicted without a transfer.
        let dirty = if flags & ARRIVES == 0 { alive } else { touched };
        for (held_bytes, mut bits) in
            [(&mut self.upload_bytes, alive), (&mut self.download_bytes, dirty)]
        {
            while bits != 0 {
                let held_bytes = &mut held_bytes[bits.trailing_zeros() as usize];
                *held_bytes = held_bytes.saturating_add(bytes);
                bits &= bits.saturating_sub(1);
            }
        }
    }
}

pub(super) fn flags<'a>(
    graph: &Graph<'_>,
    reads: &mut Reads<'_>,
    scratch: &mut Scratch<'a>,
) -> Result<&'a mut [u8], OutOfScratch> {
    let flags = scratch.take(graph.tensors().len(), 0u8)?;
    for op in graph.op_ids() {
        for tensor in graph.reads(op) {
            let flags = &mut flags[tensor.index()];
            *flags |= if *flags == 0 { READ | ARRIVES } else { READ };
        }
        for tensor in graph.writes(op) {
            flags[tensor.index()] |= WRITTEN;
        }
        reads.note(graph, op);
        for tensor in reads.overwrites(graph, op) {
            flags[tensor.index()] |= OVERWRITTEN;
        }
    }
    Ok(flags)
}

/// Bytes of the given states that hold a value all the time: an op reads them, and no op overwrites
/// them unread. O(operands).
pub(crate) fn living_bytes(
    graph: &Graph<'_>,
    states: impl Iterator<Item = TensorId>,
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let mut reads = Reads::new(graph, &mut scratch)?;
    let flags = flags(graph, &mut reads, &mut scratch)?;
    let lives = |tensor: &TensorId| flags[tensor.index()] & (READ | OVERWRITTEN) == READ;
    Ok(sum_bytes(graph, states.filter(lives)))
}

fn sum_bytes(graph: &Graph<'_>, tensors: impl Iterator<Item = TensorId>) -> u64 {
    tensors.fold(0, |sum, tensor| sum.saturating_add(graph.tensor(tensor).bytes))
}
