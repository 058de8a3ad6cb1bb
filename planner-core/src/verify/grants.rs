//! Proves that no object has two owners if memory is assigned in list order: the objects that a
//! step allocates are free when it starts, in the list order of the releases, and no pool ever
//! gives out more objects than it has (`docs/format.md`, 3.5).

#![expect(
    clippy::indexing_slicing,
    reason = "pools, tensors and steps are those of the plan, which the table of pieces has \
              checked"
)]

use super::clocks::{Clocks, ListedStep};
use super::{NEVER, Points, VerifyError, later, seen_later};
use crate::graph::{Graph, Launched};
use crate::pieces::Pieces;
use crate::plan::{Location, Part, Plan, PlanError, Step};
use crate::schedule::PerStream;
use crate::scratch::{Limits, Scratch, total, words};
use core::ops::Range;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        words::<u64>(limits.tensors),
        words::<u32>(limits.pools.saturating_add(1)),
        words::<u32>(limits.pools),
        words::<u64>(limits.pools),
        words::<u64>(limits.steps).saturating_mul(2),
        words::<Points>(limits.steps),
        words::<u32>(limits.steps),
    ])
}

/// No step, or the start of an iteration.
const NO_STEP: u32 = u32::MAX;

/// The releases of one iteration, by pool and in list order.
struct Releases<'a> {
    /// The first release of each pool, and at the end the number of releases.
    first: &'a mut [u32],
    step: &'a mut [u32],
    /// Objects that the pool's releases up to and including this one free in an iteration.
    sum: &'a mut [u64],
    /// The steps that must have ended for this release and all earlier releases of the pool and
    /// iteration.
    done: &'a mut [Points],
}

/// Numbers of objects that are allocated.
struct Held<'a> {
    /// Number of resident objects of each tensor.
    resident: &'a mut [u64],
    /// Number of objects allocated so far in each pool.
    allocated: &'a mut [u64],
    /// The step that allocated last in each pool and is not yet checked, or [`NO_STEP`].
    asked_by: &'a mut [u32],
}

pub(super) fn check(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    clocks: &Clocks<'_>,
    freed: &[Points],
    scratch: &mut Scratch<'_>,
) -> Result<(), VerifyError> {
    let pools = plan.pools.len();
    let releases = Releases::new(graph, plan, pieces, clocks, freed, scratch)?;
    let mut held = Held {
        resident: scratch.take(graph.tensors().len(), 0u64)?,
        allocated: scratch.take(pools, 0u64)?,
        asked_by: scratch.take(pools, NO_STEP)?,
    };
    for (at, entry) in (0..).zip(plan.resident_at_start) {
        held.allocate(pieces, entry.part, NO_STEP, Location::Start(at))?;
        if !pieces.in_arena(entry.part.tensor) {
            let pool = pieces.pool(entry.part.tensor);
            let (held, count) = (held.allocated[pool], plan.pools[pool].count);
            if held > count {
                let (location, pool) = (Location::Start(at), pool as u32);
                return Err(PlanError::PoolFull { location, pool, held, count }.into());
            }
        }
    }
    for (at, step) in (0..).zip(plan.steps) {
        match *step {
            Step::Prefetch(part) => {
                held.allocate(pieces, part, at, Location::Step(at))?;
                if !pieces.in_arena(part.tensor) {
                    held.ask(plan, pieces.pool(part.tensor), at, &releases, clocks)?;
                }
            }
            Step::Launch(launched) => {
                for tensor in graph.written_by(launched) {
                    held.allocate(pieces, Part::whole(tensor), at, Location::Step(at))?;
                }
                let workspace = pieces.workspace(graph, launched.op);
                if let Some((pool, objects)) = workspace {
                    held.add(pool, objects, at, Location::Step(at))?;
                }
                for tensor in graph.written_by(launched) {
                    if !pieces.in_arena(tensor) {
                        held.ask(plan, pieces.pool(tensor), at, &releases, clocks)?;
                    }
                }
                if let Some((pool, _)) = workspace {
                    held.ask(plan, pool, at, &releases, clocks)?;
                }
            }
            Step::Evict(part) => {
                let resident = &mut held.resident[part.tensor.index()];
                *resident = resident.saturating_sub(pieces.part_objects(part));
            }
            Step::Offload(_) | Step::Host(_) => {}
        }
    }
    Ok(())
}

impl<'a> Releases<'a> {
    fn new(
        graph: &Graph<'_>,
        plan: &Plan<'_>,
        pieces: &Pieces<'_>,
        clocks: &Clocks<'_>,
        freed: &[Points],
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, VerifyError> {
        let release = |step: &Step| match *step {
            Step::Evict(part) => Some((pieces.pool(part.tensor), pieces.part_objects(part))),
            Step::Launch(launched) => pieces.workspace(graph, launched.op),
            Step::Prefetch(_) | Step::Offload(_) | Step::Host(_) => None,
        };
        let first = scratch.take(plan.pools.len().saturating_add(1), 0u32)?;
        let counts = &mut first[1..];
        for (pool, _) in plan.steps.iter().filter_map(release) {
            counts[pool] = counts[pool].saturating_add(1);
        }
        let mut count = 0u32;
        for end in counts {
            count = count.saturating_add(*end);
            *end = count;
        }
        let count = count as usize;
        let step = scratch.take(count, 0u32)?;
        let sum = scratch.take(count, 0u64)?;
        let done = scratch.take(count, PerStream::all(NEVER))?;
        let next = scratch.take(plan.pools.len(), 0u32)?;
        next.copy_from_slice(&first[..plan.pools.len()]);
        for ListedStep { at, step: entry, index: now } in clocks.steps() {
            let Some((pool, objects)) = release(entry) else { continue };
            let earlier = first[pool] as usize..next[pool] as usize;
            let slot = earlier.end;
            let before = sum[earlier.clone()].last().copied().unwrap_or(0);
            let points = done[earlier].last().copied().unwrap_or(PerStream::all(NEVER));
            let free = match entry {
                Step::Launch(Launched { op, .. }) => {
                    PerStream::only(graph.op(*op).stream(), now, NEVER)
                }
                _ => freed[at as usize],
            };
            step[slot] = at;
            let overflow = PlanError::Overflow(Location::Step(at));
            sum[slot] = before.checked_add(objects).ok_or(overflow)?;
            done[slot] = later(points, free);
            next[pool] = next[pool].saturating_add(1);
        }
        Ok(Self { first, step, sum, done })
    }

    /// The steps that must have ended before `allocated` objects, counted from the start of the
    /// first iteration, can have been granted from a pool of `count`. `None` if the releases listed
    /// before step `at` do not suffice.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "numbers of objects have 64 bits, numbers of iterations back at most 32, and a \
                  release frees at least one object"
    )]
    fn granted_after(
        &self,
        pool: usize,
        allocated: u64,
        count: u64,
        at: u32,
        stream_steps: PerStream<u32>,
    ) -> Option<Points> {
        let range = self.of(pool);
        let per_iteration = *self.sum[range.clone()].last()?;
        // The number of the last object needed among those released, counted from 0 at the start of
        // this iteration; negative for earlier iterations.
        let wanted = i128::from(allocated) - i128::from(count) - 1;
        let per_iteration = i128::from(per_iteration);
        // Nearly all objects were released in this iteration or the last one, and division is slow.
        let (iteration, within) = if (0..per_iteration).contains(&wanted) {
            (0, wanted)
        } else if (-per_iteration..0).contains(&wanted) {
            (-1, wanted + per_iteration)
        } else {
            (wanted.div_euclid(per_iteration), wanted.rem_euclid(per_iteration))
        };
        if iteration > 0 {
            return None;
        }
        let sums = &self.sum[range.clone()];
        let slot = range.start + sums.partition_point(|&sum| i128::from(sum) <= within);
        if iteration == 0 && self.step[slot] >= at {
            return None;
        }
        // A later point than the exact one is safe, so 2^32 - 1 iterations back are enough.
        let iterations_back =
            i64::try_from(-iteration).unwrap_or(i64::MAX).min(i64::from(u32::MAX));
        let earlier = seen_later(self.done[range.end - 1], iterations_back + 1, stream_steps);
        Some(later(earlier, seen_later(self.done[slot], iterations_back, stream_steps)))
    }

    /// Number of objects released before a step.
    fn released_before(&self, pool: usize, at: u32) -> u64 {
        let range = self.of(pool);
        let before = self.step[range.clone()].partition_point(|&step| step < at);
        self.sum[range][..before].last().copied().unwrap_or(0)
    }

    /// The releases of a pool.
    fn of(&self, pool: usize) -> Range<usize> {
        self.first[pool] as usize..self.first[pool.saturating_add(1)] as usize
    }
}

impl Held<'_> {
    /// Allocates the objects of a part that are not resident. The rules of residency have been
    /// checked.
    fn allocate(
        &mut self,
        pieces: &Pieces<'_>,
        part: Part,
        asked_by: u32,
        location: Location,
    ) -> Result<(), PlanError> {
        if pieces.in_arena(part.tensor) {
            return Ok(());
        }
        let resident = &mut self.resident[part.tensor.index()];
        let missing = pieces.objects(part.tensor).saturating_sub(*resident);
        let objects = pieces.part_objects(part).min(missing);
        *resident = resident.saturating_add(objects);
        match objects {
            0 => Ok(()),
            _ => self.add(pieces.pool(part.tensor), objects, asked_by, location),
        }
    }

    fn add(
        &mut self,
        pool: usize,
        objects: u64,
        asked_by: u32,
        location: Location,
    ) -> Result<(), PlanError> {
        let allocated = &mut self.allocated[pool];
        *allocated = allocated.checked_add(objects).ok_or(PlanError::Overflow(location))?;
        self.asked_by[pool] = asked_by;
        Ok(())
    }

    /// Checks the grant of the objects that a step allocated in a pool, if it allocated any there.
    fn ask(
        &mut self,
        plan: &Plan<'_>,
        pool: usize,
        at: u32,
        releases: &Releases<'_>,
        clocks: &Clocks<'_>,
    ) -> Result<(), VerifyError> {
        if core::mem::replace(&mut self.asked_by[pool], NO_STEP) != at {
            return Ok(());
        }
        let (allocated, count) = (self.allocated[pool], plan.pools[pool].count);
        let Some(must) = releases.granted_after(pool, allocated, count, at, clocks.stream_steps())
        else {
            let held = allocated.saturating_sub(releases.released_before(pool, at));
            let (location, pool) = (Location::Step(at), pool as u32);
            return Err(PlanError::PoolFull { location, pool, held, count }.into());
        };
        match clocks.missing(0, at, must) {
            Some(stream) => Err(VerifyError::Memory { step: at, stream, pool: pool as u32 }),
            None => Ok(()),
        }
    }
}
