//! Proves that no object has two owners if the plan fixes the objects of each allocation: every
//! allocation takes objects without an owner, and starts after the releases of their last owners;
//! and after all iterations that the placements cover, every tensor is in the objects in which it
//! began (`docs/format.md`, 3.6).

#![expect(
    clippy::indexing_slicing,
    reason = "numbers and ranks are positions in the placements, which `ranks` checks first"
)]

use super::clocks::Clocks;
use super::{NEVER, Points, VerifyError, later, seen_later};
use crate::graph::{Graph, Launched};
use crate::index_set::IndexSet;
use crate::pieces::Pieces;
use crate::plan::{Location, Part, Placements, Plan, PlanError, Step};
use crate::schedule::PerStream;
use crate::scratch::{Limits, Scratch, total, words};
use core::ops::Range;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        words::<u32>(limits.pieces).saturating_mul(2),
        IndexSet::scratch_words(limits.pieces),
        words::<u64>(limits.objects).saturating_mul(2),
        words::<u32>(limits.objects),
        words::<Owner>(limits.objects),
        words::<u64>(limits.pools),
    ])
}

/// No position in the placements.
const NOWHERE: u32 = u32::MAX;

/// The state of an object: one of the two below, or the iteration and the step of its release.
type Owner = [u32; 2];
/// The object has had no owner yet.
const FRESH: Owner = [u32::MAX, 0];
/// The object has an owner.
const OWNED: Owner = [u32::MAX, 1];

pub(super) fn check(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    placements: Placements<'_>,
    pieces: &Pieces<'_>,
    clocks: &Clocks<'_>,
    freed: &[Points],
    scratch: &mut Scratch<'_>,
) -> Result<(), VerifyError> {
    let iterations = placements.iterations;
    let numbers = scratch.take(pieces.len(), NOWHERE)?;
    let missing = IndexSet::new(pieces.len(), scratch)?;
    let mut list = List { graph, plan, placements, pieces, numbers, missing, next: 0 };
    list.clear();
    let ranks = ranks(&mut list, scratch)?;
    let owners = scratch.take(ranks.len(), FRESH)?;
    let mut objects = Objects { graph, plan, placements, clocks, freed, ranks, owners };
    list.start(&mut |event| objects.apply(&event, 0).map(|_| ()))?;
    let (at_start, first) = (scratch.take(pieces.len(), NOWHERE)?, list.next);
    at_start.copy_from_slice(list.numbers);
    for iteration in 0..iterations {
        list.iteration(&mut |event| objects.apply(&event, iteration).map(|_| ()))?;
    }
    for tensor in graph.tensor_ids() {
        for piece in pieces.of(tensor).filter(|&piece| at_start[piece] != NOWHERE) {
            let count = pieces.pool_objects(tensor, piece);
            let ranks = |first: u32| ranks.get(positions(first, count));
            if ranks(at_start[piece]) != ranks(list.numbers[piece]) {
                return Err(PlanError::PlacementEnd(tensor).into());
            }
        }
    }
    // Once more, now that every object has had its owners of the whole cycle.
    list.next = first;
    for iteration in 0..iterations {
        list.iteration(&mut |event| {
            let must = objects.apply(&event, iterations.saturating_add(iteration))?;
            let Event::Take { location: Location::Step(step), pool, .. } = event else {
                return Ok(());
            };
            match clocks.missing(iteration, step, must) {
                Some(stream) => Err(VerifyError::Memory { step, stream, pool: pool as u32 }),
                None => Ok(()),
            }
        })?;
    }
    Ok(())
}

/// The rank of each named object, among all objects in the order of pools and numbers. Checks that
/// the placements have the right number of objects and that all of these exist.
fn ranks<'a>(list: &mut List<'_>, scratch: &mut Scratch<'a>) -> Result<&'a [u32], VerifyError> {
    let Placements { objects, ends, iterations } = list.placements;
    let ranks = scratch.take(objects.len(), 0u32)?;
    let mut scratch = scratch.reborrow();
    let keys = scratch.take(objects.len(), 0u64)?;
    let pools = list.plan.pools;
    let first_object = scratch.take(pools.len(), 0u64)?;
    let mut next = 0u64;
    for (first, pool) in first_object.iter_mut().zip(pools) {
        *first = next;
        // The pools together fit into the budget, so the sum cannot overflow.
        next = next.saturating_add(pool.count);
    }
    let mut note = |event| {
        let Event::Take { location, allocation, pool, numbers } = event else { return Ok(()) };
        let count = pools[pool].count;
        for (key, &object) in keys[numbers.clone()].iter_mut().zip(&objects[numbers]) {
            if object >= count {
                let error = PlanError::UnknownObject { location, allocation, object, count };
                return Err(error.into());
            }
            *key = first_object[pool].saturating_add(object);
        }
        Ok(())
    };
    list.start(&mut note)?;
    for _ in 0..iterations {
        list.iteration(&mut note)?;
    }
    let (placements, allocations) = (ends.len() as u64, u64::from(list.next));
    if placements != allocations {
        return Err(PlanError::PlacementCount { placements, allocations }.into());
    }
    let sorted = scratch.take(keys.len(), 0u64)?;
    sorted.copy_from_slice(keys);
    sorted.sort_unstable();
    for (rank, key) in ranks.iter_mut().zip(&*keys) {
        *rank = sorted.partition_point(|other| other < key) as u32;
    }
    list.clear();
    Ok(ranks)
}

/// An allocation or a release of objects. `numbers` are positions in the table of placements.
enum Event {
    Take { location: Location, allocation: u32, pool: usize, numbers: Range<usize> },
    Give { step: u32, numbers: Range<usize> },
}

/// The positions of `count` numbers, of which the first is given.
fn positions(first: u32, count: u64) -> Range<usize> {
    first as usize..(first as usize).saturating_add(count as usize)
}

/// The owners of all objects.
struct Objects<'w> {
    graph: &'w Graph<'w>,
    plan: &'w Plan<'w>,
    placements: Placements<'w>,
    clocks: &'w Clocks<'w>,
    /// For each evict, the steps that must have ended before its objects are free.
    freed: &'w [Points],
    ranks: &'w [u32],
    /// The owner of each object, by rank.
    owners: &'w mut [Owner],
}

impl Objects<'_> {
    /// Applies an event. Returns the steps that must have ended before the objects have their new
    /// owner.
    fn apply(&mut self, event: &Event, iteration: u32) -> Result<Points, VerifyError> {
        let mut must = PerStream::all(NEVER);
        match *event {
            Event::Take { location, allocation, ref numbers, .. } => {
                for number in numbers.clone() {
                    let owner = &mut self.owners[self.ranks[number] as usize];
                    match core::mem::replace(owner, OWNED) {
                        FRESH => {}
                        OWNED => {
                            let object = self.placements.objects[number];
                            let error = PlanError::TwoHolders { location, allocation, object };
                            return Err(error.into());
                        }
                        [released, step] => {
                            let iterations_back = i64::from(iteration.saturating_sub(released));
                            must = later(must, self.released(step, iterations_back));
                        }
                    }
                }
            }
            Event::Give { step, ref numbers } => {
                for &rank in &self.ranks[numbers.clone()] {
                    self.owners[rank as usize] = [iteration, step];
                }
            }
        }
        Ok(must)
    }

    /// The steps that must have ended before the objects that a step released `iterations_back`
    /// iterations ago are free.
    fn released(&self, step: u32, iterations_back: i64) -> Points {
        let done = match self.plan.steps[step as usize] {
            Step::Launch(Launched { op, .. }) => {
                PerStream::only(self.graph.op(op).stream(), self.clocks.index(step), NEVER)
            }
            _ => self.freed[step as usize],
        };
        seen_later(done, iterations_back, self.clocks.stream_steps())
    }
}

/// Walks the list. The rules of residency have been checked.
struct List<'w> {
    graph: &'w Graph<'w>,
    plan: &'w Plan<'w>,
    placements: Placements<'w>,
    pieces: &'w Pieces<'w>,
    /// The position of each resident piece's first number.
    numbers: &'w mut [u32],
    /// The pieces that are not resident.
    missing: IndexSet<'w>,
    /// The number of the next allocation.
    next: u32,
}

impl List<'_> {
    /// Makes all pieces not resident, as before the list.
    fn clear(&mut self) {
        self.next = 0;
        self.numbers.fill(NOWHERE);
        (0..self.numbers.len()).for_each(|piece| self.missing.insert(piece));
    }

    fn start(
        &mut self,
        visit: &mut impl FnMut(Event) -> Result<(), VerifyError>,
    ) -> Result<(), VerifyError> {
        for (entry, resident) in (0..).zip(self.plan.resident_at_start) {
            self.take_missing(resident.part, Location::Start(entry), visit)?;
        }
        Ok(())
    }

    fn iteration(
        &mut self,
        visit: &mut impl FnMut(Event) -> Result<(), VerifyError>,
    ) -> Result<(), VerifyError> {
        for (step, action) in (0..).zip(self.plan.steps) {
            let location = Location::Step(step);
            match *action {
                Step::Prefetch(part) => self.take_missing(part, location, visit)?,
                Step::Launch(launched) => {
                    for tensor in self.graph.written_by(launched) {
                        self.take_missing(Part::whole(tensor), location, visit)?;
                    }
                    if let Some((pool, count)) = self.pieces.workspace(self.graph, launched.op) {
                        let numbers = self.take(location, pool, count, visit)?;
                        visit(Event::Give { step, numbers })?;
                    }
                }
                Step::Evict(part) => {
                    for piece in self.pieces.of_part(part) {
                        let count = self.pieces.pool_objects(part.tensor, piece);
                        let first = core::mem::replace(&mut self.numbers[piece], NOWHERE);
                        self.missing.insert(piece);
                        visit(Event::Give { step, numbers: positions(first, count) })?;
                    }
                }
                Step::Offload(_) | Step::Host(_) => {}
            }
        }
        Ok(())
    }

    /// Allocates the objects of a part that are not resident, if any.
    fn take_missing(
        &mut self,
        part: Part,
        location: Location,
        visit: &mut impl FnMut(Event) -> Result<(), VerifyError>,
    ) -> Result<(), VerifyError> {
        let Part { tensor, .. } = part;
        let pieces = self.pieces;
        if pieces.in_arena(tensor) {
            return Ok(());
        }
        let missing = self.missing.within(pieces.of_part(part));
        let count = missing.map(|piece| pieces.pool_objects(tensor, piece)).sum();
        if count == 0 {
            return Ok(());
        }
        let taken = self.take(location, pieces.pool(tensor), count, visit)?;
        let mut first = taken.start as u32;
        while let Some(piece) = self.missing.first(pieces.of_part(part)) {
            self.numbers[piece] = first;
            self.missing.remove(piece);
            first = first.saturating_add(pieces.pool_objects(tensor, piece) as u32);
        }
        Ok(())
    }

    /// Allocates; returns the positions of the allocation's numbers.
    fn take(
        &mut self,
        location: Location,
        pool: usize,
        count: u64,
        visit: &mut impl FnMut(Event) -> Result<(), VerifyError>,
    ) -> Result<Range<usize>, VerifyError> {
        let allocation = self.next;
        let named = self.placements.of(allocation).len() as u64;
        if named != count {
            let taken = count;
            return Err(PlanError::PlacementSize { location, allocation, named, taken }.into());
        }
        self.next = self.next.saturating_add(1);
        // The allocation names at least one object, so it has an end.
        let end = self.placements.ends[allocation as usize] as usize;
        let numbers = end.saturating_sub(count as usize)..end;
        visit(Event::Take { location, allocation, pool, numbers: numbers.clone() })?;
        Ok(numbers)
    }
}
