//! Least recently used, with prefetch: what an op misses is fetched one op ahead, and what
//! was not used for longest makes room. What a pager would do that had seen one iteration.

use super::builder::{Builder, Lengths, Stuck};
use super::cache::{self, Fate};
use crate::scratch::{OutOfScratch, Scratch};

pub(super) fn write(
    builder: Builder<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Result<Lengths, Stuck>, OutOfScratch> {
    cache::write(builder, 1, scratch, |_, _, _| Fate::Cached)
}
