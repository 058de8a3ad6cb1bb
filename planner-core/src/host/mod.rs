//! Host memory: one pinned block, in which everything that moves or that an op on the host touches has
//! its slot, and inputs and outputs two.
//!
//! States, inputs and outputs keep their slots for ever. A temporary needs one only for a
//! span of the list, and those whose spans do not overlap may share bytes.

mod spans;

use crate::graph::{Graph, Kind, TensorId};
use crate::machine::Machine;
use crate::packing::{self, Packing};
use crate::pieces::Pieces;
use crate::plan::{Plan, PlanError};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::switch::SharedState;
use spans::Spans;

/// Where the host copy of each tensor lies.
#[derive(Debug)]
pub struct HostLayout<'a> {
    /// Where the slots of each tensor begin; both are the same but for inputs and outputs.
    slots: &'a mut [[u64; 2]],
    /// The first byte of each tensor that moves, for temporaries.
    from_bytes: &'a [u64],
    moved_bytes: u64,
    bytes: u64,
}

impl<'a> HostLayout<'a> {
    /// Words of scratch that [`HostLayout::new`] asks for, by [`Limits::of_plan`]: per tensor at
    /// most 24, and 300; per
    /// piece 1.
    #[must_use]
    pub const fn scratch_words(limits: &Limits) -> usize {
        Pieces::scratch_words(limits).saturating_add(Self::words_beside_pieces(limits))
    }

    /// Words that a layout holds, once it is made.
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

    /// Lays the block out; the same plan gives the same slots. Temporaries are packed by first
    /// fit, and with [effort](packing::default_steps) where only that may fit the machine.
    /// O(operands + steps log steps), and packing.
    ///
    /// # Errors
    /// A plan whose structure is broken, [`PlanError::HostMemory`] where the machine has too
    /// little for what an iteration moves, and scratch that is too small.
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

    /// [`HostLayout::new`] with the table of pieces at hand.
    pub(crate) fn of_pieces(
        graph: &Graph<'_>,
        machine: &Machine,
        plan: &Plan<'_>,
        pieces: &Pieces<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PlanError> {
        Unfilled::new(graph, scratch)?.fill(graph, machine, plan, pieces, scratch)
    }

    /// Bytes for what an iteration moves or its ops on the host touch: every state, input and output
    /// once, and temporaries.
    #[must_use]
    pub const fn moved_bytes(&self) -> u64 {
        self.moved_bytes
    }

    /// The whole block. States come first, in the order of the graph; then inputs, outputs and
    /// temporaries that an iteration moves; then other inputs and outputs, and the second slots of
    /// all.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The slot of an input's or output's value in an iteration: 0 in even ones, 1 in odd ones.
    #[must_use]
    pub const fn slot(iteration: u64) -> u32 {
        (iteration % 2) as u32
    }

    /// Where a byte of a tensor lies in the block. Inputs and outputs have two slots, used in turn;
    /// all others have slot 0 only. Of a temporary, only bytes that move lie in the block. Slots follow
    /// one another without gaps, so they are aligned as the sizes of tensors are.
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

    /// Puts the slot of a tensor where that of another one is.
    #[cfg(test)]
    pub(crate) fn put(&mut self, tensor: TensorId, onto: TensorId) {
        self.slots[tensor.index()] = self.slots[onto.index()];
    }

    /// Moves the slot of a tensor.
    #[cfg(test)]
    pub(crate) fn move_by(&mut self, tensor: TensorId, bytes: u64) {
        self.slots[tensor.index()] = self.slots[tensor.index()].map(|start| start + bytes);
    }

    /// Leaves all states where another layout has them. Both have all states in front.
    pub(crate) fn take_states(&mut self, other: &HostLayout<'_>, states: &[SharedState]) {
        for state in states {
            self.slots[state.to.index()] = other.slots[state.from.index()];
        }
    }
}

/// Slots before they are known.
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
            // Cannot overflow: the graph's constructor has added up all tensors, with both slots.
            bytes += count;
            start
        };
        let of = |is_one: fn(Kind) -> bool| {
            let tensors = graph.tensor_ids().zip(graph.tensors());
            tensors.filter(move |(_, tensor)| is_one(tensor.kind))
        };
        let mut moved_bytes = 0;
        for (id, tensor) in of(|kind| kind == Kind::State) {
            slots[id.index()] = [append(tensor.bytes); 2];
            moved_bytes += if spans.moves(id) { tensor.bytes } else { 0 };
        }
        for (id, tensor) in of(Kind::has_two_slots).filter(|&(id, _)| spans.moves(id)) {
            slots[id.index()] = [append(tensor.bytes); 2];
            moved_bytes += tensor.bytes;
        }
        let offsets = scratch.take(spans.items(graph).count(), 0u64)?;
        let fits_bytes = machine.host_bytes.saturating_sub(moved_bytes);
        let height_bytes = pack(&spans, graph, fits_bytes, offsets, &mut scratch)?;
        let first = append(height_bytes);
        for ((id, _), &offset_bytes) in spans.items(graph).zip(&*offsets) {
            slots[id.index()] = [first.saturating_add(offset_bytes); 2];
            from_bytes[id.index()] = spans.first_byte(id);
        }
        moved_bytes += height_bytes;
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

/// Gives each temporary an offset; returns the height.
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
