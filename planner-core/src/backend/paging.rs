//! Device memory: address ranges, and physical chunks mapped into them.

use super::ErrorType;

/// A virtual address on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceAddress(pub u64);

/// Bytes at a virtual address on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceRange {
    /// The address of the first byte.
    pub address: DeviceAddress,
    /// Number of bytes.
    pub bytes: u64,
}

/// The operands of a launch: ranges on the device in order, and `None` for each operand that a repeat
/// must not access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRanges<'a>(&'a [[u64; 2]]);

impl<'a> DeviceRanges<'a> {
    /// Makes operands from pairs of an address and a size in bytes, as they lie in working memory. A
    /// size of 0 stands for `None`.
    #[must_use]
    pub const fn new(ranges: &'a [[u64; 2]]) -> Self {
        Self(ranges)
    }

    /// The number of operands.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the list is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The operand at a position; `None` if a repeat must not access it, or if there are fewer.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<DeviceRange> {
        self.0.get(position).copied().and_then(range)
    }

    /// All operands, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Option<DeviceRange>> + use<'a> {
        self.0.iter().copied().map(range)
    }
}

fn range([address, bytes]: [u64; 2]) -> Option<DeviceRange> {
    (bytes > 0).then_some(DeviceRange { address: DeviceAddress(address), bytes })
}

/// Consecutive physical chunks, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Chunks {
    /// The number of the first chunk.
    pub first: u64,
    /// Number of chunks, not zero.
    pub count: u64,
}

/// Virtual address ranges, and physical chunks that are mapped into them.
///
/// Calls take effect at once, on the calling thread. One chunk may be mapped at several addresses;
/// a caller that writes it at one address and reads it at another must order the two accesses by a
/// point.
pub trait Paging: ErrorType {
    /// Size of a chunk in bytes, the unit of mapping.
    fn chunk_bytes(&self) -> u64;

    /// The most chunks that one range can have. The default is no limit. If a pool is larger, the
    /// executor gives its tensors ranges of their own; the arena lies in one range.
    fn most_range_chunks(&self) -> u64 {
        u64::MAX
    }

    /// Creates the physical chunks `0..count`. Called once.
    ///
    /// # Errors
    /// [`OutOfDeviceMemory`](super::ErrorKind::OutOfDeviceMemory) if the device has less memory;
    /// then the caller may try again with fewer chunks.
    fn create(&mut self, count: u64) -> Result<(), Self::Error>;

    /// Reserves virtual addresses for `chunks` chunks and maps none of them. The range must not
    /// begin at address 0, which kernels take for a null pointer.
    ///
    /// # Errors
    /// The device has no address space left.
    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, Self::Error>;

    /// Maps chunks at an address inside a reservation, a whole number of chunks from its start. The
    /// chunks keep the bytes that were last written to them.
    ///
    /// # Errors
    /// An address that is not reserved or is mapped already, or a chunk that does not exist.
    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), Self::Error>;

    /// Unmaps `chunks` chunks: one mapping, or several consecutive mappings, each as a whole. No
    /// enqueued work may still use the range.
    ///
    /// # Errors
    /// A range that is not mapped, or that covers only a part of a mapping.
    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), Self::Error>;
}

impl<T: Paging + ?Sized> Paging for &mut T {
    fn chunk_bytes(&self) -> u64 {
        T::chunk_bytes(self)
    }

    fn most_range_chunks(&self) -> u64 {
        T::most_range_chunks(self)
    }

    fn create(&mut self, count: u64) -> Result<(), Self::Error> {
        T::create(self, count)
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, Self::Error> {
        T::reserve(self, chunks)
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), Self::Error> {
        T::map(self, at, chunks)
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), Self::Error> {
        T::unmap(self, at, chunks)
    }
}
