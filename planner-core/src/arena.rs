//! The arena: small tensors at fixed offsets, so that a thousand biases do not cost a
//! thousand chunks.

use crate::graph::{Graph, Kind, TensorId};
use crate::machine::Machine;
use crate::plan::{ArenaPlacement, PlanError};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

/// Where a tensor's life begins and ends, in ops of the given order.
#[derive(Debug)]
pub struct Lifetimes<'a> {
    first: &'a mut [u32],
    last: &'a mut [u32],
    last_read: &'a mut [u32],
}

const NEVER: u32 = u32::MAX;

impl<'a> Lifetimes<'a> {
    /// Words of scratch that [`Lifetimes::new`] asks for.
    #[must_use]
    pub const fn scratch_words(limits: &Limits) -> usize {
        3 * words::<u32>(limits.tensors)
    }

    /// Finds the first and last touch of every tensor. O(operands).
    ///
    /// # Errors
    /// Scratch that is too small.
    pub fn new(graph: &Graph<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        let first = scratch.take(tensors, NEVER)?;
        let last = scratch.take(tensors, 0u32)?;
        let last_read = scratch.take(tensors, NEVER)?;
        for op in graph.op_ids() {
            for &tensor in graph.operands_of(op) {
                first[tensor.index()] = first[tensor.index()].min(op.0);
                last[tensor.index()] = op.0;
            }
            for &tensor in graph.reads(op) {
                last_read[tensor.index()] = op.0;
            }
        }
        Ok(Self { first, last, last_read })
    }

    /// The first and the last op that touch a tensor, if any does.
    #[must_use]
    pub fn touches(&self, tensor: TensorId) -> Option<(u32, u32)> {
        let first = self.first[tensor.index()];
        (first != NEVER).then(|| (first, self.last[tensor.index()]))
    }

    /// The last op that reads a tensor, if any does.
    #[must_use]
    pub fn last_read(&self, tensor: TensorId) -> Option<u32> {
        let op = self.last_read[tensor.index()];
        (op != NEVER).then_some(op)
    }
}

/// Words of scratch that [`pack`] asks for.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    2 * words::<u32>(limits.tensors)
}

/// Whether a tensor may lie in the arena, and deserves it: it is touched, smaller than
/// `below_bytes`, and no input that is unread or written after its last read.
#[must_use]
pub fn admits(
    graph: &Graph<'_>,
    lifetimes: &Lifetimes<'_>,
    below_bytes: u64,
    tensor: TensorId,
) -> bool {
    let data = graph.tensor(tensor);
    let Some((_, last)) = lifetimes.touches(tensor) else { return false };
    data.bytes < below_bytes
        && (data.kind != Kind::Input || lifetimes.last_read(tensor) == Some(last))
}

/// Places every admitted tensor: states and inputs side by side, then temporaries by first
/// fit in the order of their first touch. Returns how many were placed, and the arena's
/// bytes. O(n × tensors alive at the same time).
///
/// # Errors
/// Scratch or output that is too small, or sizes beyond 64 bits.
pub fn pack(
    graph: &Graph<'_>,
    machine: &Machine,
    lifetimes: &Lifetimes<'_>,
    below_bytes: u64,
    out: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<(usize, u64), PlanError> {
    let alignment_bytes = machine.chunk_bytes.clamp(1, 256);
    let aligned = |bytes: u64| bytes.next_multiple_of(alignment_bytes);
    let too_small = OutOfScratch {
        needed_words: words::<ArenaPlacement>(graph.tensors().len()),
        free_words: words::<ArenaPlacement>(out.len()),
    };
    let mut used = 0;
    let mut owned_bytes = 0u64;
    for temporary in [false, true] {
        for tensor in graph.tensor_ids() {
            let data = graph.tensor(tensor);
            if (data.kind == Kind::Temporary) != temporary
                || !admits(graph, lifetimes, below_bytes, tensor)
            {
                continue;
            }
            let slot = out.get_mut(used).ok_or(too_small)?;
            *slot = ArenaPlacement { tensor, offset_bytes: owned_bytes };
            used += 1;
            if !temporary {
                // Below the sum of all tensors and one alignment each: admitted ones are small.
                owned_bytes = owned_bytes.saturating_add(aligned(data.bytes));
            }
        }
    }
    let owners = out[..used]
        .partition_point(|placement| graph.tensor(placement.tensor).kind != Kind::Temporary);
    let first_touch = |tensor| lifetimes.touches(tensor).map_or(NEVER, |(first, _)| first);
    out[owners..used]
        .sort_unstable_by_key(|placement| (first_touch(placement.tensor), placement.tensor));
    let mut alive = FirstFit {
        slots: scratch.reborrow().take(used - owners, 0u32)?,
        len: 0,
        floor_bytes: owned_bytes,
    };
    let mut end_bytes = owned_bytes;
    let (_, temporaries) = out.split_at_mut(owners);
    for at in 0..used - owners {
        let tensor = temporaries[at].tensor;
        let now = first_touch(tensor);
        alive.drop_dead(temporaries, |other| {
            lifetimes.touches(other).is_none_or(|(_, last)| last < now)
        });
        let bytes = aligned(graph.tensor(tensor).bytes);
        let size = |placement: &ArenaPlacement| aligned(graph.tensor(placement.tensor).bytes);
        temporaries[at].offset_bytes = alive.place(temporaries, at, bytes, size);
        end_bytes = end_bytes.max(temporaries[at].offset_bytes.saturating_add(bytes));
    }
    Ok((used, end_bytes))
}

/// The temporaries that are alive, by offset.
struct FirstFit<'a> {
    slots: &'a mut [u32],
    len: usize,
    floor_bytes: u64,
}

impl FirstFit<'_> {
    fn drop_dead(&mut self, places: &[ArenaPlacement], is_dead: impl Fn(TensorId) -> bool) {
        let mut kept = 0;
        for slot in 0..self.len {
            if !is_dead(places[self.slots[slot] as usize].tensor) {
                self.slots[kept] = self.slots[slot];
                kept += 1;
            }
        }
        self.len = kept;
    }

    /// The lowest offset at which `bytes` fit; the tensor counts as alive from now on.
    fn place(
        &mut self,
        places: &[ArenaPlacement],
        at: usize,
        bytes: u64,
        size: impl Fn(&ArenaPlacement) -> u64,
    ) -> u64 {
        let mut offset_bytes = self.floor_bytes;
        let mut slot = 0;
        while slot < self.len {
            let other = &places[self.slots[slot] as usize];
            if other.offset_bytes.saturating_sub(offset_bytes) >= bytes {
                break;
            }
            offset_bytes = other.offset_bytes.saturating_add(size(other));
            slot += 1;
        }
        self.slots.copy_within(slot..self.len, slot + 1);
        self.slots[slot] = at as u32;
        self.len += 1;
        offset_bytes
    }
}
