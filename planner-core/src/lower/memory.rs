//! The steps that each allocation must wait for if memory is assigned in list order.

#![expect(
    clippy::indexing_slicing,
    reason = "pools, tensors and steps are those of the plan, which the table of pieces has \
              checked"
)]

use super::queues::{END, Queues};
use super::{NEVER, Points, ended, later};
use crate::graph::{Graph, Launched};
use crate::pieces::Pieces;
use crate::plan::{Location, Plan, PlanError, Step};
use crate::residency::Residency;
use crate::schedule::{PerStream, Scheduled};
use crate::scratch::Scratch;

/// Adds to `needs` the steps that each allocation must wait for: the shortest prefix, in list
/// order, of its pool's releases that covers the shortage (`docs/format.md`, 3.5).
pub(super) fn memory_needs(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    out: &[Scheduled],
    stream_steps: PerStream<u32>,
    needs: &mut [Points],
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanError> {
    let mut residency = Residency::at_start(graph, plan, pieces, scratch)?;
    let mut queues = Queues::new(out.len(), plan.pools.len(), scratch)?;
    let walk = MemoryWalk { graph, plan, pieces, out, stream_steps };
    walk.releases(&mut queues, needs)?;
    walk.allocate_start(&mut queues)?;
    walk.grants(&mut residency, &mut queues, needs)?;
    residency.check_end(pieces, graph.tensor_ids())
}

struct MemoryWalk<'w, 'a> {
    graph: &'w Graph<'a>,
    plan: &'w Plan<'a>,
    pieces: &'w Pieces<'a>,
    out: &'w [Scheduled],
    stream_steps: PerStream<u32>,
}

impl MemoryWalk<'_, '_> {
    fn location(at: usize) -> Location {
        Location::Step(at as u32)
    }

    /// Adds every release of an iteration to its pool's queue.
    fn releases(&self, queues: &mut Queues<'_>, needs: &[Points]) -> Result<(), PlanError> {
        for (at, (step, entry)) in self.plan.steps.iter().zip(self.out).enumerate() {
            let overflow = PlanError::Overflow(Self::location(at));
            match *step {
                Step::Launch(Launched { op, .. }) => {
                    if let Some((pool, objects)) = self.pieces.workspace(self.graph, op) {
                        let done = ended(entry).unwrap_or(PerStream::all(NEVER));
                        queues.release(at as u32, pool, objects, done).ok_or(overflow)?;
                    }
                }
                Step::Evict(part) if !self.pieces.in_arena(part.tensor) => {
                    let objects = self.pieces.part_objects(part);
                    let pool = self.pieces.pool(part.tensor);
                    queues.release(at as u32, pool, objects, needs[at]).ok_or(overflow)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Counts the parts that are resident at start as allocated.
    fn allocate_start(&self, queues: &mut Queues<'_>) -> Result<(), PlanError> {
        for (at, entry) in self.plan.resident_at_start.iter().enumerate() {
            let tensor = entry.part.tensor;
            if self.pieces.in_arena(tensor) {
                continue;
            }
            let pool = self.pieces.pool(tensor);
            // No object of a tensor is resident twice, so the sum cannot overflow.
            let held = queues.allocated[pool].saturating_add(self.pieces.part_objects(entry.part));
            queues.allocated[pool] = held;
            let count = self.plan.pools[pool].count;
            if held > count {
                let (location, pool) = (Location::Start(at as u32), pool as u32);
                return Err(PlanError::PoolFull { location, pool, held, count });
            }
        }
        Ok(())
    }

    /// Adds to `needs` the steps that each allocation must wait for.
    fn grants(
        &self,
        residency: &mut Residency<'_>,
        queues: &mut Queues<'_>,
        needs: &mut [Points],
    ) -> Result<(), PlanError> {
        for (at, step) in self.plan.steps.iter().enumerate() {
            match *step {
                Step::Prefetch(part) => {
                    let objects = residency.allocate(self.pieces, part, Self::location(at))?;
                    if objects == 0 {
                        continue;
                    }
                    let pool = self.pieces.pool(part.tensor);
                    self.allocate(queues, at, pool, objects)?;
                    self.grant(queues, at, pool, needs)?;
                }
                Step::Launch(launched) => self.launch(residency, queues, at, launched, needs)?,
                Step::Evict(part) => {
                    residency.release(self.pieces, part, Self::location(at))?;
                }
                Step::Offload(_) | Step::Host(_) => {}
            }
        }
        Ok(())
    }

    /// Grants the allocations of a launch in one pool together, at the last of them.
    fn launch(
        &self,
        residency: &mut Residency<'_>,
        queues: &mut Queues<'_>,
        at: usize,
        launched: Launched,
        needs: &mut [Points],
    ) -> Result<(), PlanError> {
        for tensor in self.graph.written_by(launched) {
            let objects = residency.write(self.pieces, tensor);
            self.allocate(queues, at, self.pieces.pool(tensor), objects)?;
        }
        let workspace = self.pieces.workspace(self.graph, launched.op);
        if let Some((pool, objects)) = workspace {
            self.allocate(queues, at, pool, objects)?;
        }
        for tensor in self.graph.written_by(launched) {
            if !self.pieces.in_arena(tensor) {
                self.grant(queues, at, self.pieces.pool(tensor), needs)?;
            }
        }
        workspace.map_or(Ok(()), |(pool, _)| self.grant(queues, at, pool, needs))
    }

    fn allocate(
        &self,
        queues: &mut Queues<'_>,
        at: usize,
        pool: usize,
        objects: u64,
    ) -> Result<(), PlanError> {
        if objects > 0 {
            let allocated = &mut queues.allocated[pool];
            *allocated =
                allocated.checked_add(objects).ok_or(PlanError::Overflow(Self::location(at)))?;
            queues.asked_by[pool] = at as u32;
        }
        Ok(())
    }

    /// Adds the grant of a pool to the needs of a step, if the step allocated there.
    fn grant(
        &self,
        queues: &mut Queues<'_>,
        at: usize,
        pool: usize,
        needs: &mut [Points],
    ) -> Result<(), PlanError> {
        if core::mem::replace(&mut queues.asked_by[pool], END) != at as u32 {
            return Ok(());
        }
        let count = self.plan.pools[pool].count;
        let release_done =
            |step: u32| ended(&self.out[step as usize]).unwrap_or(needs[step as usize]);
        let granted = queues.grant(at as u32, pool, count, self.stream_steps, release_done);
        let full = || {
            let held = queues.held(pool, at as u32);
            PlanError::PoolFull { location: Self::location(at), pool: pool as u32, held, count }
        };
        needs[at] = later(needs[at], granted.ok_or_else(full)?);
        Ok(())
    }
}
