//! No two tensors that are in use at the same time share bytes of the arena
//! (`docs/format.md`, 3.3).

use crate::graph::{Graph, Kind};
use crate::index_set::IndexSet;
use crate::plan::{ArenaPlacement, Plan, PlanError, Step};
use crate::scratch::{Limits, Scratch, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    words::<u32>(limits.tensors)
        .saturating_mul(2)
        .saturating_add(words::<u32>(limits.tensors).saturating_mul(2))
        .saturating_add(IndexSet::scratch_words(limits.tensors))
}

/// Comes last, when all temporaries are over: what nobody touches may share their bytes,
/// but not those that a state or an input owns.
const UNTOUCHED: u32 = u32::MAX;

/// Sweeps over the list with the set of places in use, by offset. O(steps + operands + n log n).
pub(super) fn check(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanError> {
    let tensors = graph.tensors().len();
    let first = scratch.take(tensors, UNTOUCHED)?;
    let last = scratch.take(tensors, 0u32)?;
    for (at, step) in (0..).zip(plan.steps) {
        let Step::Launch(launched) = *step else { continue };
        for tensor in graph.operands_by(launched) {
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
    let by_offset = scratch.take(plan.arena.len(), 0u32)?;
    let by_start = scratch.take(plan.arena.len(), 0u32)?;
    for ((position, slot), rank) in (0..).zip(&mut *by_offset).zip(&mut *by_start) {
        (*slot, *rank) = (position, position);
    }
    by_offset.sort_unstable_by_key(|&position| plan.arena[position as usize].offset_bytes);
    let in_use = IndexSet::new(plan.arena.len(), scratch)?;
    let mut places = Places { graph, arena: plan.arena, by_offset, last, in_use };
    let first = |places: &Places<'_>, rank| first[places.placement(rank).tensor.index()];
    by_start.sort_unstable_by_key(|&rank| first(&places, rank as usize));
    for &rank in &*by_start {
        places.enter(rank as usize, first(&places, rank as usize))?;
    }
    Ok(())
}

/// Places in use, by rank in the order of offsets; those whose time is over are removed when
/// they are met.
struct Places<'w> {
    graph: &'w Graph<'w>,
    arena: &'w [ArenaPlacement],
    by_offset: &'w [u32],
    last: &'w [u32],
    in_use: IndexSet<'w>,
}

impl Places<'_> {
    fn placement(&self, rank: usize) -> ArenaPlacement {
        self.arena[self.by_offset[rank] as usize]
    }

    fn end_bytes(&self, placement: ArenaPlacement) -> u64 {
        // The table of pieces has checked that every place ends inside the arena.
        placement.offset_bytes.saturating_add(self.graph.tensor(placement.tensor).bytes)
    }

    /// A neighbour that is still in use.
    fn neighbour(
        &mut self,
        now: u32,
        find: impl Fn(&IndexSet<'_>) -> Option<usize>,
    ) -> Option<ArenaPlacement> {
        while let Some(rank) = find(&self.in_use) {
            let placement = self.placement(rank);
            if self.last[placement.tensor.index()] >= now {
                return Some(placement);
            }
            self.in_use.remove(rank);
        }
        None
    }

    fn enter(&mut self, rank: usize, now: u32) -> Result<(), PlanError> {
        let new = self.placement(rank);
        let before = self.neighbour(now, |in_use| in_use.before(rank));
        let after = self.neighbour(now, |in_use| in_use.next(rank));
        let overlaps_before = |other: &ArenaPlacement| self.end_bytes(*other) > new.offset_bytes;
        let overlaps_after = |other: &ArenaPlacement| other.offset_bytes < self.end_bytes(new);
        if let Some(other) = before.filter(overlaps_before).or(after.filter(overlaps_after)) {
            return Err(PlanError::ArenaOverlap(other.tensor, new.tensor));
        }
        self.in_use.insert(rank);
        Ok(())
    }
}
