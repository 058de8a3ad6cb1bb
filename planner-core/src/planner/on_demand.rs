//! Least recently used, with prefetch: what an op misses is fetched one op ahead, as far as
//! memory can be made free for it without touching what the running op needs; the rest is
//! fetched when it is needed. What a pager would do that had seen one iteration.

use super::builder::{Builder, Lengths, Stuck};
use super::queue::Queue;
use crate::graph::OpId;
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    Queue::scratch_words(limits) + words::<u32>(limits.tensors)
}

struct LeastRecent<'a> {
    /// Resident tensors; the least recently used in front.
    order: Queue<'a>,
    /// The last of the two ops that must keep each tensor, counted from 1 over all laps.
    kept_for: &'a mut [u32],
    now: u32,
}

/// The first iteration only learns what the second starts with.
pub(super) fn write(
    mut builder: Builder<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Result<Lengths, Stuck>, OutOfScratch> {
    let tensors = builder.request.graph.tensors().len();
    let mut scratch = scratch.reborrow();
    let mut cache = LeastRecent {
        order: Queue::new(tensors, &mut scratch)?,
        kept_for: scratch.take(tensors, 0u32)?,
        now: 0,
    };
    Ok(cache.lap(&mut builder, false).and_then(|()| {
        builder.restart();
        cache.lap(&mut builder, true)?;
        builder.finish()
    }))
}

impl LeastRecent<'_> {
    fn lap(&mut self, builder: &mut Builder<'_>, ahead: bool) -> Result<(), Stuck> {
        let graph = builder.request.graph;
        let ops = graph.ops().len() as u32;
        for op in graph.op_ids() {
            // Stamps of tensors that the current op keeps are at least `now`.
            self.now = self.now.saturating_add(2);
            self.keep(builder, op, self.now);
            self.fetch(builder, op)?;
            if ahead && op.0 + 1 < ops {
                let next = OpId(op.0 + 1);
                self.keep(builder, next, self.now + 1);
                let launch_objects = builder.launch_objects(op);
                self.fetch_if_room(builder, next, launch_objects)?;
            }
            builder.launch(op)?;
            for &tensor in graph.operands_of(op) {
                if builder.is_resident(tensor) && !builder.memory.in_arena(tensor) {
                    self.order.push(tensor);
                } else {
                    self.order.remove(tensor);
                }
            }
        }
        Ok(())
    }

    fn keep(&mut self, builder: &Builder<'_>, op: OpId, stamp: u32) {
        for &tensor in builder.request.graph.operands_of(op) {
            self.kept_for[tensor.index()] = stamp;
        }
    }

    /// Brings in what an op misses, and leaves room for what it allocates.
    fn fetch(&mut self, builder: &mut Builder<'_>, op: OpId) -> Result<(), Stuck> {
        for &tensor in builder.request.graph.reads(op) {
            if !builder.is_resident(tensor) {
                self.make_room(builder, builder.memory.objects(tensor))?;
                builder.prefetch(tensor)?;
                self.order.push(tensor);
            }
        }
        self.make_room(builder, builder.launch_objects(op))
    }

    /// Brings in what the next op misses, if that fits beside what the current one needs.
    fn fetch_if_room(
        &mut self,
        builder: &mut Builder<'_>,
        next: OpId,
        launch_objects: u64,
    ) -> Result<(), Stuck> {
        for &tensor in builder.request.graph.reads(next) {
            let fetchable = builder.has_host_copy(tensor) && builder.upcoming(tensor).reads();
            if builder.is_resident(tensor) || !fetchable {
                continue;
            }
            let wanted = launch_objects.saturating_add(builder.memory.objects(tensor));
            match self.make_room(builder, wanted) {
                Err(Stuck::NoRoom) => return Ok(()),
                other => other?,
            }
            builder.prefetch(tensor)?;
            self.order.push(tensor);
        }
        Ok(())
    }

    /// Evicts the least recently used that neither op needs until this many objects are free.
    fn make_room(&mut self, builder: &mut Builder<'_>, objects: u64) -> Result<(), Stuck> {
        let mut oldest = self.order.front();
        while builder.free_objects() < objects {
            let tensor = oldest.ok_or(Stuck::NoRoom)?;
            oldest = self.order.behind(tensor);
            if self.kept_for[tensor.index()] < self.now {
                builder.evict(tensor)?;
                self.order.remove(tensor);
            }
        }
        Ok(())
    }
}
