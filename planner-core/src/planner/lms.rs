//! Large Model Support (Le et al., TFLMS: Large Model Support in TensorFlow by Graph
//! Rewriting, 2018, and Automatic GPU Memory Management for Large Neural Models in TensorFlow,
//! ISMM 2019), as section 2 of the window paper describes it.
//!
//! A variable whose next use is more than `threshold` ops away is swapped out after an op that uses
//! it, and swapped in again `ahead` ops before that next use. (The window paper says "less"; the
//! authors' own text and program say "greater".) Distances are counted along the cyclic list of
//! ops, which is the order of execution. Every variable counts, also states and inputs: they are
//! used again in the next iteration. If memory is still short, the least recently used tensor is
//! evicted.
//!
//! The authors tune both parameters by simulating memory and time; here, a grid of values is tried
//! in the timeline.

use super::builder::Builder;
use super::cache::{self, Retention, distance};
use super::list::{Lengths, Stuck};
use super::memory::Memory;
use super::request::Task;
use super::strategy::{Parameter, Rule};
use super::trials::Search;
use crate::scratch::{OutOfScratch, Scratch};

/// Parameters of [`Strategy::Lms`](super::Strategy::Lms). For each parameter that is not given, several values are tried
/// in the timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Lms {
    /// A tensor stays if its next use is at most this many ops away; at least 1.
    pub threshold: Option<u32>,
    /// The number of ops ahead of the next use at which a tensor is swapped in; at most the
    /// threshold.
    pub ahead: Option<u32>,
}

impl Lms {
    /// The default parameters.
    #[must_use]
    pub const fn new() -> Self {
        Self { threshold: None, ahead: None }
    }
}

setters!(Lms {
    threshold: u32 as Some => with_threshold,
    ahead: u32 as Some => with_ahead,
});

impl Rule for Lms {
    fn parameters(&self) -> &'static [Parameter] {
        const { &[Parameter::count("threshold", "ops"), Parameter::count("ahead", "ops")] }
    }

    fn set(&mut self, parameter: &str, value: u64) {
        let value = u32::try_from(value).ok();
        match parameter {
            "threshold" => self.threshold = value,
            "ahead" => self.ahead = value,
            _ => {}
        }
    }

    fn lists(&self, task: &Task<'_>) -> usize {
        grid(*self, task.sequence.len()).count()
    }

    /// The time of the uploads.
    fn least_ns(
        &self,
        list: usize,
        (task, memory): (&Task<'_>, &Memory<'_>),
        scratch: &mut Scratch<'_>,
    ) -> Result<u64, OutOfScratch> {
        let Some((threshold, _)) = grid(*self, task.sequence.len()).nth(list) else { return Ok(0) };
        cache::uploads_ns(task, memory, |_, distance| leaves(distance, threshold), scratch)
    }

    fn write(
        &self,
        list: usize,
        builder: Builder<'_>,
        _: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        let parameters = grid(*self, builder.task.sequence.len()).nth(list);
        let (threshold, ahead) = parameters.ok_or(Stuck::NoMemory)?;
        write(builder, threshold, ahead, scratch)
    }
}

/// The thresholds that are tried, as fractions of the number of ops. With the first one, no tensor
/// leaves before memory is short.
const FRACTIONS: [u32; 6] = [1, 2, 4, 8, 16, 64];

/// The distances of prefetches that are tried.
const AHEAD: [u32; 4] = [1, 4, 16, 64];

/// All thresholds and distances to try. A distance above the threshold would prefetch a tensor that
/// has just left.
fn grid(lms: Lms, ops: usize) -> impl Iterator<Item = (u32, u32)> {
    let ops = u32::try_from(ops).unwrap_or(u32::MAX);
    let tried = FRACTIONS.into_iter().filter_map(move |fraction| ops.checked_div(fraction));
    let thresholds = tried.filter(move |&ops| ops > 0 && lms.threshold.is_none());
    lms.threshold.into_iter().chain(thresholds).flat_map(move |threshold| {
        let worth_trying = move |&ahead: &u32| ahead == 1 || ahead <= threshold;
        let tried = AHEAD.into_iter().filter(worth_trying).filter(move |_| lms.ahead.is_none());
        lms.ahead.into_iter().chain(tried).map(move |ahead| (threshold, ahead))
    })
}

fn write(
    builder: Builder<'_>,
    threshold: u32,
    ahead: u32,
    scratch: &mut Scratch<'_>,
) -> Result<Lengths, Stuck> {
    let ahead = ahead.min(threshold.max(1));
    cache::write(builder, ahead, scratch, |builder, op, tensor| {
        match leaves(distance(builder, op, tensor), threshold) {
            true => Retention::Leaves,
            false => Retention::Cached,
        }
    })
}

/// Whether a tensor is swapped out, given the number of ops to its next use.
fn leaves(distance: u32, threshold: u32) -> bool {
    distance > threshold.max(1)
}
