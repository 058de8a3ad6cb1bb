//! The steps of a plan as measured on a device.

use super::{Course, Span, positions};
use crate::names::Names;
use crate::report::Actual;
use planner_core::{Scheduled, Stream, Verified};

/// Checks that each stream ran one step after the other.
///
/// # Errors
/// A sentence that names the step and the iteration.
pub(crate) fn check(
    names: &Names<'_>,
    verified: &Verified<'_>,
    actual: &Actual,
) -> Result<(), String> {
    let (steps, first) = (verified.plan().steps, actual.first_iteration);
    for (stream, positions) in Stream::ALL.into_iter().zip(positions(verified).0) {
        let steps_ns = &actual.steps_ns[stream];
        let mut free_ns = 0;
        for (at, &[start_ns, end_ns]) in steps_ns.iter().enumerate() {
            let Some(iteration) = at.checked_div(positions.len()) else {
                return Err(format!(
                    "{} steps were measured on the {stream} stream, but the plan has no steps there",
                    steps_ns.len()
                ));
            };
            let Some(iteration) = first.checked_add(iteration as u64) else {
                return Err(format!(
                    "no iteration can follow iteration {first}, but more were measured"
                ));
            };
            let reason = if start_ns < free_ns {
                format!(
                    "starts at {start_ns} ns, but the step before it on its stream ends at {free_ns} ns"
                )
            } else if end_ns < start_ns {
                format!("starts at {start_ns} ns, but ends at {end_ns} ns")
            } else {
                free_ns = end_ns;
                continue;
            };
            let step = positions[at % positions.len()];
            return Err(format!(
                "step {step} of iteration {iteration}, the {}, was measured wrongly: it {reason}",
                names.step(&steps[step])
            ));
        }
    }
    Ok(())
}

impl Course {
    /// Returns the iterations with times for all steps. The caller has checked the times. Memory is not
    /// measured.
    pub(crate) fn measured(verified: &Verified<'_>, actual: &Actual) -> Self {
        let schedule = verified.schedule();
        let counts = schedule.stream_steps.map(|count| count as usize);
        let whole = |stream: Stream| actual.steps_ns[stream].len().checked_div(counts[stream]);
        let iterations = Stream::ALL.into_iter().filter_map(whole).min().unwrap_or(0);
        let positions = positions(verified);
        let entries = |iteration| schedule.of_iteration(actual.first_iteration + iteration as u64);
        let times = |iteration: usize, stream: Stream, index: usize| {
            actual.steps_ns[stream][iteration * counts[stream] + index]
        };
        let span = |iteration: usize, step: usize, entry: &Scheduled| {
            let (stream, index) = (entry.stream()?, entry.index() as usize);
            let [start_ns, end_ns] = times(iteration, stream, index);
            let at = iteration * counts[stream] + index;
            let idle_from_ns =
                at.checked_sub(1).map_or(start_ns, |at| actual.steps_ns[stream][at][1]);
            let waits = entry.waits().into_iter().filter_map(|(of, wait)| {
                let wait = wait?;
                let iteration = iteration.checked_sub(wait.iterations_back as usize)?;
                let [_, end_ns] = times(iteration, of, wait.index as usize);
                Some((end_ns, (iteration, positions[of][wait.index as usize])))
            });
            // The stream waited for the step that ended last while it was idle.
            let last = waits.max().filter(|&(end_ns, _)| end_ns > idle_from_ns);
            let idle_ns = start_ns.saturating_sub(idle_from_ns);
            let awaited = last.filter(|_| idle_ns > 0).map(|(_, awaited)| awaited);
            Some(Span { iteration, step, stream, start_ns, end_ns, idle_ns, awaited })
        };
        let spans = (0..iterations).flat_map(|iteration| {
            let steps = entries(iteration).iter().enumerate();
            steps.filter_map(move |(step, entry)| span(iteration, step, entry)).collect::<Vec<_>>()
        });
        // An iteration ends with its last op, on the device or on the host.
        let last_ns = |iteration, stream: Stream| {
            let last = counts[stream].checked_sub(1);
            last.map_or(0, |last| times(iteration, stream, last)[1])
        };
        let end_ns = |iteration| {
            let of_ops = [Stream::Compute, Stream::Host, Stream::Network];
            of_ops.into_iter().map(|stream| last_ns(iteration, stream)).fold(0, u64::max)
        };
        Self {
            spans: spans.collect(),
            held: Vec::new(),
            iteration_ends_ns: (0..iterations).map(end_ns).collect(),
        }
    }
}
