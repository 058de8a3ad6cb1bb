//! Host memory, and copies between it and the device.

use super::{DeviceAddress, Streams};
use crate::graph::TensorId;
use crate::host::HostRooms;

/// Bytes of a tensor's host copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostRange {
    /// The tensor.
    pub tensor: TensorId,
    /// First byte, from the start of the host's block.
    pub offset_bytes: u64,
    /// Number of bytes, not zero.
    pub bytes: u64,
}

/// Copies between the host's block and the device, each enqueued on its stream.
///
/// A device range may span several mapped chunks.
pub trait Transfers: Streams {
    /// Creates the host's block, once, before any copy and before inputs are filled. On return
    /// every state's value lies in its room.
    ///
    /// # Errors
    /// Too little host memory, and a second call.
    fn create_host(&mut self, rooms: &HostRooms<'_>) -> Result<(), Self::Error>;

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
    /// A range that is not mapped or not on the host, and those of the driver.
    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), Self::Error>;
}
