//! No two tensors that are in use at the same time share bytes of the arena.

use crate::graph::{Graph, Kind};
use crate::plan::{ArenaPlacement, Plan, PlanError, Step};
use crate::scratch::{Limits, Scratch, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    words::<u32>(limits.tensors)
        .saturating_mul(2)
        .saturating_add(words::<u32>(limits.tensors).saturating_mul(2))
}

/// Comes last, when all temporaries are over: what nobody touches may share their bytes,
/// but not those that a state or an input owns.
const UNTOUCHED: u32 = u32::MAX;

/// Sweeps over the list with the set of places in use, sorted by offset.
pub(super) fn check(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanError> {
    let tensors = graph.tensors().len();
    let first = scratch.take(tensors, UNTOUCHED)?;
    let last = scratch.take(tensors, 0u32)?;
    for (at, step) in (0..).zip(plan.steps) {
        let Step::Launch(op) = *step else { continue };
        for &tensor in graph.operands_of(op) {
            first[tensor.index()] = first[tensor.index()].min(at);
            last[tensor.index()] = at;
        }
    }
    for placement in plan.arena {
        let index = placement.tensor.index();
        if graph.tensor(placement.tensor).kind != Kind::Temporary {
            (first[index], last[index]) = (0, u32::MAX);
        }
    }
    let by_start = scratch.take(plan.arena.len(), 0u32)?;
    for (at, slot) in (0..).zip(&mut *by_start) {
        *slot = at;
    }
    by_start.sort_unstable_by_key(|&at| first[plan.arena[at as usize].tensor.index()]);
    let in_use = scratch.take(plan.arena.len(), 0u32)?;
    let mut places = Places { graph, arena: plan.arena, last, in_use, len: 0, after_purge: 0 };
    for &at in &*by_start {
        places.enter(at, first[plan.arena[at as usize].tensor.index()])?;
    }
    Ok(())
}

/// Places in use, by offset; those whose time is over are removed when they are met.
struct Places<'w> {
    graph: &'w Graph<'w>,
    arena: &'w [ArenaPlacement],
    last: &'w [u32],
    in_use: &'w mut [u32],
    len: usize,
    after_purge: usize,
}

impl Places<'_> {
    fn placement(&self, slot: usize) -> ArenaPlacement {
        self.arena[self.in_use[slot] as usize]
    }

    fn end_bytes(&self, placement: ArenaPlacement) -> u64 {
        // The table of pieces has checked that every place ends inside the arena.
        placement.offset_bytes.saturating_add(self.graph.tensor(placement.tensor).bytes)
    }

    fn is_over(&self, slot: usize, now: u32) -> bool {
        self.last[self.placement(slot).tensor.index()] < now
    }

    fn remove(&mut self, slot: usize) {
        self.in_use.copy_within(slot + 1..self.len, slot);
        self.len -= 1;
    }

    fn enter(&mut self, place: u32, now: u32) -> Result<(), PlanError> {
        if self.len > 2 * self.after_purge + 64 {
            self.purge(now);
        }
        let new = self.arena[place as usize];
        let mut slot = self.in_use[..self.len]
            .partition_point(|&other| self.arena[other as usize].offset_bytes < new.offset_bytes);
        while slot > 0 && self.is_over(slot - 1, now) {
            self.remove(slot - 1);
            slot -= 1;
        }
        while slot < self.len && self.is_over(slot, now) {
            self.remove(slot);
        }
        let overlap = |other: ArenaPlacement| PlanError::ArenaOverlap(other.tensor, new.tensor);
        if slot > 0 && self.end_bytes(self.placement(slot - 1)) > new.offset_bytes {
            return Err(overlap(self.placement(slot - 1)));
        }
        if slot < self.len && self.placement(slot).offset_bytes < self.end_bytes(new) {
            return Err(overlap(self.placement(slot)));
        }
        self.in_use.copy_within(slot..self.len, slot + 1);
        self.in_use[slot] = place;
        self.len += 1;
        Ok(())
    }

    fn purge(&mut self, now: u32) {
        let mut kept = 0;
        for slot in 0..self.len {
            if !self.is_over(slot, now) {
                self.in_use[kept] = self.in_use[slot];
                kept += 1;
            }
        }
        self.len = kept;
        self.after_purge = kept;
    }
}
