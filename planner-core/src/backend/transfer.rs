//! Host memory, and copies between it and the device.

use super::{DeviceAddress, Streams};

/// Bytes of the host block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HostRange {
    /// First byte, from the start of the block.
    pub offset_bytes: u64,
    /// Number of bytes, not zero.
    pub bytes: u64,
}

/// A list of ranges of the host block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRanges<'a>(&'a [[u64; 2]]);

impl<'a> HostRanges<'a> {
    /// Makes ranges from pairs of an offset and a size in bytes, as they lie in working memory.
    #[must_use]
    pub const fn new(ranges: &'a [[u64; 2]]) -> Self {
        Self(ranges)
    }

    /// The number of ranges.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All ranges, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = HostRange> + use<'a> {
        self.0.iter().map(|&[offset_bytes, bytes]| HostRange { offset_bytes, bytes })
    }
}

/// The host block, and copies between it and the device, each enqueued on its stream.
///
/// A device range may span several mapped chunks.
pub trait Transfers: Streams {
    /// Creates the host block with `bytes` bytes. Called once, before any copy. The contents are
    /// undefined until they are written.
    ///
    /// # Errors
    /// Too little host memory, or a second call.
    fn create_host(&mut self, bytes: u64) -> Result<(), Self::Error>;

    /// Writes `from` into the host block, on the calling thread: copies that are enqueued later
    /// read these bytes. No enqueued copy may still use the bytes; the caller must have waited for
    /// a signal after the last such copy.
    ///
    /// # Errors
    /// Bytes outside the block.
    fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), Self::Error>;

    /// Reads from the host block, on the calling thread. No enqueued download may still write these
    /// bytes; the caller must have waited for a signal after the last such download. Works after
    /// any error of the device.
    ///
    /// # Errors
    /// Bytes outside the block.
    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), Self::Error>;

    /// Enqueues a copy on [`Stream::Upload`](crate::Stream::Upload). Until the next signal of that
    /// stream is reached, the host bytes are read and the device range must stay mapped.
    ///
    /// # Errors
    /// A range that is not mapped or outside the block, and errors of the driver.
    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), Self::Error>;

    /// Enqueues a copy on [`Stream::Download`](crate::Stream::Download). The host bytes have been
    /// written when the next signal of that stream is reached.
    ///
    /// # Errors
    /// A range that is not mapped or outside the block, and errors of the driver.
    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), Self::Error>;
}

impl<T: Transfers + ?Sized> Transfers for &mut T {
    fn create_host(&mut self, bytes: u64) -> Result<(), Self::Error> {
        T::create_host(self, bytes)
    }

    fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), Self::Error> {
        T::write_host(self, offset_bytes, from)
    }

    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), Self::Error> {
        T::read_host(self, offset_bytes, into)
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), Self::Error> {
        T::upload(self, from, to)
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), Self::Error> {
        T::download(self, from, to)
    }
}
