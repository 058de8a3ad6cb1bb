//! Host memory: one pinned block with a slot for each tensor that a step copies or an op on the
//! host uses, and two slots for inputs and outputs.
//!
//! Slots of states, inputs and outputs are permanent. A temporary needs its slot only during a span
//! of the list; temporaries whose spans do not overlap may share bytes.

#![expect(
    clippy::indexing_slicing,
    reason = "ids are those of the checked graph; `offset_bytes` panics on a foreign one"
)]

mod spans;

use crate::graph::{Graph, Kind, TensorId};
use crate::machine::Machine;
use crate::packing::{self, Packing};
use crate::pieces::Pieces;
use crate::plan::{Plan, PlanError};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::switch::SharedState;
use spans::Spans;

/// The offset of each tensor's host copy in the host block.
#[derive(Debug)]
pub struct HostLayout<'a> {
    /// The offsets of the two slots of each tensor; both are the same except for inputs and
    /// outputs.
    slots: &'a mut [[u64; 2]],
    /// For temporaries, the first byte of the tensor that is copied.
    from_bytes: &'a [u64],
    moved_bytes: u64,
    bytes: u64,
}

impl<'a> HostLayout<'a> {
    /// Words of scratch that [`HostLayout::new`] needs, by [`Limits::of_plan`]: at most 24 per
    /// tensor, 1 per piece, and 300.
    #[must_use]
    pub const fn scratch_words(limits: &Limits) -> usize {
        Pieces::scratch_words(limits).saturating_add(Self::words_beside_pieces(limits))
    }

    /// Words that a finished layout keeps.
    pub(crate) const fn kept_words(limits: &Limits) -> usize {
        words::<[u64; 2]>(limits.tensors).saturating_add(words::<u64>(limits.tensors))
    }

    pub(crate) const fn words_beside_pieces(limits: &Limits) -> usize {
        total([
            Self::kept_words(limits),
            Spans::scratch_words(limits),
            words::<u64>(limits.tensors),
            packing::scratch_words(limits.tensors),
        ])
    }

    /// Computes the layout; the same plan always gets the same slots. Packs temporaries by first
    /// fit, and with [effort](packing::default_steps) if first fit exceeds the machine and a better
    /// packing might not. O(operands + steps log steps), plus packing.
    ///
    /// # Errors
    /// A plan that breaks a rule of structure, [`PlanError::HostMemory`] if the machine has too
    /// little memory for the tensors that an iteration copies, and too little scratch.
    pub fn new(
        graph: &Graph<'_>,
        machine: &Machine,
        plan: &Plan<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        let unfilled = Unfilled::new(graph, scratch)?;
        let mut scratch = scratch.reborrow();
        let pieces = Pieces::new(graph, machine, plan, &mut scratch)?;
        unfilled.fill(graph, machine, plan, &pieces, &mut scratch)
    }

    /// Does the same as [`HostLayout::new`], given the table of pieces.
    pub(crate) fn of_pieces(
        graph: &Graph<'_>,
        machine: &Machine,
        plan: &Plan<'_>,
        pieces: &Pieces<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        Unfilled::new(graph, scratch)?.fill(graph, machine, plan, pieces, scratch)
    }

    /// Bytes of the tensors that an iteration copies or its ops on the host use: states, inputs and
    /// outputs once, and temporaries.
    #[must_use]
    pub const fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// Bytes of the whole block. First come the states, in the order of the graph; then the inputs,
    /// outputs and temporaries that an iteration copies; then the other inputs and outputs, and all
    /// second slots.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The slot of an input's or output's value in an iteration: 0 in even iterations, 1 in odd
    /// iterations.
    #[must_use]
    pub const fn slot(iteration: u64) -> u32 {
        (iteration % 2) as u32
    }

    /// The offset of a byte of a tensor in the block. Inputs and outputs have two slots, used
    /// alternately; all other tensors have only slot 0. The block holds only the copied bytes of a
    /// temporary. Slots follow one another without gaps, so their alignment depends on the sizes of
    /// tensors.
    ///
    /// # Panics
    /// The graph has no such tensor.
    #[must_use]
    pub fn offset_bytes(&self, tensor: TensorId, slot: u32, byte: u64) -> u64 {
        let index = tensor.index();
        let start = self.slots[index][slot as usize % 2];
        start.saturating_add(byte.saturating_sub(self.from_bytes[index]))
    }

    /// A block with slots at these places.
    #[cfg(test)]
    pub(crate) const fn of_slots(slots: &'a mut [[u64; 2]], from_bytes: &'a [u64]) -> Self {
        Self { slots, from_bytes, moved_bytes: 0, bytes: 0 }
    }

    /// Puts the slot of one tensor onto the slot of another.
    #[cfg(test)]
    pub(crate) fn put(&mut self, tensor: TensorId, onto: TensorId) {
        self.slots[tensor.index()] = self.slots[onto.index()];
    }

    /// Moves the slot of a tensor.
    #[cfg(test)]
    pub(crate) fn move_by(&mut self, tensor: TensorId, bytes: u64) {
        self.slots[tensor.index()] = self.slots[tensor.index()].map(|start| start + bytes);
    }

    /// Gives all states the offsets of another layout. In both layouts the states come first.
    pub(crate) fn take_states(&mut self, other: &HostLayout<'_>, states: &[SharedState]) {
        for state in states {
            self.slots[state.to.index()] = other.slots[state.from.index()];
        }
    }
}

/// A layout before its slots are computed.
struct Unfilled<'a> {
    slots: &'a mut [[u64; 2]],
    from_bytes: &'a mut [u64],
}

impl<'a> Unfilled<'a> {
    fn new(graph: &Graph<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        Ok(Self { slots: scratch.take(tensors, [0; 2])?, from_bytes: scratch.take(tensors, 0)? })
    }

    fn fill(
        self,
        graph: &Graph<'_>,
        machine: &Machine,
        plan: &Plan<'_>,
        pieces: &Pieces<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<HostLayout<'a>, PlanError> {
        let Self { slots, from_bytes } = self;
        let mut scratch = scratch.reborrow();
        let spans = Spans::new(graph, plan, pieces, &mut scratch)?;
        let mut bytes = 0u64;
        let mut append = |count: u64| {
            let start = bytes;
            // The graph's constructor has added up all tensors with both slots, so the sum cannot
            // overflow.
            bytes = bytes.saturating_add(count);
            start
        };
        let of = |is_one: fn(Kind) -> bool| {
            let tensors = graph.tensor_ids().zip(graph.tensors());
            tensors.filter(move |(_, tensor)| is_one(tensor.kind))
        };
        let mut moved_bytes = 0u64;
        for (id, tensor) in of(|kind| kind == Kind::State) {
            slots[id.index()] = [append(tensor.bytes); 2];
            let moved = if spans.moves(id) { tensor.bytes } else { 0 };
            moved_bytes = moved_bytes.saturating_add(moved);
        }
        for (id, tensor) in of(Kind::has_two_slots).filter(|&(id, _)| spans.moves(id)) {
            slots[id.index()] = [append(tensor.bytes); 2];
            moved_bytes = moved_bytes.saturating_add(tensor.bytes);
        }
        let offsets = scratch.take(spans.items(graph).count(), 0u64)?;
        let fits_bytes = machine.host_bytes.saturating_sub(moved_bytes);
        let height_bytes = pack(&spans, graph, fits_bytes, offsets, &mut scratch)?;
        let first = append(height_bytes);
        for ((id, _), &offset_bytes) in spans.items(graph).zip(&*offsets) {
            slots[id.index()] = [first.saturating_add(offset_bytes); 2];
            from_bytes[id.index()] = spans.first_byte(id);
        }
        moved_bytes = moved_bytes.saturating_add(height_bytes);
        if moved_bytes > machine.host_bytes {
            let host_bytes = machine.host_bytes;
            return Err(PlanError::HostMemory { needed_bytes: moved_bytes, host_bytes });
        }
        for (id, tensor) in of(Kind::has_two_slots) {
            let [one, other] = &mut slots[id.index()];
            if !spans.moves(id) {
                *one = append(tensor.bytes);
            }
            *other = append(tensor.bytes);
        }
        Ok(HostLayout { slots, from_bytes, moved_bytes, bytes })
    }
}

/// Packs the temporaries; returns the height of the packing in bytes.
fn pack(
    spans: &Spans<'_>,
    graph: &Graph<'_>,
    fits_bytes: u64,
    offsets: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    if offsets.is_empty() {
        return Ok(0);
    }
    let items = spans.items(graph).map(|(_, item)| item);
    let Packing { height_bytes, load_bytes } =
        packing::pack(items.clone(), 0, offsets, &mut scratch.reborrow())?;
    if height_bytes <= fits_bytes || load_bytes > fits_bytes {
        return Ok(height_bytes);
    }
    let steps = packing::default_steps(offsets.len());
    Ok(packing::pack(items, steps, offsets, scratch)?.height_bytes)
}
