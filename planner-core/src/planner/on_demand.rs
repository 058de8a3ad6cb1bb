//! Least recently used, with prefetch: operands that an op misses are prefetched one op ahead, and
//! the least recently used tensor is evicted if memory is needed. A pager that has seen one
//! iteration would do the same.

use super::builder::Builder;
use super::cache::{self, Retention};
use super::list::{Lengths, Stuck};
use super::strategy::Rule;
use super::trials::Search;
use crate::scratch::Scratch;

/// The rule.
#[derive(Debug)]
pub(super) struct OnDemand;

impl Rule for OnDemand {
    fn write(
        &self,
        _: usize,
        builder: Builder<'_>,
        _: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        cache::write(builder, 1, scratch, |_, _, _| Retention::Cached)
    }
}
