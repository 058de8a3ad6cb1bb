//! A best-fit caching allocator that follows the defaults of PyTorch's `CUDACachingAllocator`.
//! Sizes are multiples of 512 bytes. Blocks of at most 1 MiB come from segments of 2 MiB. Larger
//! blocks come from segments of 20 MiB or, from 10 MiB on, from segments of their own size, rounded
//! up to 2 MiB. The allocator takes the smallest free block that is large enough, splits off the
//! rest, and joins free neighbours. Completely free segments go back to the driver only if it has
//! no memory for a new one. TensorFlow and Neural Network Libraries do nearly the same.

use super::{Allocator, Block, Driver};
use std::collections::{BTreeMap, BTreeSet};

const STEP_BYTES: u64 = 512;
/// The largest block from a segment of [`SMALL_SEGMENT_BYTES`].
const SMALL_BYTES: u64 = 1 << 20;
const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
/// From this size on, a block gets a segment of its own size.
const OWN_SEGMENT_BYTES: u64 = 10 << 20;
const OWN_SEGMENT_STEP_BYTES: u64 = 2 << 20;

/// The pool that a block comes from, by its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pool {
    Small,
    Large,
}

impl Pool {
    const fn of(bytes: u64) -> Self {
        if bytes <= SMALL_BYTES { Self::Small } else { Self::Large }
    }

    /// Returns whether a remainder of this size becomes its own block.
    const fn splits(self, left_bytes: u64) -> bool {
        match self {
            Self::Small => left_bytes >= STEP_BYTES,
            Self::Large => left_bytes > SMALL_BYTES,
        }
    }
}

/// The size of a new segment for a block.
fn segment_bytes(bytes: u64) -> Option<u64> {
    match Pool::of(bytes) {
        Pool::Small => Some(SMALL_SEGMENT_BYTES),
        Pool::Large if bytes < OWN_SEGMENT_BYTES => Some(LARGE_SEGMENT_BYTES),
        Pool::Large => bytes.checked_next_multiple_of(OWN_SEGMENT_STEP_BYTES),
    }
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u64,
    pool: Pool,
    free: bool,
}

/// The allocator.
#[derive(Debug)]
pub struct CachingAllocator {
    driver: Driver,
    /// The size of each segment, by its start.
    segments: BTreeMap<u64, u64>,
    /// All blocks, held and free, by their start. Together they fill the segments.
    pieces: BTreeMap<u64, Piece>,
    /// Free blocks by pool, size and start.
    free: BTreeSet<(Pool, u64, u64)>,
    used_bytes: u64,
}

impl CachingAllocator {
    /// Makes an allocator without segments.
    #[must_use]
    pub const fn new(device_bytes: u64) -> Self {
        Self {
            driver: Driver::new(device_bytes),
            segments: BTreeMap::new(),
            pieces: BTreeMap::new(),
            free: BTreeSet::new(),
            used_bytes: 0,
        }
    }

    fn best_fit(&self, bytes: u64) -> Option<u64> {
        let pool = Pool::of(bytes);
        let (found, _, start) = *self.free.range((pool, bytes, 0)..).next()?;
        (found == pool).then_some(start)
    }

    /// Takes a new segment as one free block and returns its start. `None` if the device is full.
    fn grow(&mut self, bytes: u64) -> Option<u64> {
        let segment_bytes = segment_bytes(bytes)?;
        let start = self.driver.reserve(segment_bytes)?;
        self.segments.insert(start, segment_bytes);
        self.put(start, segment_bytes, Pool::of(bytes));
        Some(start)
    }

    /// Returns completely free segments to the driver.
    fn give_back(&mut self) {
        let segments = &self.segments;
        let whole = |&&(_, bytes, start): &&_| segments.get(&start) == Some(&bytes);
        let whole: Vec<_> = self.free.iter().filter(whole).copied().collect();
        for (pool, bytes, start) in whole {
            self.free.remove(&(pool, bytes, start));
            self.pieces.remove(&start);
            self.segments.remove(&start);
            self.driver.give_back(bytes);
        }
    }

    fn put(&mut self, start: u64, bytes: u64, pool: Pool) {
        self.pieces.insert(start, Piece { bytes, pool, free: true });
        self.free.insert((pool, bytes, start));
    }

    /// Removes a free block that is being joined to its neighbour. Returns its size.
    fn join(&mut self, start: u64) -> Option<u64> {
        let Piece { bytes, pool, free } = *self.pieces.get(&start)?;
        if !free {
            return None;
        }
        self.pieces.remove(&start);
        self.free.remove(&(pool, bytes, start));
        Some(bytes)
    }
}

impl Allocator for CachingAllocator {
    fn allocate(&mut self, bytes: u64) -> Option<Block> {
        let bytes = bytes.max(1).checked_next_multiple_of(STEP_BYTES)?;
        let start = self.best_fit(bytes).or_else(|| self.grow(bytes)).or_else(|| {
            self.give_back();
            self.grow(bytes)
        })?;
        let piece = self.pieces.get_mut(&start)?;
        let (found_bytes, pool) = (piece.bytes, piece.pool);
        piece.free = false;
        self.free.remove(&(pool, found_bytes, start));
        let left_bytes = found_bytes - bytes;
        let mut bytes = found_bytes;
        if pool.splits(left_bytes) {
            bytes -= left_bytes;
            self.pieces.insert(start, Piece { bytes, pool, free: false });
            self.put(start + bytes, left_bytes, pool);
        }
        self.used_bytes += bytes;
        Some(Block { start, bytes })
    }

    fn release(&mut self, block: Block) {
        let Block { mut start, mut bytes } = block;
        let Piece { pool, .. } = self.pieces.remove(&start).expect("the block came from here");
        self.used_bytes -= bytes;
        bytes += self.join(start + bytes).unwrap_or(0);
        if let Some((&before, piece)) = self.pieces.range(..start).next_back()
            && before + piece.bytes == start
            && let Some(before_bytes) = self.join(before)
        {
            start = before;
            bytes += before_bytes;
        }
        self.put(start, bytes, pool);
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

    const MIB: u64 = 1 << 20;

    #[test]
    fn blocks_come_from_segments_by_size() {
        for (bytes, block_bytes, segment_bytes) in [
            (1, 512, 2 * MIB),
            (513, 1024, 2 * MIB),
            (MIB, MIB, 2 * MIB),
            (MIB + 1, MIB + 512, 20 * MIB),
            (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB, 10 * MIB),
            // Less than 1 MiB is not split off.
            (11 * MIB, 12 * MIB, 12 * MIB),
            (11 * MIB - 512, 11 * MIB - 512, 12 * MIB),
        ] {
            let mut allocator = CachingAllocator::new(64 * MIB);
            assert_eq!(allocator.allocate(bytes).unwrap().bytes(), block_bytes, "{bytes}");
            assert_eq!(allocator.reserved_bytes(), segment_bytes, "{bytes}");
        }
    }

    #[test]
    fn the_smallest_block_that_fits_is_taken() {
        let mut allocator = CachingAllocator::new(1 << 30);
        let sizes = [30, 14, 20].map(|mib| mib * MIB);
        let blocks = sizes.map(|bytes| allocator.allocate(bytes).unwrap());
        let starts = blocks.each_ref().map(Block::start);
        blocks.into_iter().for_each(|block| allocator.release(block));
        let block = allocator.allocate(16 * MIB).unwrap();
        assert_eq!((block.start(), block.bytes()), (starts[2], 16 * MIB));
        // The remainder is the best fit for this request.
        assert_eq!(allocator.allocate(3 * MIB).unwrap().start(), starts[2] + 16 * MIB);
        assert_eq!(allocator.reserved_bytes(), 64 * MIB);
    }

    #[test]
    fn small_blocks_keep_out_of_large_segments() {
        let mut allocator = CachingAllocator::new(1 << 30);
        let large = allocator.allocate(4 * MIB).unwrap();
        allocator.release(large);
        allocator.allocate(MIB).unwrap();
        assert_eq!(allocator.reserved_bytes(), 22 * MIB);
    }

    #[test]
    fn a_full_device_takes_back_whole_segments_only() {
        let mut allocator = CachingAllocator::new(64 * MIB);
        let blocks = [0; 6].map(|_| allocator.allocate(10 * MIB).unwrap());
        let [a, b, rest @ ..] = blocks;
        allocator.release(a);
        allocator.release(b);
        // 20 MiB are free, but not in one piece. They go back to the driver, which frees memory for
        // this request.
        let joined = allocator.allocate(20 * MIB).unwrap();
        assert_eq!(allocator.reserved_bytes(), 60 * MIB);
        allocator.release(joined);
        let part = allocator.allocate(12 * MIB).unwrap();
        // 8 MiB are left in the segment, and 4 MiB in the device.
        assert_eq!(allocator.allocate(10 * MIB), None);
        assert_eq!(allocator.reserved_bytes(), 60 * MIB);
        allocator.release(part);
        rest.into_iter().for_each(|block| allocator.release(block));
        assert_eq!((allocator.free.len(), allocator.segments.len()), (5, 5));
    }

    #[test]
    fn impossible_sizes_are_refused() {
        let mut allocator = CachingAllocator::new(MIB);
        assert_eq!(allocator.allocate(1), None);
        assert_eq!(allocator.allocate(u64::MAX), None);
        assert_eq!(allocator.allocate(u64::MAX - (1 << 22)), None);
    }
}
