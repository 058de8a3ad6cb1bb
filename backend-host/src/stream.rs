//! Streams: a call that enqueues work returns after the work has ended.

use crate::{HostDevice, HostError};
use backend_checks::Refused;
use planner_core::Stream;
use planner_core::backend::{Point, Streams};

impl Streams for HostDevice {
    fn has_host_stream(&self) -> bool {
        true
    }

    fn has_network_stream(&self) -> bool {
        true
    }

    fn wait(&mut self, _stream: Stream, point: Point) -> Result<(), HostError> {
        self.reached(point).map(drop)
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, HostError> {
        self.signals[stream] += 1;
        Ok(Point { stream, value: self.signals[stream] })
    }

    fn reached(&mut self, point: Point) -> Result<bool, HostError> {
        if point.value > self.signals[point.stream] {
            return Err(Refused::Unsignalled(point).into());
        }
        Ok(true)
    }

    fn block_until(&mut self, point: Point) -> Result<(), HostError> {
        self.reached(point).map(drop)
    }
}
