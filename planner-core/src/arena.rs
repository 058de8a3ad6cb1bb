//! The arena: small tensors at fixed offsets, so that a thousand biases do not cost a thousand
//! chunks.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors are those of the sequence, and the arrays have an entry for each"
)]

use crate::graph::{Graph, Kind, TensorId};
use crate::machine::Machine;
use crate::packing::{self, Item};
use crate::plan::{ArenaPlacement, PlanError};
use crate::scratch::{Buffer, BufferTooShort, Limits, OutOfScratch, Scratch, words};
use crate::sequence::Sequence;

/// The first and last use of each tensor, as launches.
#[derive(Debug)]
pub(crate) struct Lifetimes<'a> {
    first: &'a mut [u32],
    last: &'a mut [u32],
    last_read: &'a mut [u32],
    /// The used tensors in the order of their first use.
    by_first: &'a [u32],
}

const NEVER: u32 = u32::MAX;

impl<'a> Lifetimes<'a> {
    /// Words of scratch that [`Lifetimes::new`] needs.
    #[must_use]
    pub(crate) const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.tensors).saturating_mul(4)
    }

    /// Finds the first and last use of every tensor. O(operands).
    ///
    /// # Errors
    /// Too little scratch.
    #[expect(clippy::arithmetic_side_effects, reason = "`touched` counts tensors")]
    pub(crate) fn new(
        sequence: &Sequence<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let tensors = sequence.tensors().len();
        let first = scratch.take(tensors, NEVER)?;
        let last = scratch.take(tensors, NEVER)?;
        let last_read = scratch.take(tensors, NEVER)?;
        let by_first = scratch.take(tensors, 0u32)?;
        let mut touched = 0;
        for launch in sequence.launches() {
            for &tensor in sequence.operands_of(launch) {
                if first[tensor.index()] == NEVER {
                    first[tensor.index()] = launch.0;
                    by_first[touched] = tensor.0;
                    touched += 1;
                }
                last[tensor.index()] = launch.0;
            }
            for &tensor in sequence.reads(launch) {
                last_read[tensor.index()] = launch.0;
            }
        }
        Ok(Self { first, last, last_read, by_first: &by_first[..touched] })
    }

    /// The first and the last launch that use a tensor, if any does.
    ///
    /// # Panics
    /// The graph has no such tensor.
    #[must_use]
    pub(crate) fn uses(&self, tensor: TensorId) -> Option<(u32, u32)> {
        let first = self.first[tensor.index()];
        (first != NEVER).then(|| (first, self.last[tensor.index()]))
    }

    /// The last launch that reads a tensor, if any does.
    ///
    /// # Panics
    /// The graph has no such tensor.
    #[must_use]
    pub(crate) fn last_read(&self, tensor: TensorId) -> Option<u32> {
        let op = self.last_read[tensor.index()];
        (op != NEVER).then_some(op)
    }
}

/// Whether a tensor may and should lie in the arena: a launch uses it, no op on the host uses it,
/// it is smaller than `below_bytes`, and it is not an input that is unread or written after its
/// last read.
///
/// # Panics
/// The graph has no such tensor, or `lifetimes` are of another graph.
#[must_use]
pub(crate) fn admits(
    sequence: &Sequence<'_>,
    lifetimes: &Lifetimes<'_>,
    below_bytes: u64,
    tensor: TensorId,
) -> bool {
    let data = sequence.tensor(tensor);
    let Some((_, last)) = lifetimes.uses(tensor) else { return false };
    data.bytes < below_bytes
        && !sequence.is_used_by_host(tensor)
        && (data.kind != Kind::Input || lifetimes.last_read(tensor) == Some(last))
}

/// The bytes of the arena that a tensor takes: offsets are multiples of 256, or of a smaller chunk.
pub(crate) fn size_bytes(graph: &Graph<'_>, machine: &Machine, tensor: TensorId) -> u64 {
    let bytes = graph.tensor(tensor).bytes;
    bytes.checked_next_multiple_of(machine.chunk_bytes.min(256)).unwrap_or(u64::MAX)
}

/// Words of scratch that [`pack`] needs.
#[must_use]
pub(crate) const fn scratch_words(limits: &Limits) -> usize {
    words::<u64>(limits.tensors)
        .saturating_add(words::<u8>(limits.tensors))
        .saturating_add(packing::scratch_words(limits.tensors))
}

/// Assigns an offset to every admitted tensor: states, inputs, outputs and the tensors of
/// collectives side by side, then the other temporaries packed by lifetime, with
/// [effort](packing::default_steps) only if that may save a chunk. Returns the number of placed
/// tensors and the arena's size in bytes. O(operands), plus packing.
///
/// # Errors
/// Too little scratch or output.
///
/// # Panics
/// `lifetimes` are of another graph.
pub(crate) fn pack(
    sequence: &Sequence<'_>,
    machine: &Machine,
    lifetimes: &Lifetimes<'_>,
    below_bytes: u64,
    out: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<(usize, u64), PlanError> {
    let mut scratch = scratch.reborrow();
    let graph = sequence.graph();
    let admitted = lifetimes
        .by_first
        .iter()
        .map(|&id| TensorId(id))
        .filter(|&tensor| admits(sequence, lifetimes, below_bytes, tensor));
    let exchanged = scratch.take(graph.tensors().len(), 0u8)?;
    graph.mark_exchanged(exchanged);
    let exchanged = &*exchanged;
    let of_kind = |shares| {
        let may_share = move |tensor: &TensorId| {
            graph.tensor(*tensor).kind == Kind::Temporary && exchanged[tensor.index()] == 0
        };
        admitted.clone().filter(move |tensor| may_share(tensor) == shares)
    };
    let mut placed = Placed { out, len: 0, most: lifetimes.by_first.len() };
    let mut own_bytes = 0u64;
    for tensor in of_kind(false) {
        placed.push(tensor, own_bytes)?;
        // Admitted tensors are small: their sum stays far below 2^64.
        own_bytes = own_bytes.saturating_add(size_bytes(graph, machine, tensor));
    }
    let items = of_kind(true).map(|tensor| Item {
        first: lifetimes.first[tensor.index()],
        last: lifetimes.last[tensor.index()],
        bytes: size_bytes(graph, machine, tensor),
    });
    let offsets = scratch.take(items.clone().count(), 0u64)?;
    let mut packing = packing::pack(items.clone(), 0, offsets, &mut scratch)?;
    let chunks = |bytes: u64| own_bytes.saturating_add(bytes).div_ceil(machine.chunk_bytes);
    if chunks(packing.height_bytes) > chunks(packing.load_bytes) {
        let steps = packing::default_steps(offsets.len());
        packing = packing::pack(items, steps, offsets, &mut scratch)?;
    }
    for (tensor, &offset_bytes) in of_kind(true).zip(&*offsets) {
        placed.push(tensor, own_bytes.saturating_add(offset_bytes))?;
    }
    Ok((placed.len, own_bytes.saturating_add(packing.height_bytes)))
}

/// The placements written so far.
struct Placed<'a> {
    out: &'a mut [ArenaPlacement],
    len: usize,
    /// The most placements.
    most: usize,
}

impl Placed<'_> {
    fn push(&mut self, tensor: TensorId, offset_bytes: u64) -> Result<(), BufferTooShort> {
        let Some(slot) = self.out.get_mut(self.len) else {
            let (needed, len) = (self.most, self.out.len());
            return Err(BufferTooShort { buffer: Buffer::Arena, needed, len });
        };
        *slot = ArenaPlacement { tensor, offset_bytes };
        self.len = self.len.saturating_add(1);
        Ok(())
    }
}
