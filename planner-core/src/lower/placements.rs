//! The steps that each allocation must wait for if the plan fixes its objects.

#![expect(
    clippy::indexing_slicing,
    reason = "slots are those that `walk` counted for the placements, and positions are those of \
              steps"
)]

use super::{Points, ended, later, seen_later};
use crate::allocations::{self, Event, walk};
use crate::graph::Graph;
use crate::pieces::Pieces;
use crate::plan::{Location, Placements, Plan, PlanError};
use crate::schedule::{PerStream, Scheduled};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

/// The object is not freed before the placements repeat.
const KEPT: u32 = u32::MAX;

/// The holder of each object over time, by slot of the placements.
struct Holders<'a> {
    plan: &'a Plan<'a>,
    pieces: &'a Pieces<'a>,
    placements: Placements<'a>,
    /// The position of the allocation; 0 for resident at start.
    taken: &'a mut [u32],
    /// The position of the release, or [`KEPT`].
    given: &'a mut [u32],
    /// The number of the object among the objects of all pools.
    object: &'a mut [u64],
    /// The number of each pool's first object.
    pool_first: &'a mut [u64],
}

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        allocations::scratch_words(limits),
        words::<u32>(limits.objects).saturating_mul(3),
        words::<u64>(limits.objects),
        words::<u64>(limits.pools),
    ])
}

/// Adds to `needs` the steps that each allocation must wait for: the releases by the previous
/// holders of its objects (`docs/format.md`, 3.6).
pub(super) fn placed_needs(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    out: &[Scheduled],
    stream_steps: PerStream<u32>,
    needs: &mut [Points],
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanError> {
    let Some(placements) = plan.placements else { return Ok(()) };
    let mut scratch = scratch.reborrow();
    let order = scratch.take(placements.objects.len(), 0u32)?;
    let mut holders = Holders::new(plan, pieces, placements, &mut scratch)?;
    let iterations = placements.iterations;
    let totals = walk(graph, plan, pieces, iterations, &mut scratch, |event| holders.apply(event))?;
    let (placements, allocations) = (placements.ends.len() as u64, totals.allocations.into());
    if placements != allocations {
        return Err(PlanError::PlacementCount { placements, allocations });
    }
    for (slot, order) in (0..).zip(&mut *order) {
        *order = slot;
    }
    // Slots are already in the order of time.
    order.sort_unstable_by_key(|&slot| (holders.object[slot as usize], slot));
    let mut waits = Waits { plan, out, stream_steps, needs };
    for in_turn in order.chunk_by(|&one, &other| holders.same_object(one, other)) {
        for pair in in_turn.windows(2) {
            let (before, after) = (pair[0] as usize, pair[1]);
            if holders.given[before] >= holders.taken[after as usize] {
                return Err(holders.two_holders(after));
            }
            waits.add(holders.taken[after as usize], holders.given[before], 0);
        }
        // The holder of an object at the end also holds it at the start of the next cycle.
        let (Some(&first), Some(&last)) = (in_turn.first(), in_turn.last()) else { continue };
        let (taken, given) = (holders.taken[first as usize], holders.given[last as usize]);
        if taken > 0 && given != KEPT {
            waits.add(taken, given, i64::from(iterations));
        }
    }
    Ok(())
}

impl<'a> Holders<'a> {
    fn new(
        plan: &'a Plan<'a>,
        pieces: &'a Pieces<'a>,
        placements: Placements<'a>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let slots = placements.objects.len();
        let pool_first = scratch.take(plan.pools.len(), 0u64)?;
        let mut next = 0u64;
        for (first, pool) in pool_first.iter_mut().zip(plan.pools) {
            *first = next;
            // The pools together fit into the budget, so the sum cannot overflow.
            next = next.saturating_add(pool.count);
        }
        Ok(Self {
            plan,
            pieces,
            placements,
            taken: scratch.take(slots, 0)?,
            given: scratch.take(slots, KEPT)?,
            object: scratch.take(slots, 0)?,
            pool_first,
        })
    }

    fn apply(&mut self, event: Event<'_>) -> Result<(), PlanError> {
        match event {
            Event::Take { location, at, allocation, pool, slots, .. } => {
                let objects = self.placements.of(allocation);
                let (named, taken) = (objects.len() as u64, slots.len() as u64);
                if named != taken {
                    return Err(PlanError::PlacementSize { location, allocation, named, taken });
                }
                for (slot, &object) in slots.zip(objects) {
                    let count = self.plan.pools[pool].count;
                    if object >= count {
                        return Err(PlanError::UnknownObject {
                            location,
                            allocation,
                            object,
                            count,
                        });
                    }
                    self.taken[slot as usize] = at;
                    self.object[slot as usize] = self.pool_first[pool].saturating_add(object);
                }
            }
            Event::Give { at, slots } => {
                self.given[slots.start as usize..slots.end as usize].fill(at);
            }
            Event::End { tensor, start, end } => {
                let same = start.zip(end).all(|(start, end)| self.same_object(start, end));
                if !same {
                    return Err(PlanError::PlacementEnd(tensor));
                }
            }
        }
        Ok(())
    }

    fn same_object(&self, one: u32, other: u32) -> bool {
        self.object[one as usize] == self.object[other as usize]
    }

    fn two_holders(&self, slot: u32) -> PlanError {
        let allocation = self.placements.ends.partition_point(|&end| end <= slot) as u32;
        let location = match self.taken[slot as usize].checked_sub(1) {
            Some(position) => {
                let steps = self.plan.steps.len() as u32;
                Location::Step(position.checked_rem(steps).unwrap_or(0))
            }
            None => {
                let entries = (0..).zip(self.plan.resident_at_start);
                let mut placed =
                    entries.filter(|(_, entry)| !self.pieces.in_arena(entry.part.tensor));
                placed
                    .nth(allocation as usize)
                    .map_or(Location::End, |(entry, _)| Location::Start(entry))
            }
        };
        let object = self.placements.objects[slot as usize];
        PlanError::TwoHolders { location, allocation, object }
    }
}

struct Waits<'w> {
    plan: &'w Plan<'w>,
    out: &'w [Scheduled],
    stream_steps: PerStream<u32>,
    needs: &'w mut [Points],
}

impl Waits<'_> {
    /// Makes the allocation at a position wait for the release at another position,
    /// `iterations_back` iterations back in addition to the iterations between the two positions.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "positions of steps count from 1 and have 32 bits, and a plan has steps"
    )]
    fn add(&mut self, taken: u32, given: u32, iterations_back: i64) {
        let steps = self.plan.steps.len();
        let (taken, given) = (taken as usize - 1, given as usize - 1);
        let iterations_back = iterations_back + (taken / steps) as i64 - (given / steps) as i64;
        let release = given % steps;
        let done = ended(&self.out[release]).unwrap_or(self.needs[release]);
        self.needs[taken] =
            later(self.needs[taken], seen_later(done, iterations_back, self.stream_steps));
    }
}
