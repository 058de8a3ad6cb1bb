//! Gives a plan's arena the offsets of the previous plan's arena.

#![expect(
    clippy::indexing_slicing,
    reason = "`pair_up` has an entry for each tensor, and a list has room for one block more than \
              tensors"
)]

use super::error::SwitchError;
use super::push_list::PushList;
use super::states::{self, SharedState};
use crate::arena;
use crate::graph::Kind;
use crate::plan::ArenaPlacement;
use crate::scratch::{Buffer, Limits, OutOfScratch, Scratch, total, words};
use crate::verify::Verified;
use bytemuck::{Pod, Zeroable};

/// No offset.
const NONE: u64 = u64::MAX;

/// The position of the block of all temporaries.
const TEMPORARIES: u64 = u64::MAX;

/// Consecutive bytes of the arena: a free gap, or a block to place.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Block {
    /// The first byte; for a block to place, its position in the plan's arena, or `TEMPORARIES`.
    at: u64,
    bytes: u64,
}

/// Words of scratch that [`keep_offsets`] needs, by [`Limits::of_plan`] of both plans.
#[must_use]
pub const fn keep_offsets_scratch_words(from: &Limits, to: &Limits) -> usize {
    total([
        states::scratch_words(from, to),
        words::<u64>(to.tensors),
        words::<Block>(to.tensors.saturating_add(1)).saturating_mul(2),
    ])
}

/// Gives the states in a plan's arena the offsets that they have in the arena of the previous plan,
/// so that they stay in place in a switch. Writes the whole arena to `out` and returns its size in
/// bytes, which may be larger than before. Temporaries keep their distances from each other, since
/// they share bytes. Other tensors go to the first gap that is large enough, the largest tensor
/// first. O(tensors log tensors + others * states).
///
/// # Errors
/// States that do not correspond, and buffers that are too short.
pub fn keep_offsets(
    from: &Verified<'_>,
    to: &Verified<'_>,
    states: &[SharedState],
    out: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<u64, SwitchError> {
    let mut scratch = scratch.reborrow();
    let (graph, machine, plan) = (to.graph(), to.machine(), to.plan());
    let to_ids = states::pair_up(from.graph(), graph, states, &mut scratch)?;
    let offsets = scratch.take(graph.tensors().len(), NONE)?;
    for placement in from.plan().arena {
        if let Some(offset) = offsets.get_mut(to_ids[placement.tensor.index()] as usize) {
            *offset = placement.offset_bytes;
        }
    }
    let out = Buffer::Arena.first(out, plan.arena.len())?;
    out.copy_from_slice(plan.arena);
    let is_temporary =
        |placement: &ArenaPlacement| graph.tensor(placement.tensor).kind == Kind::Temporary;
    let end = |placement: &ArenaPlacement| {
        let bytes = arena::size_bytes(graph, machine, placement.tensor);
        placement.offset_bytes.saturating_add(bytes)
    };
    let most = graph.tensors().len().saturating_add(1);
    let mut kept = PushList::new(most, &mut scratch)?;
    let mut others = PushList::new(most, &mut scratch)?;
    // All temporaries are one block.
    let (mut first, mut last) = (NONE, 0);
    for (position, placement) in out.iter_mut().enumerate() {
        if is_temporary(placement) {
            first = first.min(placement.offset_bytes);
            last = last.max(end(placement));
            continue;
        }
        let bytes = arena::size_bytes(graph, machine, placement.tensor);
        match offsets[placement.tensor.index()] {
            NONE => others.push(Block { at: position as u64, bytes })?,
            at => {
                placement.offset_bytes = at;
                kept.push(Block { at, bytes })?;
            }
        }
    }
    if first < last {
        others.push(Block { at: TEMPORARIES, bytes: last.saturating_sub(first) })?;
    }
    place(others.into_entries(), into_gaps(kept)?, |block, offset_bytes| match block {
        TEMPORARIES => {
            for placement in out.iter_mut().filter(|placement| is_temporary(placement)) {
                let distance_bytes = placement.offset_bytes.saturating_sub(first);
                placement.offset_bytes = offset_bytes.saturating_add(distance_bytes);
            }
        }
        position => out[position as usize].offset_bytes = offset_bytes,
    })?;
    Ok(out.iter().map(end).max().unwrap_or(0))
}

/// Places each block in the first gap that is large enough, the largest block first. Calls `placed`
/// with the position of each block and its offset.
fn place(
    blocks: &mut [Block],
    gaps: &mut [Block],
    mut placed: impl FnMut(u64, u64),
) -> Result<(), SwitchError> {
    blocks.sort_unstable_by(|one, other| other.bytes.cmp(&one.bytes).then(one.at.cmp(&other.at)));
    for block in blocks {
        let Some(gap) = gaps.iter_mut().find(|gap| gap.bytes >= block.bytes) else {
            return Err(SwitchError::Overflow);
        };
        placed(block.at, gap.at);
        gap.at = gap.at.saturating_add(block.bytes);
        gap.bytes = gap.bytes.saturating_sub(block.bytes);
    }
    Ok(())
}

/// The gaps between blocks, and the gap after the last block, which has no end.
fn into_gaps(mut blocks: PushList<'_, Block>) -> Result<&mut [Block], OutOfScratch> {
    blocks.push(Block { at: NONE, bytes: 0 })?;
    let blocks = blocks.into_entries();
    blocks.sort_unstable_by_key(|block| block.at);
    let mut next = 0;
    for block in &mut *blocks {
        let (at, end) = (block.at, block.at.saturating_add(block.bytes));
        *block = Block { at: next, bytes: at.saturating_sub(next) };
        next = end;
    }
    Ok(blocks)
}
