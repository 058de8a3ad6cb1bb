//! The map from the chunks of a plan to the chunks of the device.

#![expect(clippy::indexing_slicing, reason = "`skipped` is below the number of runs, or 0")]

use crate::backend::Chunks;
use bytemuck::{Pod, Zeroable};
use core::iter;

/// Consecutive chunks of a plan, and the device's chunks that they are. A plan numbers its chunks
/// from 0: first the chunks of its arena, then the chunks of pool 0, pool 1, ….
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct ChunkRun {
    /// The first of the plan's chunks.
    pub first: u64,
    /// The device's chunk that this is.
    pub device_first: u64,
    /// Number of chunks, not zero.
    pub count: u64,
}

/// All chunks of a plan, in consecutive runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChunkMap<'a>(pub(crate) &'a [ChunkRun]);

#[expect(
    clippy::arithmetic_side_effects,
    reason = "chunks have bytes, and no count exceeds the count that is missing"
)]
impl<'a> ChunkMap<'a> {
    /// The device's chunks of a range of the plan's chunks. O(log runs), and O(1) for each result.
    pub(crate) fn on_device(
        self,
        first: u64,
        count: u64,
    ) -> impl Iterator<Item = Chunks> + Clone + use<'a> {
        let Self(runs) = self;
        let skipped = runs.partition_point(|run| run.first <= first).saturating_sub(1);
        let (mut rest, mut next, mut missing) = (runs[skipped..].iter(), first, count);
        iter::from_fn(move || {
            if missing == 0 {
                return None;
            }
            let run = rest.next()?;
            let inside = next.checked_sub(run.first)?;
            let count = run.count.checked_sub(inside)?.min(missing);
            (next, missing) = (next.saturating_add(count), missing - count);
            Some(Chunks { first: run.device_first.saturating_add(inside), count })
        })
    }

    /// The device's bytes of a range of the plan's memory, as pairs of the first byte and the
    /// number of bytes.
    pub(crate) fn bytes_on_device(
        self,
        at: u64,
        bytes: u64,
        chunk_bytes: u64,
    ) -> impl Iterator<Item = (u64, u64)> + Clone + use<'a> {
        let first = at / chunk_bytes;
        let end = at.saturating_add(bytes).div_ceil(chunk_bytes);
        let (mut skipped, mut missing) = (at % chunk_bytes, bytes);
        self.on_device(first, end - first).map(move |chunks| {
            let from = chunks.first.saturating_mul(chunk_bytes).saturating_add(skipped);
            let there = chunks.count.saturating_mul(chunk_bytes).saturating_sub(skipped);
            let bytes = there.min(missing);
            (skipped, missing) = (0, missing - bytes);
            (from, bytes)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: [ChunkRun; 3] = [
        ChunkRun { first: 0, device_first: 7, count: 2 },
        ChunkRun { first: 2, device_first: 0, count: 3 },
        ChunkRun { first: 5, device_first: 9, count: 1 },
    ];

    #[test]
    fn chunks_are_found_run_by_run() {
        let found = |first, count| {
            let mut chunks = [(0, 0); 4];
            let mut len = 0;
            for Chunks { first, count } in ChunkMap(&RUNS).on_device(first, count) {
                chunks[len] = (first, count);
                len += 1;
            }
            (chunks, len)
        };
        assert_eq!(found(0, 6), ([(7, 2), (0, 3), (9, 1), (0, 0)], 3));
        assert_eq!(found(1, 2), ([(8, 1), (0, 1), (0, 0), (0, 0)], 2));
        assert_eq!(found(4, 0), ([(0, 0); 4], 0));
        // Chunks that the plan does not have are left out.
        assert_eq!(found(5, 4), ([(9, 1), (0, 0), (0, 0), (0, 0)], 1));
    }

    #[test]
    fn bytes_begin_and_end_within_chunks() {
        let ranges = ChunkMap(&RUNS).bytes_on_device(150, 100, 100);
        assert!(ranges.eq([(850, 50), (0, 50)]));
        assert!(ChunkMap(&RUNS).bytes_on_device(310, 20, 100).eq([(110, 20)]));
    }
}
