//! Streams of work, and waiting for points on them.

use super::ErrorType;
use crate::schedule::Stream;

/// A point on a stream: the `value`-th signal enqueued there, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// The stream.
    pub stream: Stream,
    /// Which of its signals.
    pub value: u64,
}

/// Four streams of work, of which a device may lack the one for ops on the host. Work on one stream runs in the order in which it was enqueued;
/// work on different streams runs at the same time, unless a wait orders it.
///
/// This is a timeline semaphore for each stream (Vulkan) or a sequence of events (CUDA).
pub trait Streams: ErrorType {
    /// Makes all work enqueued on `stream` from now on start only once `point` is reached.
    /// Signals that follow come after it too, with or without work: whoever waits for them
    /// has waited for `point`. A stream may wait for a point of its own.
    ///
    /// # Errors
    /// A point that has not been signalled yet is an error: on a device with a single queue
    /// it would never be reached.
    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), Self::Error>;

    /// Enqueues a signal: the returned point is reached when all work enqueued on `stream`
    /// before it has ended and its effects are visible to whoever waits for the point. The
    /// values of a stream are 1, 2, 3, ….
    ///
    /// # Errors
    /// Those of the driver.
    fn signal(&mut self, stream: Stream) -> Result<Point, Self::Error>;

    /// Whether a point has been reached. Does not block.
    ///
    /// # Errors
    /// A point that has not been signalled yet, and those of the driver.
    fn reached(&mut self, point: Point) -> Result<bool, Self::Error>;

    /// Blocks the calling thread until a point is reached.
    ///
    /// # Errors
    /// A point that has not been signalled yet, and those of the driver: work that failed
    /// on the device is reported here at the latest.
    fn block_until(&mut self, point: Point) -> Result<(), Self::Error>;

    /// Whether there is a stream for ops that run on the host, [`Stream::Host`]. Unless a device says
    /// so there is none: then plans with such ops are refused, and the stream is never named.
    fn has_host_stream(&self) -> bool {
        false
    }

    /// Lets everything that is enqueued run without a further call. Does not block. The executor
    /// calls it at the end of each iteration. Does nothing unless a device that gathers work before
    /// it hands it over says otherwise.
    ///
    /// # Errors
    /// Those of the driver.
    fn submit(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }
}

impl<T: Streams + ?Sized> Streams for &mut T {
    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), Self::Error> {
        T::wait(self, stream, point)
    }

    fn signal(&mut self, stream: Stream) -> Result<Point, Self::Error> {
        T::signal(self, stream)
    }

    fn reached(&mut self, point: Point) -> Result<bool, Self::Error> {
        T::reached(self, point)
    }

    fn block_until(&mut self, point: Point) -> Result<(), Self::Error> {
        T::block_until(self, point)
    }

    fn has_host_stream(&self) -> bool {
        T::has_host_stream(self)
    }

    fn submit(&mut self) -> Result<(), Self::Error> {
        T::submit(self)
    }
}
