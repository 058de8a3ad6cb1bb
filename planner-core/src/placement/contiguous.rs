//! Consecutive objects for each allocation, so that one address serves a whole tensor without
//! virtual memory.
//!
//! The allocations of a pool are items on a circle of iterations; their objects are the offsets of
//! a [packing](crate::packing). A tensor that is in the same objects at the end and at the start is
//! one item.

#![expect(clippy::indexing_slicing, reason = "allocations and slots are those that `walk` counted")]

use super::place::PlacementError;
use crate::allocations::{self, Event, Taker, walk};
use crate::graph::Graph;
use crate::packing::{self, Item};
use crate::pieces::Pieces;
use crate::plan::Plan;
use crate::scratch::{Limits, Scratch, larger, total, words};
use bytemuck::{Pod, Zeroable};
use core::ops::Range;

/// Never released.
const NEVER: u32 = u32::MAX;
/// No allocation.
const NONE: u32 = u32::MAX;

/// An allocation.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Allocation {
    first_slot: u32,
    count: u32,
    pool: u32,
    taken: u32,
    given: u32,
    /// The allocation whose objects it shares, since the tensor holds them across the end of the
    /// circle; or [`NONE`].
    same_as: u32,
}

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    // Each allocation takes at least one object.
    let allocations = limits.objects;
    let packed = total([
        words::<Allocation>(allocations),
        words::<u64>(allocations),
        packing::scratch_words(allocations),
    ]);
    larger(allocations::scratch_words(limits), packed)
        .saturating_add(words::<Allocation>(allocations))
}

/// Finds objects for all slots. Returns the number of objects that the pools lack; if it is not
/// zero, some numbers are beyond the last object. `ends` holds the end of the slots of each
/// allocation.
///
/// # Errors
/// A tensor that moves in parts; too little scratch.
pub(super) fn fill(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    (iterations, most_steps): (u32, u64),
    (objects, ends): (&mut [u64], &[u32]),
    scratch: &mut Scratch<'_>,
) -> Result<u64, PlacementError> {
    let mut scratch = scratch.reborrow();
    let none = Allocation { given: NEVER, same_as: NONE, ..Allocation::zeroed() };
    let all = scratch.take(ends.len(), none)?;
    let mut in_parts = None;
    let of = |slots: &Range<u32>| ends.partition_point(|&end| end <= slots.start);
    walk(graph, plan, pieces, iterations, &mut scratch, |event| {
        match event {
            Event::Take { at, allocation, taker, pool, slots, .. } => {
                if let Taker::Tensor(tensor) = taker
                    && pieces.of(tensor).len() > 1
                {
                    in_parts = Some(tensor);
                }
                let (first_slot, count) = (slots.start, slots.len() as u32);
                let pool = pool as u32;
                all[allocation as usize] =
                    Allocation { first_slot, count, pool, taken: at, ..none };
            }
            Event::Give { at, slots } => all[of(&slots)].given = at,
            Event::End { start, end, .. } if start != end => {
                // The item begins with the later allocation, and ends with that of the start.
                let start = of(&start);
                all[of(&end)].given = all[start].given;
                all[start].same_as = of(&end) as u32;
            }
            Event::End { .. } => {}
        }
        Ok(())
    })?;
    if let Some(tensor) = in_parts {
        return Err(PlacementError::InParts(tensor));
    }
    let mut lacking = 0u64;
    for (pool, data) in (0..).zip(plan.pools) {
        let height = pack(all, pool, most_steps, objects, &mut scratch)?;
        lacking = lacking.saturating_add(height.saturating_sub(data.count));
    }
    for allocation in all.iter().filter(|allocation| allocation.same_as != NONE) {
        let twin = all[allocation.same_as as usize].first_slot as usize;
        let twin = twin..twin.saturating_add(allocation.count as usize);
        objects.copy_within(twin, allocation.first_slot as usize);
    }
    Ok(lacking)
}

/// Packs the allocations of one pool; returns the number of objects that they take.
fn pack(
    all: &[Allocation],
    pool: u32,
    most_steps: u64,
    objects: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Result<u64, PlacementError> {
    let mut scratch = scratch.reborrow();
    let is_item = |allocation: &&Allocation| allocation.pool == pool && allocation.same_as == NONE;
    let items = || all.iter().filter(is_item);
    let count = items().count();
    let offsets = scratch.take(count, 0u64)?;
    let item = |allocation: &Allocation| Item {
        first: allocation.taken,
        last: allocation.given,
        bytes: allocation.count.into(),
    };
    let packing = packing::pack(items().map(item), most_steps, offsets, &mut scratch)?;
    for (allocation, &offset) in items().zip(&*offsets) {
        let slots = allocation.first_slot as usize..;
        let slots = objects[slots].iter_mut().take(allocation.count as usize);
        slots.zip(offset..).for_each(|(slot, object)| *slot = object);
    }
    Ok(packing.height_bytes)
}
