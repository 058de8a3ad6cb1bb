//! The value that each step signals on its stream.

use crate::backend::{Point, Streams};
use crate::schedule::{PerStream, Stream, Wait};

/// Computes the value of a step on its stream. Sums saturate, since a device may count from any
/// number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Points {
    /// Signals of each stream before the first iteration and between iterations.
    pub(super) base: PerStream<u64>,
    /// The number of steps of each stream in an iteration.
    pub(super) stream_steps: PerStream<u32>,
}

impl Points {
    /// The streams that the plan uses. A device may lack the stream for ops on the host.
    pub(super) fn streams(&self) -> impl Iterator<Item = Stream> + use<> {
        let runs_on_host = self.stream_steps[Stream::Host] > 0;
        Stream::ALL.into_iter().filter(move |&stream| stream != Stream::Host || runs_on_host)
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
        self.base[stream] += 1;
    }

    /// The value of a step in an iteration. Iterations count from 1.
    pub(super) fn value(&self, stream: Stream, index: u32, iteration: u64) -> u64 {
        let steps = u64::from(self.stream_steps[stream]);
        let before = (iteration - 1).saturating_mul(steps).saturating_add(u64::from(index) + 1);
        self.base[stream].saturating_add(before)
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
        PerStream::from_fn(|stream| match waits[stream] {
            Some(Wait { index, iterations_back }) if u64::from(iterations_back) < iteration => {
                self.value(stream, index, iteration - u64::from(iterations_back))
            }
            _ => 0,
        })
    }
}
