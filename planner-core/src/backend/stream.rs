//! Streams of work, and waits for points on them.

use super::ErrorType;
use crate::schedule::Stream;

/// A point on a stream: the `value`-th signal enqueued there, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Point {
    /// The stream.
    pub stream: Stream,
    /// The number of the signal on that stream, counted from 1.
    pub value: u64,
}

/// Five streams of work; a device may lack those for ops on the host and for collectives. Work on one
/// stream runs in the order in which it was enqueued; work on different streams runs concurrently, unless a
/// wait orders it. Each stream is a timeline semaphore (Vulkan) or a sequence of events (CUDA).
pub trait Streams: ErrorType {
    /// Makes all work that is enqueued on `stream` from now on start only after `point` is reached.
    /// Later signals of the stream come after the point too, with or without work in between: a
    /// wait for one of them is also a wait for `point`. A stream may wait for a point of its own.
    ///
    /// # Errors
    /// A point that has not been signalled yet: on a device with a single queue the wait would
    /// never end.
    fn wait(&mut self, stream: Stream, point: Point) -> Result<(), Self::Error>;

    /// Enqueues a signal. The returned point is reached when all work enqueued on `stream` before
    /// it has ended and its effects are visible to a waiter of the point. The values of a stream
    /// are 1, 2, 3, ….
    ///
    /// # Errors
    /// Errors of the driver.
    fn signal(&mut self, stream: Stream) -> Result<Point, Self::Error>;

    /// Enqueues a signal whose point no later call names. Calls may name the points of later signals,
    /// which come after this signal. The signal counts like any other. A device that pays for each
    /// point can leave this point out. The default calls [`signal`](Self::signal).
    ///
    /// # Errors
    /// Errors of the driver.
    fn signal_unawaited(&mut self, stream: Stream) -> Result<Point, Self::Error> {
        self.signal(stream)
    }

    /// Whether a point has been reached. Does not block.
    ///
    /// # Errors
    /// A point that has not been signalled yet, and errors of the driver.
    fn reached(&mut self, point: Point) -> Result<bool, Self::Error>;

    /// Blocks the calling thread until a point is reached.
    ///
    /// # Errors
    /// A point that has not been signalled yet, and errors of the driver. An error of work on the
    /// device is reported here at the latest.
    fn block_until(&mut self, point: Point) -> Result<(), Self::Error>;

    /// Whether the device has the stream for ops on the host, [`Stream::Host`]. The default is no:
    /// then the executor refuses plans that run ops on the host, and never names the stream.
    fn has_host_stream(&self) -> bool {
        false
    }

    /// Whether the device has the stream for collectives, [`Stream::Network`]. The default is no:
    /// then the executor refuses plans of graphs with collectives, and never names the stream.
    fn has_network_stream(&self) -> bool {
        false
    }

    /// Hands all enqueued work to the device, so that it runs without a further call. Does not
    /// block. The executor calls it at the end of each iteration. A device that gathers work before
    /// it hands it over must override the default, which does nothing.
    ///
    /// # Errors
    /// Errors of the driver.
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

    fn signal_unawaited(&mut self, stream: Stream) -> Result<Point, Self::Error> {
        T::signal_unawaited(self, stream)
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

    fn has_network_stream(&self) -> bool {
        T::has_network_stream(self)
    }

    fn submit(&mut self) -> Result<(), Self::Error> {
        T::submit(self)
    }
}
