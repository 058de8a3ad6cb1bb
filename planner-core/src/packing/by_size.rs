//! Largest first: each item gets the lowest offset that fits.

#![expect(
    clippy::indexing_slicing,
    reason = "items are below the number of spans, which the arrays have entries for"
)]

use super::spans::Spans;
use crate::scratch::{OutOfScratch, Scratch, words};
use core::cmp::Reverse;

pub(super) const fn scratch_words(items: usize) -> usize {
    words::<u32>(items).saturating_mul(2)
}

/// The most steps that [`pack`] takes.
pub(super) const fn most_steps(items: usize) -> u64 {
    (items as u64).saturating_mul(items as u64) / 2
}

/// Assigns each item, from the largest to the smallest, the lowest offset at which it overlaps no
/// earlier item. Returns the height. O(n²).
#[expect(clippy::arithmetic_side_effects, reason = "`at` is a position among the placed items")]
pub(super) fn pack(
    spans: &Spans<'_>,
    offsets: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let order = scratch.take(spans.len(), 0u32)?;
    // The items placed so far, by offset.
    let placed = scratch.take(spans.len(), 0u32)?;
    order.iter_mut().zip(spans.ids()).for_each(|(slot, item)| *slot = item);
    order.sort_unstable_by_key(|&item| (Reverse(spans.bytes(item)), item));
    for (count, &item) in order.iter().enumerate() {
        let (span, bytes) = (spans.get(item), spans.bytes(item));
        let mut offset = 0u64;
        for &other in &placed[..count] {
            let at = offsets[other as usize];
            if at >= offset.saturating_add(bytes) {
                break;
            }
            if spans.get(other).meets(span) {
                offset = offset.max(at.saturating_add(spans.bytes(other)));
            }
        }
        offsets[item as usize] = offset;
        let at = placed[..count].partition_point(|&other| offsets[other as usize] < offset);
        placed.copy_within(at..count, at + 1);
        placed[at] = item;
    }
    Ok(spans.height_bytes(offsets))
}
