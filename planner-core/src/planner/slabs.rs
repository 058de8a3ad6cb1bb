//! Slabs: objects smaller than a chunk, for tensors that would leave most of a chunk empty.
//!
//! Memory must be divided between chunks and slabs, which cannot serve each other. A list without
//! slabs shows the need for each.

#![expect(
    clippy::indexing_slicing,
    reason = "sizes are below `SIZES`, and `held` has an entry for each tensor"
)]

use super::memory::{CHUNKS, Memory, objects_of};
use super::request::{Lists, Task};
use crate::graph::TensorId;
use crate::plan::{Resident, Step};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

/// The sizes to consider, as fractions of a chunk. Each is lowered to the size of the largest
/// tensor that it holds, rounded up for the alignment that kernels need.
const FRACTIONS: [u64; SIZES] = [2, 4, 8];
const SIZES: usize = 3;

/// Slabs must save at least this fraction of the chunks. A smaller saving does not outweigh that
/// slabs and chunks cannot serve each other.
const LEAST: u64 = 64;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    words::<u64>(limits.tensors)
}

/// The memory that a list holds.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    chunks: u64,
    /// For each size, the number of tensors up to that size.
    small: [u64; SIZES],
}

/// Follows a list, and records the most that it holds.
struct Walk<'w> {
    task: &'w Task<'w>,
    memory: &'w Memory<'w>,
    sizes_bytes: [u64; SIZES],
    /// The number of objects of each tensor on the device.
    held: &'w mut [u64],
    now: Held,
    /// The most chunks of other tensors, for each size; and the most tensors up to that size.
    most_chunks: [u64; SIZES],
    most_small: [u64; SIZES],
}

impl Walk<'_> {
    fn set(&mut self, tensor: TensorId, objects: u64) {
        let bytes = self.task.sequence.tensor(tensor).bytes;
        let objects = objects.min(self.memory.objects(tensor));
        let before = core::mem::replace(&mut self.held[tensor.index()], objects);
        let change =
            |count: &mut u64| *count = count.saturating_sub(before).saturating_add(objects);
        change(&mut self.now.chunks);
        for (small, &size_bytes) in self.now.small.iter_mut().zip(&self.sizes_bytes) {
            if bytes <= size_bytes {
                change(small);
            }
        }
    }

    fn measure_step(&mut self, workspace_chunks: u64) {
        let Held { chunks, small } = self.now;
        for (at, small) in small.into_iter().enumerate() {
            let others = chunks.saturating_sub(small).saturating_add(workspace_chunks);
            self.most_chunks[at] = self.most_chunks[at].max(others);
            self.most_small[at] = self.most_small[at].max(small);
        }
    }

    fn step(&mut self, step: Step) {
        let held = |tensor: TensorId| self.held[tensor.index()];
        match step {
            Step::Prefetch(part) => {
                let count = part.count.min(self.memory.objects(part.tensor));
                self.set(part.tensor, held(part.tensor).saturating_add(count));
            }
            Step::Evict(part) => {
                self.set(part.tensor, held(part.tensor).saturating_sub(part.count));
            }
            Step::Launch(launched) => {
                let graph = self.task.sequence.graph();
                for tensor in graph.written_by(launched) {
                    self.set(tensor, u64::MAX);
                }
                let bytes = graph.op(launched.op).workspace_bytes;
                return self.measure_step(objects_of(self.task, bytes));
            }
            Step::Offload(_) | Step::Host(_) => {}
        }
        self.measure_step(0);
    }
}

/// The memory with slabs of the size that saves most, by the residents of a planner's list; `None`
/// if they save almost nothing. O(steps + tensors).
pub(super) fn divide<'m>(
    task: &Task<'_>,
    memory: &Memory<'m>,
    Lists { steps, resident }: Lists<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Option<Memory<'m>>, OutOfScratch> {
    let Task { sequence, machine, .. } = *task;
    let mut scratch = scratch.reborrow();
    let held = scratch.take(sequence.tensors().len(), 0u64)?;
    // As for the arena; for small chunks, a fraction of a chunk, so that several sizes differ.
    let alignment_bytes = (machine.chunk_bytes / 16).clamp(1, 256);
    let sizes_bytes = FRACTIONS.map(|fraction| {
        let pooled = sequence.tensor_ids().filter(|&tensor| !memory.in_arena(tensor));
        let bytes = pooled.map(|tensor| sequence.tensor(tensor).bytes);
        let most_bytes = machine.chunk_bytes.checked_div(fraction).unwrap_or(0);
        bytes
            .filter(|&bytes| bytes <= most_bytes)
            .max()
            .map_or(0, |bytes| bytes.next_multiple_of(alignment_bytes))
    });
    let (most_chunks, most_small) = ([0; SIZES], [0; SIZES]);
    let now = Held::default();
    let mut walk = Walk { task, memory, sizes_bytes, held, now, most_chunks, most_small };
    for &Resident { part, .. } in resident {
        let held = walk.held[part.tensor.index()];
        walk.set(part.tensor, held.saturating_add(part.count));
    }
    for &step in steps {
        walk.step(step);
    }
    let Walk { most_chunks, most_small, .. } = walk;
    let needed = |at: usize| {
        let bytes = u128::from(most_small[at]).saturating_mul(sizes_bytes[at].into());
        let slabs = bytes.div_ceil(u128::from(machine.chunk_bytes));
        (most_chunks[at], u64::try_from(slabs).unwrap_or(u64::MAX))
    };
    let saved = |at: usize| most_small[at].saturating_sub(needed(at).1);
    let sizes = (0..SIZES).filter(|&at| sizes_bytes[at] > 0);
    let Some(best) = sizes.max_by_key(|&at| saved(at)) else { return Ok(None) };
    let (chunks, slabs) = needed(best);
    let all = memory.pool_objects(CHUNKS);
    if saved(best) <= all / LEAST {
        return Ok(None);
    }
    // Divides the pool in proportion to both needs, whether it can hold them or not.
    let whole = u128::from(chunks).saturating_add(slabs.into());
    let share = u128::from(all).saturating_mul(slabs.into()).checked_div(whole);
    let chunks = share.and_then(|share| u64::try_from(share).ok()).unwrap_or(all).max(1);
    Ok(Some(memory.with_slabs(sizes_bytes[best], chunks)))
}
