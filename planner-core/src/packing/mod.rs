//! Offsets by lifetime: items that are never alive at the same time may share bytes.
//!
//! Finding the lowest packing is NP-hard (dynamic storage allocation; Garey & Johnson, SR2). Three
//! methods are tried in turn, each only while the packing is higher than its load: first fit in the
//! order of starts, largest first, and a search. `docs/research/packing.md` describes them and has figures.

mod by_size;
mod first_fit;
mod search;
mod spans;
mod stack;

use crate::scratch::{OutOfScratch, Scratch, words};
use spans::Spans;

/// Bytes with a lifetime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The first instant at which it is alive.
    pub first: u32,
    /// The last instant at which it is alive. If it is before the first, the item lives from
    /// `first` to the last instant and from instant 0 to `last`: time is a circle.
    pub last: u32,
    /// The size in bytes.
    pub bytes: u64,
}

/// The quality of a packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// The end of the highest item.
    pub height_bytes: u64,
    /// The most bytes that are alive at one time: no packing is lower.
    pub load_bytes: u64,
}

/// Larger numbers of items are not searched, whatever the effort: the search takes scratch for each
/// item, and among thousands of items its steps end before it has changed much.
const MOST_SEARCHED: usize = 4096;

/// Words of scratch that [`pack`] needs: at most 14 for each item, and 300.
#[must_use]
pub const fn scratch_words(items: usize) -> usize {
    let first_fit = first_fit::scratch_words(items);
    let by_size = words::<u64>(items).saturating_add(by_size::scratch_words(items));
    let searched = if items < MOST_SEARCHED { items } else { MOST_SEARCHED };
    let search = search::scratch_words(searched);
    Spans::scratch_words(items).saturating_add(larger(first_fit, larger(by_size, search)))
}

const fn larger(one: usize, other: usize) -> usize {
    if one > other { one } else { other }
}

/// Returns the number of steps that packs this many items well in at most tens of milliseconds.
#[must_use]
pub const fn default_steps(items: usize) -> u64 {
    // About 30 ms. `docs/research/packing.md` compares this effort with a higher one.
    const MOST: u64 = 1 << 25;
    let steps = (items as u64).saturating_mul(items as u64).saturating_mul(512);
    if steps < MOST { steps } else { MOST }
}

/// Assigns an offset to each item so that no two items that are alive at the same time overlap, and
/// keeps the height low. Items without an entry in `offsets` are ignored.
///
/// A step visits one item in one section of time and takes about a nanosecond. Without steps the
/// method is first fit, O(n log n), and somewhat more if memory is in thousands of fragments. More
/// steps never make a higher packing. The same items always get the same offsets. Offsets are sums
/// of sizes, so they have the alignment of the sizes. If the sum of the sizes exceeds 64 bits, the
/// offsets are meaningless.
///
/// # Errors
/// Too little scratch.
pub fn pack(
    items: impl Iterator<Item = Item> + Clone,
    most_steps: u64,
    offsets: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Result<Packing, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let spans = Spans::new(items, offsets.len(), &mut scratch)?;
    let load_bytes = spans.most_load_bytes();
    let mut height_bytes = first_fit::pack(&spans, offsets, &mut scratch)?;
    let by_size_steps = by_size::most_steps(spans.len());
    if height_bytes > load_bytes && by_size_steps <= most_steps {
        let mut scratch = scratch.reborrow();
        let by_size = scratch.take(spans.len(), 0)?;
        let by_size_bytes = by_size::pack(&spans, by_size, &mut scratch)?;
        if by_size_bytes < height_bytes {
            offsets.copy_from_slice(by_size);
            height_bytes = by_size_bytes;
        }
    }
    let steps = most_steps.saturating_sub(by_size_steps);
    if height_bytes > load_bytes && spans.len() <= MOST_SEARCHED {
        height_bytes = search::improve(spans, height_bytes, steps, offsets, &mut scratch)?;
    }
    Ok(Packing { height_bytes, load_bytes })
}
