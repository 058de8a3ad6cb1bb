//! Least recently used, with prefetch some ops ahead.

use super::builder::Builder;
use super::cache::{self, Retention};
use super::list::{Lengths, Stuck};
use super::strategy::{Parameter, Rule};
use super::trials::Search;
use crate::scratch::Scratch;

/// Parameters of the newcomer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Newcomer {
    /// Ops ahead of a use at which a tensor is fetched; 1 if it is not given.
    pub ahead: Option<u32>,
}

impl Rule for Newcomer {
    fn parameters(&self) -> &'static [Parameter] {
        const { &[Parameter::count("ahead", "ops")] }
    }

    fn set(&mut self, parameter: &str, value: u64) {
        if parameter == "ahead" {
            self.ahead = u32::try_from(value).ok();
        }
    }

    fn write(
        &self,
        _: usize,
        builder: Builder<'_>,
        _: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        cache::write(builder, self.ahead.unwrap_or(1), scratch, |_, _, _| Retention::Cached)
    }
}
