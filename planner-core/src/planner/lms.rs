//! Large Model Support (Le et al., TFLMS: Large Model Support in TensorFlow by Graph
//! Rewriting, 2018, and Automatic GPU Memory Management for Large Neural Models in TensorFlow,
//! ISMM 2019), as section 2 of the window paper describes it.
//!
//! A variable whose next use is more than `threshold` ops away is swapped out after an op
//! that touches it, and swapped in again `ahead` ops before that use. (The window paper has
//! the inequality the other way round; the authors' own text and program say "greater".)
//! Distances are counted along the cyclic list of ops, since that is the order they run in,
//! and every variable counts: states and inputs too, which come around once an iteration.
//! Memory that is short all the same is got from what was used least recently.
//!
//! Its authors tune both numbers by simulating memory and time; here, a grid of them is
//! tried in the timeline.

use super::builder::{Builder, Lengths, Stuck};
use super::cache::{self, Fate, distance};
use super::strategy::Lms;
use crate::scratch::{OutOfScratch, Scratch};

/// Thresholds that are tried, as fractions of the number of ops. With the first, nothing
/// leaves before memory is short.
const FRACTIONS: [u32; 6] = [1, 2, 4, 8, 16, 64];

/// Distances to swap in ahead that are tried.
const AHEAD: [u32; 4] = [1, 4, 16, 64];

/// All thresholds and distances to try. Those farther ahead than the threshold would bring
/// back at once what has just left.
pub(super) fn grid(lms: Lms, ops: usize) -> impl Iterator<Item = (u32, u32)> {
    let ops = u32::try_from(ops).unwrap_or(u32::MAX);
    let tried = FRACTIONS.into_iter().map(move |fraction| ops / fraction);
    let thresholds = tried.filter(move |&ops| ops > 0 && lms.threshold.is_none());
    lms.threshold.into_iter().chain(thresholds).flat_map(move |threshold| {
        let worth_trying = move |&ahead: &u32| ahead == 1 || ahead <= threshold;
        let tried = AHEAD.into_iter().filter(worth_trying).filter(move |_| lms.ahead.is_none());
        lms.ahead.into_iter().chain(tried).map(move |ahead| (threshold, ahead))
    })
}

pub(super) fn write(
    builder: Builder<'_>,
    threshold: u32,
    ahead: u32,
    scratch: &mut Scratch<'_>,
) -> Result<Result<Lengths, Stuck>, OutOfScratch> {
    let threshold = threshold.max(1);
    cache::write(builder, ahead.min(threshold), scratch, |builder, op, tensor| {
        match distance(builder, op, tensor) > threshold {
            true => Fate::Leaves,
            false => Fate::Cached,
        }
    })
}
