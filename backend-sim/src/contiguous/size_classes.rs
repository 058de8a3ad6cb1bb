//! Pools of blocks of one size each. The sizes are powers of two and three steps between them. A
//! block serves only its own class. If the driver has no memory left, all free blocks go back to
//! it.

use super::{Allocator, Block, Driver};
use std::collections::BTreeMap;

const LEAST_BYTES: u64 = 512;

/// The size of the class of `bytes`: the next of 4, 5, 6, 7 times a power of two.
fn class_bytes(bytes: u64) -> Option<u64> {
    if bytes <= LEAST_BYTES {
        return Some(LEAST_BYTES);
    }
    bytes.checked_next_multiple_of(1 << (bytes.ilog2() - 2))
}

/// The allocator.
#[derive(Debug)]
pub struct SizeClasses {
    driver: Driver,
    /// Starts of the free blocks, by class.
    free: BTreeMap<u64, Vec<u64>>,
    used_bytes: u64,
}

impl SizeClasses {
    /// Makes an allocator without blocks.
    #[must_use]
    pub const fn new(device_bytes: u64) -> Self {
        Self { driver: Driver::new(device_bytes), free: BTreeMap::new(), used_bytes: 0 }
    }
}

impl Allocator for SizeClasses {
    fn allocate(&mut self, bytes: u64) -> Option<Block> {
        let bytes = class_bytes(bytes)?;
        let cached = self.free.get_mut(&bytes).and_then(Vec::pop);
        let start = cached.or_else(|| self.driver.reserve(bytes)).or_else(|| {
            for (bytes, starts) in std::mem::take(&mut self.free) {
                self.driver.give_back(bytes * starts.len() as u64);
            }
            self.driver.reserve(bytes)
        })?;
        self.used_bytes += bytes;
        Some(Block { start, bytes })
    }

    fn release(&mut self, Block { start, bytes }: Block) {
        self.used_bytes -= bytes;
        self.free.entry(bytes).or_default().push(start);
    }

    fn reserved_bytes(&self) -> u64 {
        self.driver.reserved_bytes
    }

    fn used_bytes(&self) -> u64 {
        self.used_bytes
    }

    fn segments_taken(&self) -> u64 {
        self.driver.segments_taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_quarters_of_powers_of_two() {
        for (bytes, class) in [
            (1, Some(512)),
            (512, Some(512)),
            (513, Some(640)),
            (640, Some(640)),
            (641, Some(768)),
            (897, Some(1024)),
            (1024, Some(1024)),
            (5 << 40, Some(5 << 40)),
            ((5 << 40) + 1, Some(6 << 40)),
            (u64::MAX, None),
        ] {
            assert_eq!(class_bytes(bytes), class, "{bytes}");
        }
    }

    #[test]
    fn a_block_serves_its_own_class_only() {
        let mut allocator = SizeClasses::new(10_000);
        let block = allocator.allocate(4_000).unwrap();
        assert_eq!(block.bytes(), 4_096);
        let start = block.start();
        allocator.release(block);
        let smaller = allocator.allocate(3_000).unwrap();
        assert_eq!((smaller.bytes(), allocator.reserved_bytes()), (3_072, 7_168));
        assert_eq!(allocator.allocate(4_096).unwrap().start(), start);
        allocator.release(smaller);
        // The allocator returns the cached block to get memory for this request.
        assert_eq!(allocator.allocate(5_000).unwrap().bytes(), 5_120);
        assert_eq!((allocator.reserved_bytes(), allocator.used_bytes()), (9_216, 9_216));
        assert_eq!(allocator.allocate(1_000), None);
    }
}
