//! Gives a plan's arena the offsets of the previous plan's arena.

#![expect(
    clippy::indexing_slicing,
    reason = "`pair_up` has an entry for each tensor, and a list has room for one block more than \
              tensors"
)]

use super::error::SwitchError;
use super::states::{self, SharedState};
use crate::arena;
use crate::graph::Kind;
use crate::plan::ArenaPlacement;
use crate::scratch::{Buffer, Limits, OutOfScratch, Scratch, total, words};
use crate::verify::Verified;
use bytemuck::{Pod, Zeroable};

/// No offset.
const NONE: u64 = u64::MAX;

/// Consecutive bytes of the arena: a free gap, or a block to place.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Block {
    /// The first byte; for a block to place, its position in the plan's arena.
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
    let mut kept = List { blocks: scratch.take(most, Block::zeroed())?, len: 0 };
    let mut others = List { blocks: scratch.take(most, Block::zeroed())?, len: 0 };
    // All temporaries are one block, with the position after the last tensor.
    let mut temporaries = (NONE, 0);
    for (position, placement) in out.iter_mut().enumerate() {
        if is_temporary(placement) {
            temporaries =
                (temporaries.0.min(placement.offset_bytes), temporaries.1.max(end(placement)));
            continue;
        }
        let bytes = arena::size_bytes(graph, machine, placement.tensor);
        match offsets[placement.tensor.index()] {
            NONE => others.push(position as u64, bytes)?,
            at => {
                placement.offset_bytes = at;
                kept.push(at, bytes)?;
            }
        }
    }
    let (first, last) = temporaries;
    if first < last {
        others.push(out.len() as u64, last - first)?;
    }
    let gaps = kept.into_gaps();
    let others = &mut others.blocks[..others.len];
    others.sort_unstable_by(|one, other| other.bytes.cmp(&one.bytes).then(one.at.cmp(&other.at)));
    for block in others {
        let Some(gap) = gaps.iter_mut().find(|gap| gap.bytes >= block.bytes) else {
            return Err(SwitchError::Overflow);
        };
        match out.get_mut(block.at as usize) {
            Some(placement) => placement.offset_bytes = gap.at,
            None => {
                for placement in out.iter_mut().filter(|placement| is_temporary(placement)) {
                    placement.offset_bytes = placement.offset_bytes - first + gap.at;
                }
            }
        }
        gap.at = gap.at.saturating_add(block.bytes);
        gap.bytes -= block.bytes;
    }
    Ok(out.iter().map(end).max().unwrap_or(0))
}

struct List<'s> {
    blocks: &'s mut [Block],
    len: usize,
}

impl<'s> List<'s> {
    fn push(&mut self, at: u64, bytes: u64) -> Result<(), OutOfScratch> {
        let short = OutOfScratch { needed_words: words::<Block>(1), free_words: 0 };
        *self.blocks.get_mut(self.len).ok_or(short)? = Block { at, bytes };
        self.len += 1;
        Ok(())
    }

    /// The gaps between the blocks, and the gap after the last block, which has no end.
    fn into_gaps(self) -> &'s mut [Block] {
        let Self { blocks, len } = self;
        let blocks = &mut blocks[..=len];
        blocks[len] = Block { at: NONE, bytes: 0 };
        blocks.sort_unstable_by_key(|block| block.at);
        let mut next = 0;
        for block in &mut *blocks {
            let (at, end) = (block.at, block.at.saturating_add(block.bytes));
            *block = Block { at: next, bytes: at.saturating_sub(next) };
            next = end;
        }
        blocks
    }
}
