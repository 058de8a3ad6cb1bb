//! Memory managers that give each tensor one contiguous block, as deep-learning frameworks
//! do, for comparison with pages.
//!
//! Blocks are cut from segments that the driver gives out. The driver places segments by
//! pages of its own, so that any of them fit whose sizes add up to no more than the device;
//! within a segment nothing can move, and memory fragments.

mod caching;
mod replay;
mod size_classes;

pub use caching::CachingAllocator;
pub use replay::{ReplayError, Usage, replay};
pub use size_classes::SizeClasses;

/// A contiguous block that is held.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    start: u64,
    bytes: u64,
}

impl Block {
    /// Its first address.
    #[must_use]
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Its size, which may be more than was asked for.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A manager of a device's memory.
pub trait Allocator {
    /// Returns a block of at least this size that overlaps no other held block. `None` if
    /// the device has no memory for it, even after everything cached is given back.
    fn allocate(&mut self, bytes: u64) -> Option<Block>;

    /// Takes back a block of this allocator. A block of another allocator corrupts
    /// the accounts, or panics.
    fn release(&mut self, block: Block);

    /// Bytes of the device in segments, whether held or cached.
    fn reserved_bytes(&self) -> u64;

    /// Bytes of all blocks that are held.
    fn used_bytes(&self) -> u64;

    /// Segments that were taken from the driver so far.
    fn segments_taken(&self) -> u64;
}

/// The driver's side: segments of any size, as long as they fit the device together.
#[derive(Debug)]
struct Driver {
    device_bytes: u64,
    reserved_bytes: u64,
    segments_taken: u64,
    next_address: u64,
}

impl Driver {
    const fn new(device_bytes: u64) -> Self {
        Self { device_bytes, reserved_bytes: 0, segments_taken: 0, next_address: 0 }
    }

    /// The start of a new segment, at an address that was never used before. No segment
    /// begins where another ends.
    fn reserve(&mut self, bytes: u64) -> Option<u64> {
        const GAP_BYTES: u64 = 1;
        if bytes > self.device_bytes - self.reserved_bytes {
            return None;
        }
        let start = self.next_address;
        self.next_address = start.checked_add(bytes)?.checked_add(GAP_BYTES)?;
        self.reserved_bytes += bytes;
        self.segments_taken += 1;
        Some(start)
    }

    const fn give_back(&mut self, bytes: u64) {
        self.reserved_bytes -= bytes;
    }
}
