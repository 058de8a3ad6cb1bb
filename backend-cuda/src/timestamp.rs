//! Times on the device.

use crate::CudaDevice;
use crate::driver::Event;
use crate::error::CudaError;
use planner_core::Stream;

/// A point of a stream with the device's time at this point.
#[derive(Debug)]
pub struct Timestamp(Event);

impl Timestamp {
    /// Whether the stream has reached the point.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn is_reached(&self) -> Result<bool, CudaError> {
        self.0.is_reached()
    }

    /// The time from this point to another point of the same device, in nanoseconds, to half a
    /// microsecond. Blocks until both are reached.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn ns_until(&self, end: &Self) -> Result<f64, CudaError> {
        self.0.synchronize()?;
        end.0.synchronize()?;
        self.0.ns_until(&end.0)
    }
}

impl CudaDevice {
    /// Records the time at which a stream has done all work that is enqueued now. Not for captures.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn timestamp(&self, stream: Stream) -> Result<Timestamp, CudaError> {
        let stream = self.queued[stream as usize].stream();
        let event = Event::timed(stream.context())?;
        event.record(stream)?;
        Ok(Timestamp(event))
    }
}
