//! Predicts the time of each step: `start = max(end of the previous step of this stream, end of the
//! awaited steps)`, over eight iterations (`docs/format.md`, 4 and 7).

#![expect(
    clippy::indexing_slicing,
    reason = "fewer than the length, since `first` is at least `steps`"
)]

use crate::footprint::{self, Footprint};
use crate::graph::{Graph, Kind, Launched};
use crate::machine::{Direction, Machine};
use crate::pieces::Pieces;
use crate::plan::{Location, Plan, PlanError, Prediction, Step};
use crate::schedule::{PerStream, Schedule, Scheduled, Stream};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

/// The number of iterations that a prediction simulates.
pub const PREDICTED_ITERATIONS: u64 = 8;

/// Words of scratch that [`predict`] needs, by [`Limits::of_plan`]: per step 9, per tensor 4.7, per
/// piece 2.5.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    total([
        Pieces::scratch_words(limits),
        footprint::scratch_words(limits),
        words::<u64>(limits.steps),
        Timeline::scratch_words(limits),
    ])
}

/// All figures that a plan predicts for itself, with a separate host slot for every tensor that
/// moves; and the footprint. O(steps + operands).
///
/// # Errors
/// A plan that breaks a rule of structure or residency, or whose times over eight iterations exceed
/// 64 bits.
pub fn predict(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    schedule: &Schedule<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(Prediction, Footprint), PlanError> {
    let mut scratch = scratch.reborrow();
    let pieces = Pieces::new(graph, machine, plan, &mut scratch)?;
    predict_pieces(graph, machine, plan, &pieces, schedule, &mut scratch)
}

/// Does the same as [`predict`], given the table of pieces.
pub(crate) fn predict_pieces(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    pieces: &Pieces<'_>,
    schedule: &Schedule<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(Prediction, Footprint), PlanError> {
    let mut scratch = scratch.reborrow();
    let footprint = footprint::measure(pieces, &mut scratch)?;
    let durations_ns = scratch.take(plan.steps.len(), 0u64)?;
    durations(machine, pieces, durations_ns)?;
    let timeline = Timeline::new(schedule, durations_ns, &mut scratch)?;
    let prediction = Prediction {
        period_ns: timeline.period_ns(),
        compute_ns: graph.compute_ns(),
        repeat_ns: repeat_ns(graph, plan),
        host_ns: host_ns(graph, plan),
        peak_bytes: footprint.peak_bytes,
        h2d_bytes: footprint.h2d_bytes,
        d2h_bytes: footprint.d2h_bytes,
        host_bytes: footprint.host_bytes(),
    };
    Ok((prediction, footprint))
}

/// Predicts, and checks the plan's figures. Every figure must be exact, except the host memory,
/// which may count temporaries as sharing host bytes or not; it must hold the parts of states and
/// inputs that move, and the machine must have it.
///
/// # Errors
/// The errors of [`predict`]; the first figure that is wrong.
pub fn check(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    schedule: &Schedule<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(Prediction, Footprint), PlanError> {
    let (exact, footprint) = predict(graph, machine, plan, schedule, scratch)?;
    let claimed = plan.predicted;
    for (figure, claimed, exact) in [
        ("period_ns", claimed.period_ns, exact.period_ns),
        ("compute_ns", claimed.compute_ns, exact.compute_ns),
        ("repeat_ns", claimed.repeat_ns, exact.repeat_ns),
        ("host_ns", claimed.host_ns, exact.host_ns),
        ("peak_bytes", claimed.peak_bytes, exact.peak_bytes),
        ("h2d_bytes", claimed.h2d_bytes, exact.h2d_bytes),
        ("d2h_bytes", claimed.d2h_bytes, exact.d2h_bytes),
    ] {
        if claimed != exact {
            return Err(PlanError::Prediction { figure, claimed, exact });
        }
    }
    let lasting = graph.tensors().iter().filter(|tensor| tensor.kind != Kind::Temporary);
    let least_bytes = footprint.host_parts_bytes;
    let most_bytes =
        lasting.fold(footprint.host_temporary_bytes, |sum, t| sum.saturating_add(t.bytes));
    if !(least_bytes..=most_bytes).contains(&claimed.host_bytes) {
        let claimed_bytes = claimed.host_bytes;
        return Err(PlanError::HostPrediction { claimed_bytes, least_bytes, most_bytes });
    }
    let (needed_bytes, host_bytes) = (claimed.host_bytes, machine.host_bytes);
    if needed_bytes > host_bytes {
        return Err(PlanError::HostMemory { needed_bytes, host_bytes });
    }
    Ok((exact, footprint))
}

/// The time of all repeats of a plan whose [durations] do not overflow.
fn repeat_ns(graph: &Graph<'_>, plan: &Plan<'_>) -> u64 {
    let repeat_ns = |step: &Step| match *step {
        Step::Launch(Launched { op, is_repeat: true }) => graph.op(op).time_ns,
        _ => 0,
    };
    plan.steps.iter().map(repeat_ns).fold(0, u64::saturating_add)
}

/// The time of all ops that run on the host, of a plan whose [durations] do not overflow.
fn host_ns(graph: &Graph<'_>, plan: &Plan<'_>) -> u64 {
    let host_ns = |step: &Step| match *step {
        Step::Host(op) => graph.op(op).host_ns.unwrap_or(0),
        _ => 0,
    };
    plan.steps.iter().map(host_ns).fold(0, u64::saturating_add)
}

/// The time of each step of a plan. An evict takes no time.
///
/// # Errors
/// Times that, over eight iterations, exceed 64 bits.
pub fn durations(
    machine: &Machine,
    pieces: &Pieces<'_>,
    out_ns: &mut [u64],
) -> Result<(), PlanError> {
    let (graph, plan) = (pieces.graph(), pieces.plan());
    let mut sum_ns = 0u64;
    for (at, (step, out_ns)) in (0..).zip(plan.steps.iter().zip(out_ns)) {
        let duration_ns = match *step {
            Step::Launch(Launched { op, .. }) => Some(graph.op(op).time_ns),
            Step::Host(op) => graph.op(op).host_ns,
            Step::Prefetch(part) => {
                machine.transfer_ns(Direction::HostToDevice, pieces.part_bytes(graph, part))
            }
            Step::Offload(part) => {
                machine.transfer_ns(Direction::DeviceToHost, pieces.part_bytes(graph, part))
            }
            Step::Evict(_) => Some(0),
        };
        let fits = |sum: &u64| sum.checked_mul(PREDICTED_ITERATIONS).is_some();
        let sum = duration_ns.and_then(|ns| sum_ns.checked_add(ns)).filter(fits);
        sum_ns = sum.ok_or(PlanError::Overflow(Location::Step(at)))?;
        *out_ns = duration_ns.unwrap_or(0);
    }
    Ok(())
}

/// The indices of the ends of steps, ordered by iteration, then by stream.
#[derive(Clone, Copy, Debug)]
struct Slots {
    first: PerStream<usize>,
    per_iteration: usize,
}

impl Slots {
    fn new(stream_steps: PerStream<u32>) -> Self {
        let (first, per_iteration) = stream_steps.first_indices();
        Self { first, per_iteration }
    }

    /// Beyond all indices for a step that does not exist, since schedules are not trusted.
    fn of(&self, iteration: usize, stream: Stream, index: u32) -> usize {
        let first = iteration.saturating_mul(self.per_iteration).saturating_add(self.first[stream]);
        first.saturating_add(index as usize)
    }
}

/// The ends of all steps over eight iterations.
#[derive(Debug)]
pub struct Timeline<'a> {
    ends_ns: &'a [u64],
    slots: Slots,
    stream_steps: PerStream<u32>,
    /// The sum of the durations of each stream's steps in one iteration.
    busy_ns: PerStream<u64>,
}

impl<'a> Timeline<'a> {
    const fn scratch_words(limits: &Limits) -> usize {
        words::<u64>(limits.steps).saturating_mul(PREDICTED_ITERATIONS as usize)
    }

    /// Runs a schedule for eight iterations. O(steps).
    ///
    /// # Errors
    /// Too little scratch. The durations must have passed [`durations`].
    pub fn new(
        schedule: &Schedule<'_>,
        durations_ns: &[u64],
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let slots = Slots::new(schedule.stream_steps);
        let ends_ns = scratch
            .take(slots.per_iteration.saturating_mul(PREDICTED_ITERATIONS as usize), 0u64)?;
        let mut run = Run { ends_ns, slots, free_ns: PerStream::all(0) };
        let looks_back_once = schedule.iterations == 1 && looks_back_once(schedule.steps);
        for iteration in 0..PREDICTED_ITERATIONS as usize {
            let before_ns = run.free_ns;
            run.iteration(iteration, schedule, durations_ns);
            if iteration > 0
                && looks_back_once
                && let Some(period_ns) = run.steady_period_ns(iteration, before_ns)
            {
                run.repeat(iteration, period_ns);
                break;
            }
        }
        let ends_ns = run.ends_ns;
        let busy_ns = busy_ns(schedule, durations_ns);
        Ok(Self { ends_ns, slots, stream_steps: schedule.stream_steps, busy_ns })
    }

    /// The time at which a step ends; 0 if it does not exist. Iterations count from 0.
    #[must_use]
    pub fn end_ns(&self, iteration: usize, stream: Stream, index: u32) -> u64 {
        self.ends_ns.get(self.slots.of(iteration, stream, index)).copied().unwrap_or(0)
    }

    /// The time at which all ops of an iteration have ended, on the device and on the host.
    /// Iterations count from 0.
    #[must_use]
    pub fn ops_end_ns(&self, iteration: usize) -> u64 {
        let end_ns = |stream: Stream| {
            let last = self.stream_steps[stream].checked_sub(1);
            last.map_or(0, |last| self.end_ns(iteration, stream, last))
        };
        end_ns(Stream::Compute).max(end_ns(Stream::Host)).max(end_ns(Stream::Network))
    }

    /// The maximum of a quarter of the time from iteration 4 to iteration 8, and of the busy times
    /// of all streams but compute in one iteration.
    #[must_use]
    pub fn period_ns(&self) -> u64 {
        let PerStream([_, busy_ns @ ..]) = self.busy_ns;
        let four_ns = self.ops_end_ns(7).saturating_sub(self.ops_end_ns(3));
        busy_ns.into_iter().fold(four_ns / 4, u64::max)
    }
}

/// The simulated iterations so far.
struct Run<'a> {
    ends_ns: &'a mut [u64],
    slots: Slots,
    /// The end of the last step on each stream.
    free_ns: PerStream<u64>,
}

impl Run<'_> {
    fn iteration(&mut self, iteration: usize, schedule: &Schedule<'_>, durations_ns: &[u64]) {
        let entries = schedule.of_iteration(iteration as u64);
        for (entry, &duration_ns) in entries.iter().zip(durations_ns) {
            let Some(stream) = entry.stream() else { continue };
            let mut start_ns = self.free_ns[stream];
            for awaited_stream in Stream::ALL {
                if let Some(wait) = entry.wait(awaited_stream)
                    && let Some(awaited) = iteration.checked_sub(wait.iterations_back as usize)
                {
                    let slot = self.slots.of(awaited, awaited_stream, wait.index);
                    start_ns = start_ns.max(self.ends_ns.get(slot).copied().unwrap_or(0));
                }
            }
            let end_ns = start_ns.saturating_add(duration_ns);
            let slot = self.slots.of(iteration, stream, entry.index());
            if let Some(slot) = self.ends_ns.get_mut(slot) {
                *slot = end_ns;
            }
            self.free_ns[stream] = end_ns;
        }
    }

    /// The time by which each step of an iteration ends after the same step of the previous one, if
    /// it is the same for all steps. If waits reach back at most one iteration, each further
    /// iteration takes the same time: its steps start when steps of the last two iterations end,
    /// and these all end that much later than one iteration before.
    fn steady_period_ns(&self, iteration: usize, before_ns: PerStream<u64>) -> Option<u64> {
        let steps = self.slots.per_iteration;
        let first = iteration.checked_sub(1)?.checked_mul(steps)?;
        let (earlier, last) = self.ends_ns.get(first..)?.split_at_checked(steps)?;
        let period_ns = last.first()?.checked_sub(*earlier.first()?)?;
        let after = |before_ns: u64| before_ns.checked_add(period_ns);
        let is_steady = earlier.iter().zip(last).all(|(&before, &end)| after(before) == Some(end))
            && Stream::ALL.into_iter().all(|stream| {
                let (before, free) = (before_ns[stream], self.free_ns[stream]);
                free == 0 || after(before) == Some(free)
            });
        is_steady.then_some(period_ns)
    }

    /// Fills in the iterations after one, each `period_ns` after the previous one.
    fn repeat(&mut self, iteration: usize, period_ns: u64) {
        let steps = self.slots.per_iteration;
        let next = iteration.saturating_add(1).saturating_mul(steps);
        for first in (next..self.ends_ns.len()).step_by(steps.max(1)) {
            let (done, rest) = self.ends_ns.split_at_mut(first);
            for (end, before) in rest.iter_mut().zip(&done[first.saturating_sub(steps)..]) {
                *end = before.saturating_add(period_ns);
            }
        }
    }
}

/// Whether no step waits for a step more than one iteration back.
fn looks_back_once(entries: &[Scheduled]) -> bool {
    entries.iter().all(|entry| {
        let mut waits = Stream::ALL.into_iter().filter_map(|stream| entry.wait(stream));
        waits.all(|wait| wait.iterations_back <= 1)
    })
}

/// The sum of the durations of each stream's steps in one iteration.
fn busy_ns(schedule: &Schedule<'_>, durations_ns: &[u64]) -> PerStream<u64> {
    let mut busy_ns = PerStream::all(0u64);
    for (entry, &duration_ns) in schedule.of_iteration(0).iter().zip(durations_ns) {
        if let Some(stream) = entry.stream() {
            busy_ns[stream] = busy_ns[stream].saturating_add(duration_ns);
        }
    }
    busy_ns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::Wait;

    #[test]
    fn a_step_that_does_not_exist_ends_at_0() {
        let schedule =
            Schedule { steps: &[], stream_steps: PerStream([1, 2, 3, 0, 0]), iterations: 1 };
        let mut memory = [0; 6 * PREDICTED_ITERATIONS as usize];
        let timeline = Timeline::new(&schedule, &[], &mut Scratch::new(&mut memory)).unwrap();
        assert_eq!(timeline.end_ns(usize::MAX, Stream::Download, u32::MAX), 0);
    }

    #[test]
    fn an_iteration_may_be_like_the_one_before_and_the_next_one_later() {
        let mut steps = [Stream::Compute, Stream::Upload, Stream::Download]
            .map(|stream| Scheduled::new(Some(stream), 0));
        let wait = |iterations_back| Some(Wait { index: 0, iterations_back });
        steps[0].set_wait(Stream::Download, wait(2));
        steps[1].set_wait(Stream::Compute, wait(0));
        steps[2].set_wait(Stream::Upload, wait(0));
        let schedule =
            Schedule { steps: &steps, stream_steps: PerStream([1, 1, 1, 0, 0]), iterations: 1 };
        let mut memory = [0; 3 * PREDICTED_ITERATIONS as usize];
        let timeline = Timeline::new(&schedule, &[5; 3], &mut Scratch::new(&mut memory)).unwrap();
        let ends_ns = [0, 1, 2, 3, 4].map(|at| timeline.end_ns(at, Stream::Compute, 0));
        assert_eq!(ends_ns, [5, 10, 20, 25, 35]);
    }
}
