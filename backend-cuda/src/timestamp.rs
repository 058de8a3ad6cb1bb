//! Times of the device.

use crate::CudaDevice;
use crate::driver::Event;
use crate::error::CudaError;
use planner_core::Stream;

/// A point of a stream, with the device's time there.
#[derive(Debug)]
pub struct Timestamp(Event);

impl Timestamp {
    /// Whether the stream has got there.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn is_reached(&self) -> Result<bool, CudaError> {
        self.0.is_reached()
    }

    /// The time from here to another point of the same device, in nanoseconds, to half a
    /// microsecond. Blocks until both are reached.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn ns_until(&self, end: &Self) -> Result<f64, CudaError> {
        self.0.synchronize()?;
        end.0.synchronize()?;
        self.0.ns_until(&end.0)
    }
}

impl CudaDevice {
    /// Takes the time once a stream has done all that is enqueued there now. Not for captures.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn timestamp(&self, stream: Stream) -> Result<Timestamp, CudaError> {
        let stream = self.queued[stream as usize].stream();
        let event = Event::timed(stream.context())?;
        event.record(stream)?;
        Ok(Timestamp(event))
    }
}
