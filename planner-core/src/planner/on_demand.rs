//! Least recently used, with prefetch: what an op misses is fetched one op ahead, and the
//! least recently used leaves when memory is needed. A pager that had seen one iteration would do
//! the same.

use super::builder::Builder;
use super::cache::{self, Fate};
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
        cache::write(builder, 1, scratch, |_, _, _| Fate::Cached)
    }
}
