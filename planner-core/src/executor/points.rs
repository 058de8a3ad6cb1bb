//! The value that each step signals on its stream.

use super::inputs::Inputs;
use crate::backend::{Point, Streams};
use crate::schedule::{PerStream, Stream, Wait};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::verify::Verified;

/// Computes the value of a step on its stream. Sums saturate, since a device may count from any
/// number.
#[derive(Debug)]
pub(super) struct Points<'a> {
    /// Signals of each stream before the first iteration and between iterations.
    base: PerStream<u64>,
    /// The number of steps of each stream in an iteration.
    stream_steps: PerStream<u32>,
    /// A byte for each step of each stream. It is 0 if nobody waits for the end of the step. Empty if
    /// somebody may wait for any step.
    awaited: &'a mut [u8],
    /// The index in `awaited` of each stream's first step.
    firsts: PerStream<usize>,
}

impl<'a> Points<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u8>(limits.steps)
    }

    /// O(waits of the schedule).
    pub(super) fn new(
        verified: &Verified<'_>,
        inputs: &Inputs<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let stream_steps = verified.schedule().stream_steps;
        let (firsts, steps) = stream_steps.first_indices();
        // A plan that is mapped as it runs waits for any step before it unmaps.
        let is_placed = verified.plan().placements.is_some();
        let awaited = scratch.take(if is_placed { steps } else { 0 }, 0)?;
        let mut points = Self { base: PerStream::all(0), stream_steps, awaited, firsts };
        for (stream, steps) in stream_steps {
            points.expect_waits(stream, steps.checked_sub(1));
        }
        for entry in verified.schedule().steps.iter().filter(|entry| entry.stream().is_some()) {
            for (stream, wait) in entry.waits() {
                points.expect_waits(stream, wait.map(|wait| wait.index));
            }
        }
        for (stream, index) in inputs.last_uses() {
            points.expect_waits(stream, index);
        }
        Ok(points)
    }

    fn expect_waits(&mut self, stream: Stream, index: Option<u32>) {
        let at = index.and_then(|index| self.firsts[stream].checked_add(index as usize));
        if let Some(awaited) = at.and_then(|at| self.awaited.get_mut(at)) {
            *awaited = 1;
        }
    }

    /// Signals the end of a step.
    pub(super) fn signal<B: Streams>(
        &self,
        device: &mut B,
        stream: Stream,
        index: u32,
    ) -> Result<Point, B::Error> {
        match self.awaited.get(self.firsts[stream].saturating_add(index as usize)) {
            Some(0) => device.signal_unawaited(stream),
            _ => device.signal(stream),
        }
    }

    /// The streams that every device has, and the others that the plan uses. A device may lack
    /// these.
    pub(super) fn streams(&self) -> impl Iterator<Item = Stream> + use<> {
        let steps = self.stream_steps;
        let is_used = move |stream| Stream::ON_DEVICE.contains(&stream) || steps[stream] > 0;
        Stream::ALL.into_iter().filter(move |&stream| is_used(stream))
    }

    /// Reads how often each stream has been signalled, and blocks until the prologue has ended.
    pub(super) fn start<B: Streams>(&mut self, device: &mut B) -> Result<(), B::Error> {
        for stream in self.streams() {
            let point = device.signal(stream)?;
            self.base[stream] = point.value;
            device.block_until(point)?;
        }
        Ok(())
    }

    /// Counts a signal between two iterations, after everything before it has ended. The values of
    /// earlier steps are one too high afterwards, which is harmless: all of them are reached.
    pub(super) fn skip_signal(&mut self, stream: Stream) {
        self.base[stream] = self.base[stream].saturating_add(1);
    }

    /// The value of a step in an iteration. Iterations count from 1.
    pub(super) fn value(&self, stream: Stream, index: u32, iteration: u64) -> u64 {
        let steps = u64::from(self.stream_steps[stream]);
        let before = iteration.saturating_sub(1).saturating_mul(steps);
        let signals = before.saturating_add(u64::from(index)).saturating_add(1);
        self.base[stream].saturating_add(signals)
    }

    /// The point at which a stream's last step ends after some iterations.
    pub(super) fn end(&self, stream: Stream, iterations: u64) -> Point {
        let steps = u64::from(self.stream_steps[stream]);
        let value = self.base[stream].saturating_add(iterations.saturating_mul(steps));
        Point { stream, value }
    }

    /// The values that a step of an iteration waits for, by stream; 0 for no wait, or for a wait
    /// that reaches back before the first iteration.
    pub(super) fn awaited(
        &self,
        waits: &PerStream<Option<Wait>>,
        iteration: u64,
    ) -> PerStream<u64> {
        PerStream::from_fn(|stream| {
            let Some(Wait { index, iterations_back }) = waits[stream] else { return 0 };
            match iteration.saturating_sub(iterations_back.into()) {
                0 => 0,
                awaited => self.value(stream, index, awaited),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_may_count_from_any_number() {
        let mut points = Points {
            base: PerStream::all(u64::MAX),
            stream_steps: PerStream::all(1),
            awaited: &mut [],
            firsts: PerStream::all(0),
        };
        points.skip_signal(Stream::Upload);
        assert_eq!(points.value(Stream::Upload, 0, 1), u64::MAX);
    }
}
