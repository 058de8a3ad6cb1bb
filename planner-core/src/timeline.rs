//! When each step runs: `start = max(end of the previous step of this stream, end of the
//! awaited steps)`, over eight iterations (`docs/format.md`, 4 and 7).

use crate::footprint::{self, Footprint};
use crate::graph::{Graph, Kind, Launched};
use crate::machine::{Direction, Machine};
use crate::pieces::Pieces;
use crate::plan::{Location, Plan, PlanError, Prediction, Step};
use crate::schedule::{PerStream, Schedule, Stream};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

/// Iterations that a prediction looks at.
pub const PREDICTED_ITERATIONS: u64 = 8;

/// Words of scratch that [`predict`] asks for, by [`Limits::of_plan`]: per step 9, per tensor 4.7,
/// per piece 2.5.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    total([
        Pieces::scratch_words(limits),
        footprint::scratch_words(limits),
        words::<u64>(limits.steps),
        Timeline::scratch_words(limits),
    ])
}

/// Everything a plan promises of itself, with a slot of its own on the host for every tensor
/// that moves, and its footprint. O(steps + operands).
///
/// # Errors
/// A plan whose structure or residency is broken, or whose times over eight iterations
/// exceed 64 bits.
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

/// [`predict`] with the table of pieces at hand.
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
        peak_bytes: footprint.peak_bytes,
        h2d_bytes: footprint.h2d_bytes,
        d2h_bytes: footprint.d2h_bytes,
        host_bytes: footprint.host_bytes(),
    };
    Ok((prediction, footprint))
}

/// Predicts, and checks that the plan promises just that: every figure is exact, but for the
/// host memory, which may count temporaries as sharing host bytes or not; it must hold what
/// moves of states and inputs, and the machine must have it.
///
/// # Errors
/// Those of [`predict`]; the first figure that is wrong.
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
    let most_bytes = lasting.fold(footprint.host_temporary_bytes, |sum, t| sum + t.bytes);
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

/// How long each step of a plan takes; an evict takes no time.
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

/// Where the end of each step is kept: iteration by iteration, in each stream by stream.
#[derive(Clone, Copy, Debug)]
struct Slots {
    first: PerStream<usize>,
    per_iteration: usize,
}

impl Slots {
    fn new(stream_steps: PerStream<u32>) -> Self {
        let PerStream([launches, prefetches, offloads]) = stream_steps.map(|n| n as usize);
        let before_offloads = launches.saturating_add(prefetches);
        let first = PerStream([0, launches, before_offloads]);
        Self { first, per_iteration: before_offloads.saturating_add(offloads) }
    }

    /// Beyond all others for numbers that no step has: schedules are not trusted.
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
    /// Scratch that is too small. The durations must have passed [`durations`].
    pub fn new(
        schedule: &Schedule<'_>,
        durations_ns: &[u64],
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let slots = Slots::new(schedule.stream_steps);
        let ends_ns = scratch
            .take(slots.per_iteration.saturating_mul(PREDICTED_ITERATIONS as usize), 0u64)?;
        let mut busy_ns = PerStream::all(0u64);
        let mut free_ns = PerStream::all(0u64);
        for iteration in 0..PREDICTED_ITERATIONS as usize {
            let entries = schedule.of_iteration(iteration as u64);
            for (entry, &duration_ns) in entries.iter().zip(durations_ns) {
                let Some(stream) = entry.stream() else { continue };
                let mut start_ns = free_ns[stream];
                for awaited_stream in Stream::ALL {
                    if let Some(wait) = entry.wait(awaited_stream)
                        && let Some(awaited) = iteration.checked_sub(wait.iterations_back as usize)
                    {
                        let slot = slots.of(awaited, awaited_stream, wait.index);
                        start_ns = start_ns.max(ends_ns.get(slot).copied().unwrap_or(0));
                    }
                }
                let end_ns = start_ns.saturating_add(duration_ns);
                let slot = slots.of(iteration, stream, entry.index());
                if let Some(slot) = ends_ns.get_mut(slot) {
                    *slot = end_ns;
                }
                free_ns[stream] = end_ns;
                if iteration == 0 {
                    let busy = &mut busy_ns[stream];
                    *busy = busy.saturating_add(duration_ns);
                }
            }
        }
        Ok(Self { ends_ns, slots, stream_steps: schedule.stream_steps, busy_ns })
    }

    /// When a step ends, 0 for one that does not exist; iterations are counted from 0.
    #[must_use]
    pub fn end_ns(&self, iteration: usize, stream: Stream, index: u32) -> u64 {
        self.ends_ns.get(self.slots.of(iteration, stream, index)).copied().unwrap_or(0)
    }

    /// The largest of the time from iteration 4 to iteration 8, by four, and of what each
    /// link is busy in one iteration.
    #[must_use]
    pub fn period_ns(&self) -> u64 {
        let last = self.stream_steps[Stream::Compute].saturating_sub(1);
        let end_ns = |iteration| self.end_ns(iteration, Stream::Compute, last);
        let PerStream([_, upload_ns, download_ns]) = self.busy_ns;
        (end_ns(7).saturating_sub(end_ns(3)) / 4).max(upload_ns).max(download_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_does_not_exist_ends_at_0() {
        let schedule = Schedule { steps: &[], stream_steps: PerStream([1, 2, 3]), iterations: 1 };
        let mut memory = [0; 6 * PREDICTED_ITERATIONS as usize];
        let timeline = Timeline::new(&schedule, &[], &mut Scratch::new(&mut memory)).unwrap();
        assert_eq!(timeline.end_ns(usize::MAX, Stream::Download, u32::MAX), 0);
    }
}
