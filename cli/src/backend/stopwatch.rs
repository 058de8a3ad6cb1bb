//! A layer over a real device that records the device's time before and after each step.

use super::entry::StepTimes;
use super::real::Real;
use middleware::Layer;
use planner_core::backend::{DeviceAddress, HostRange, Launch, Point, Streams, Transfers};
use planner_core::{PerStream, Stream};

/// Records the times of steps after its start.
pub(super) struct Stopwatch<B: Real> {
    start: Option<B::Timestamp>,
    /// The start of each stream's current step, which has no signal yet.
    begun: PerStream<Option<B::Timestamp>>,
    steps: PerStream<Vec<[B::Timestamp; 2]>>,
}

impl<B: Real> Stopwatch<B> {
    pub(super) fn new() -> Self {
        let begun = PerStream::from_fn(|_| None);
        Self { start: None, begun, steps: PerStream::from_fn(|_| Vec::new()) }
    }

    /// Starts to time all steps, if the device has timestamps.
    pub(super) fn start(&mut self, device: &B::Device) -> Result<(), B::Error> {
        self.start = B::timestamp(device, Stream::Compute)?;
        Ok(())
    }

    /// The start and the end of each step, in nanoseconds. Blocks until all steps have ended.
    pub(super) fn steps_ns(&self) -> Result<Option<StepTimes>, B::Error> {
        let Some(start) = &self.start else { return Ok(None) };
        let mut steps_ns = StepTimes::default();
        for stream in Stream::ALL {
            for [begin, end] in &self.steps[stream] {
                let ns = [B::ns_between(start, begin)?, B::ns_between(start, end)?];
                // A copy enqueued before the first launch can end before the start.
                steps_ns[stream].push(ns.map(|ns| ns.max(0.0) as u64));
            }
        }
        Ok(Some(steps_ns))
    }

    fn begin(&mut self, device: &B::Device, stream: Stream) -> Result<(), B::Error> {
        if self.start.is_some() && self.begun[stream].is_none() {
            self.begun[stream] = B::timestamp(device, stream)?;
        }
        Ok(())
    }
}

impl<B: Real> Layer<B::Device> for Stopwatch<B> {
    type Error = B::Error;

    fn signal(&mut self, device: &mut B::Device, stream: Stream) -> Result<Point, B::Error> {
        if let Some(begin) = self.begun[stream].take()
            && let Some(end) = B::timestamp(device, stream)?
        {
            self.steps[stream].push([begin, end]);
        }
        device.signal(stream)
    }

    fn upload(
        &mut self,
        device: &mut B::Device,
        from: HostRange,
        to: DeviceAddress,
    ) -> Result<(), B::Error> {
        self.begin(device, Stream::Upload)?;
        device.upload(from, to)
    }

    fn download(
        &mut self,
        device: &mut B::Device,
        from: DeviceAddress,
        to: HostRange,
    ) -> Result<(), B::Error> {
        self.begin(device, Stream::Download)?;
        device.download(from, to)
    }

    fn launch(
        &mut self,
        device: &mut B::Device,
        launch: &Launch<'_>,
        run: impl FnOnce(&mut B::Device, &Launch<'_>) -> Result<(), B::Error>,
    ) -> Result<(), B::Error> {
        self.begin(device, Stream::Compute)?;
        run(device, launch)
    }
}
