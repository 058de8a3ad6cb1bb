//! Which value of its stream each step signals.

use crate::backend::{Point, Streams};
use crate::schedule::{PerStream, Stream, Wait};

/// From steps to values of their streams. They saturate: a device may count from anywhere.
#[derive(Clone, Copy, Debug)]
pub(super) struct Points {
    /// Signals of each stream that belong to no iteration.
    pub(super) base: PerStream<u64>,
    /// Steps of each stream in an iteration.
    pub(super) stream_steps: PerStream<u32>,
}

impl Points {
    /// The streams that the plan uses: a device need not have one for ops on the host.
    pub(super) fn streams(&self) -> impl Iterator<Item = Stream> + use<> {
        let runs_on_host = self.stream_steps[Stream::Host] > 0;
        Stream::ALL.into_iter().filter(move |&stream| stream != Stream::Host || runs_on_host)
    }

    /// Learns how often each stream has been signalled, and blocks for the prologue.
    pub(super) fn start<B: Streams>(&mut self, device: &mut B) -> Result<(), B::Error> {
        for stream in self.streams() {
            let point = device.signal(stream)?;
            self.base[stream] = point.value;
            device.block_until(point)?;
        }
        Ok(())
    }

    /// Notes a signal between two iterations, when everything before it has ended. The values
    /// of earlier steps are off by one from then on, which is harmless: all are reached.
    pub(super) fn skip_signal(&mut self, stream: Stream) {
        self.base[stream] += 1;
    }

    /// The value of a step of an iteration, counted from 1.
    pub(super) fn value(&self, stream: Stream, index: u32, iteration: u64) -> u64 {
        let steps = u64::from(self.stream_steps[stream]);
        let before = (iteration - 1).saturating_mul(steps).saturating_add(u64::from(index) + 1);
        self.base[stream].saturating_add(before)
    }

    /// The end of a stream's last step after some iterations.
    pub(super) fn end(&self, stream: Stream, iterations: u64) -> Point {
        let steps = u64::from(self.stream_steps[stream]);
        let value = self.base[stream].saturating_add(iterations.saturating_mul(steps));
        Point { stream, value }
    }

    /// The values that a step of an iteration waits for; 0 where there is none,
    /// or where it lies before the first iteration.
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
