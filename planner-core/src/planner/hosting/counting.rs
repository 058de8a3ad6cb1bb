//! Searches for the best number of ops of each kind on the host.

use super::choice::{Choice, WHOLE};
use super::kinds::{Counts, Places};
use super::search::Search;
use crate::planner::best_plan::shorter;
use crate::planner::error::PlanningError;
use crate::planner::request::Output;
use crate::scratch::Scratch;

/// The shares of the highest ranks of kinds from which counts are changed.
const RANK_SHARES: [u32; 3] = [WHOLE / 4, WHOLE / 2, WHOLE / 4 * 3];

/// Counts are changed by the same number of ops again if this fraction of the period, given by its
/// denominator, was gained.
const GAIN: u64 = 1000;

/// Counts, with the period of their sample.
type Sampled = (u64, Counts, Places);

impl Search<'_> {
    /// Samples counts of the kinds of ops, from shares of the highest ranks and from the best choice
    /// on. The number of lists limits the number of samples.
    pub(super) fn count_kinds(
        &mut self,
        lists: usize,
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let kinds = &self.some.middles.kinds;
        if !kinds.differ() {
            return Ok(());
        }
        let (_, start) = self.kept[0];
        let like_start = self.some.with(start, scratch, |task, _| {
            Ok(kinds.counts_of(task.sequence.host_steps().iter().map(|step| step.op)))
        })?;
        let shares = RANK_SHARES.map(|share| kinds.counts(share));
        let mut best = (u64::MAX, like_start, Places::Even);
        for counts in [like_start].into_iter().chain(shares) {
            for places in Places::ALL {
                best = best.min(self.sample_counts((counts, places), best.0, output, scratch)?);
            }
        }
        let largest = kinds.sizes.iter().copied().max().unwrap_or(0);
        let (mut step, mut left) = (largest.div_ceil(4), lists / 2);
        while step > 0 && left > 0 {
            let changed = self.change_counts(best, step, &mut left, output, scratch)?;
            step = if changed.0 < shorter(best.0, GAIN) { step } else { step / 2 };
            best = changed;
        }
        Ok(())
    }

    /// Changes the count of one kind after the other by `step`, and keeps the best counts. If no
    /// change is better, exchanges ops of one kind for ops of another.
    fn change_counts(
        &mut self,
        start: Sampled,
        step: u32,
        left: &mut usize,
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Sampled, PlanningError> {
        let kinds = &self.some.middles.kinds;
        let mut best = start;
        for exchanges in [false, true] {
            if best.0 < start.0 {
                break;
            }
            for change in kinds.changes(exchanges) {
                if *left == 0 {
                    return Ok(best);
                }
                let (_, counts, places) = best;
                let counts = kinds.changed(counts, change, step);
                best = best.min(self.sample_counts((counts, places), best.0, output, scratch)?);
                *left = left.saturating_sub(1);
            }
        }
        Ok(best)
    }

    fn sample_counts(
        &mut self,
        (counts, places): (Counts, Places),
        below_ns: u64,
        output: &mut Output<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Sampled, PlanningError> {
        let sampled_ns = self.sample(Choice::Counts(counts, places), below_ns, output, scratch)?;
        Ok((sampled_ns, counts, places))
    }
}
