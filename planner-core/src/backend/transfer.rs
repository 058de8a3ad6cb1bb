use super::{DeviceAddress, Streams};
use crate::graph::TensorId;

/// Bytes of a tensor's host copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostRange {
    /// The tensor.
    pub tensor: TensorId,
    /// The room: an input has two, for the values of even and odd iterations; all others
    /// have room 0 only.
    pub room: u32,
    /// First byte, from the start of the tensor.
    pub offset_bytes: u64,
    /// Number of bytes, not zero.
    pub bytes: u64,
}

/// Copies between host and device, each enqueued on its stream.
///
/// Where a tensor's host copy lies is the backend's business: it is given the tensor, the
/// room and the range. A device range may span several mapped chunks.
pub trait Transfers: Streams {
    /// Enqueues a copy on [`Stream::Upload`](crate::Stream::Upload). The host bytes are
    /// read, and the device range must be mapped, until the next signal of that stream is
    /// reached.
    ///
    /// # Errors
    /// A range that is not mapped or not on the host, and those of the driver.
    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), Self::Error>;

    /// Enqueues a copy on [`Stream::Download`](crate::Stream::Download). The host bytes are
    /// written by the time the next signal of that stream is reached.
    ///
    /// # Errors
    /// A range that is not mapped or has no room on the host, and those of the driver.
    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), Self::Error>;
}
