//! Memory managers that give each tensor one contiguous block, as deep-learning frameworks do, for
//! comparison with pages.
//!
//! Blocks are cut from segments of the driver. The driver places segments by its own pages, so
//! segments fit if their sizes add up to at most the size of the device. Nothing can move within a
//! segment, so memory there fragments.

mod caching;
mod replay;
mod size_classes;

pub use caching::CachingAllocator;
pub use replay::{ReplayError, Usage, replay};
pub use size_classes::SizeClasses;

/// A held contiguous block.
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

    /// Its size in bytes, which may be more than the request.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A manager of a device's memory.
pub trait Allocator {
    /// Returns a block of at least `bytes` bytes that overlaps no other held block. `None` if the
    /// device has no memory for it, even after the allocator has returned all cached segments.
    fn allocate(&mut self, bytes: u64) -> Option<Block>;

    /// Takes back a block of this allocator. With a block of another allocator, the accounts become
    /// wrong or the call panics.
    fn release(&mut self, block: Block);

    /// Bytes of the device in segments, held or cached.
    fn reserved_bytes(&self) -> u64;

    /// Bytes in all held blocks.
    fn used_bytes(&self) -> u64;

    /// The number of segments that were taken from the driver so far.
    fn segments_taken(&self) -> u64;
}

/// The driver: it gives out segments of any size as long as they fit the device together.
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

    /// The start of a new segment, at an address that was never used before. No segment begins
    /// where another ends, so that segments cannot be joined.
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
