//! Vector clocks: the steps that are known to have ended, by the waits alone.

#![expect(
    clippy::indexing_slicing,
    reason = "`check_steps` and `check_waits` have checked all streams, indices and positions"
)]

use super::{NEVER, Points, VerifyError, later, seen_later};
use crate::graph::Graph;
use crate::plan::{Plan, Step};
use crate::schedule::{PerStream, Schedule, Scheduled, Stream, Wait};
use crate::scratch::{Limits, Scratch, words};

/// A step of a plan's list.
pub(super) struct ListedStep<'a> {
    /// The position in the list.
    pub(super) at: u32,
    pub(super) step: &'a Step,
    /// The position on its stream.
    pub(super) index: i64,
}

/// The clocks of one schedule.
pub(super) struct Clocks<'a> {
    plan: Plan<'a>,
    schedule: Schedule<'a>,
    /// For each step on a stream, the last step of every stream that has ended when the step has.
    /// Ordered by iteration, then by stream.
    ended: &'a mut [Points],
    /// List positions of each stream's steps, one stream after the other.
    position: &'a mut [u32],
    /// The index in `position` at which each stream begins.
    first: PerStream<usize>,
}

impl<'a> Clocks<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<Points>(limits.entries()).saturating_add(words::<u32>(limits.steps))
    }

    /// Checks that the schedule belongs to this plan and that its waits can be met. Then passes
    /// over the iterations until the clocks, relative to the iteration, no longer change.
    pub(super) fn new(
        graph: &Graph<'_>,
        plan: &Plan<'a>,
        schedule: &Schedule<'a>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, VerifyError> {
        let ended = scratch.take(schedule.steps.len(), PerStream::all(NEVER))?;
        let position = scratch.take(plan.steps.len(), 0u32)?;
        let (first, _) = schedule.stream_steps.first_indices();
        let mut clocks = Self { plan: *plan, schedule: *schedule, ended, position, first };
        let entries = plan.steps.len().checked_mul(plan.iterations() as usize);
        if schedule.iterations != plan.iterations() || Some(schedule.steps.len()) != entries {
            return Err(VerifyError::NotThisPlan { step: plan.steps.len() as u32 });
        }
        for iteration in 0..schedule.iterations {
            clocks.check_steps(graph, plan, iteration)?;
        }
        for iteration in 0..schedule.iterations {
            for (at, entry) in (0..).zip(schedule.of_iteration(iteration.into())) {
                clocks.check_waits(at, entry)?;
            }
        }
        let mut reached = PerStream::all(PerStream::all(NEVER));
        while clocks.pass(&mut reached) {}
        Ok(clocks)
    }

    fn check_steps(
        &mut self,
        graph: &Graph<'_>,
        plan: &Plan<'_>,
        iteration: u32,
    ) -> Result<(), VerifyError> {
        let mut counts = PerStream::all(0u32);
        for (at, entry) in (0..).zip(self.schedule.of_iteration(iteration.into())) {
            if plan.steps.get(at as usize).map(|step| Stream::of(graph, step))
                != Some(entry.stream())
            {
                return Err(VerifyError::NotThisPlan { step: at });
            }
            let Some(stream) = entry.stream() else { continue };
            let count = &mut counts[stream];
            if entry.index() != *count || *count >= self.schedule.stream_steps[stream] {
                return Err(VerifyError::NotThisPlan { step: at });
            }
            *count = count.saturating_add(1);
            let slot = self.slot(stream, entry.index());
            let position =
                self.position.get_mut(slot).ok_or(VerifyError::NotThisPlan { step: at })?;
            *position = at;
        }
        if counts != self.schedule.stream_steps {
            return Err(VerifyError::NotThisPlan { step: plan.steps.len() as u32 });
        }
        Ok(())
    }

    fn check_waits(&self, at: u32, entry: &Scheduled) -> Result<(), VerifyError> {
        for (stream, wait) in entry.waits() {
            let Some(wait) = wait else { continue };
            let exists = wait.index < self.schedule.stream_steps[stream];
            let own = entry.stream() == Some(stream);
            let listed_before = |wait: Wait| {
                wait.iterations_back > 0 || self.position[self.slot(stream, wait.index)] < at
            };
            if own || !exists || !listed_before(wait) {
                return Err(VerifyError::BadWait { step: at, stream });
            }
        }
        Ok(())
    }

    fn slot(&self, stream: Stream, index: u32) -> usize {
        self.first[stream].saturating_add(index as usize)
    }

    /// The index of a step's clock, in the iteration `iterations_back` before `iteration`.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "there is at least one iteration, numbers of iterations have 32 bits, and an \
                  iteration's clocks begin below the number of all clocks"
    )]
    fn clock_slot(
        &self,
        iteration: u32,
        iterations_back: u32,
        stream: Stream,
        index: u32,
    ) -> usize {
        let slot = self.slot(stream, index);
        let iterations = self.schedule.iterations;
        if iterations == 1 {
            return slot;
        }
        let iterations_back = iterations_back % iterations;
        let iteration = (u64::from(iteration) + u64::from(iterations - iterations_back)) as usize;
        let steps = self.ended.len() / iterations as usize;
        (iteration % iterations as usize * steps).saturating_add(slot)
    }

    /// Passes over all iterations once. `reached` holds the clock of each stream's last step.
    /// Returns whether any clock changed.
    fn pass(&mut self, reached: &mut PerStream<Points>) -> bool {
        let stream_steps = self.schedule.stream_steps;
        let mut changed = false;
        for iteration in 0..self.schedule.iterations {
            *reached = reached.map(|points| seen_later(points, 1, stream_steps));
            for entry in self.schedule.of_iteration(iteration.into()) {
                let Some(stream) = entry.stream() else { continue };
                let waited_for = self.waited_for(iteration, entry);
                let mut clock = later(reached[stream], waited_for);
                clock[stream] = i64::from(entry.index());
                let slot = self.clock_slot(iteration, 0, stream, entry.index());
                changed |= clock != self.ended[slot];
                self.ended[slot] = clock;
                reached[stream] = clock;
            }
        }
        changed
    }

    /// The steps that have ended when all waits of a step are met.
    fn waited_for(&self, iteration: u32, entry: &Scheduled) -> Points {
        let mut clock = PerStream::all(NEVER);
        for stream in Stream::ALL {
            if let Some(wait) = entry.wait(stream) {
                let mut points = self.ended
                    [self.clock_slot(iteration, wait.iterations_back, stream, wait.index)];
                points[stream] = i64::from(wait.index);
                let iterations_back = i64::from(wait.iterations_back);
                clock =
                    later(clock, seen_later(points, iterations_back, self.schedule.stream_steps));
            }
        }
        clock
    }

    /// The steps of an iteration, in list order.
    pub(super) fn steps(&self) -> impl Iterator<Item = ListedStep<'a>> + use<'a> {
        let entries = self.schedule.of_iteration(0);
        let indices = entries.iter().map(|entry| i64::from(entry.index()));
        (0..).zip(self.plan.steps).zip(indices).map(|((at, step), index)| ListedStep {
            at,
            step,
            index,
        })
    }

    pub(super) fn stream_steps(&self) -> PerStream<u32> {
        self.schedule.stream_steps
    }

    /// The position of a step on its stream.
    pub(super) fn index(&self, step: u32) -> i64 {
        i64::from(self.schedule.steps[step as usize].index())
    }

    /// The number of iterations after which the waits repeat.
    pub(super) fn iterations(&self) -> u32 {
        self.schedule.iterations
    }

    /// The first stream on which a step of `must` is not known to have ended before a step of an
    /// iteration starts; for an evict, before its memory counts as free.
    pub(super) fn missing(&self, iteration: u32, at: u32, must: Points) -> Option<Stream> {
        let entry = &self.schedule.of_iteration(iteration.into())[at as usize];
        let own = entry.stream();
        let known = match own {
            Some(stream) => self.ended[self.clock_slot(iteration, 0, stream, entry.index())],
            None => self.waited_for(iteration, entry),
        };
        Stream::ALL.into_iter().find(|&stream| Some(stream) != own && known[stream] < must[stream])
    }
}
