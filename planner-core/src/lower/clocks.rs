//! Vector clocks: which waits others imply.

use super::{NEVER, Points, later, seen_later};
use crate::schedule::{Scheduled, Stream, Wait};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

/// For each step, the last step of every stream that is known to have ended when it has.
pub(super) struct Clocks<'a> {
    ///
    /// One stream behind the other.
    ended: &'a mut [Points],
    /// Whether a later iteration looks at a step's clock.
    outlives: &'a mut [u8],
    stream_steps: [u32; 3],
}

impl<'a> Clocks<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<Points>(limits.steps) + words::<u8>(limits.steps)
    }

    /// The least fixed point over the cyclic list: sweeps until nothing changes that a later
    /// iteration looks at, one more than the iteration borders that the longest chain of
    /// waits crosses.
    pub(super) fn new(
        out: &[Scheduled],
        stream_steps: [u32; 3],
        needs: &[Points],
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let ended = scratch.take(out.len(), [NEVER; 3])?;
        let outlives = scratch.take(out.len(), 0u8)?;
        let mut clocks = Self { ended, outlives, stream_steps };
        clocks.sweep(out, needs);
        while clocks.sweep(out, needs) {}
        Ok(clocks)
    }

    fn slot(&self, stream: usize, index: u32) -> usize {
        let [launches, prefetches, _] = self.stream_steps;
        let first = [0, launches, launches + prefetches][stream];
        first as usize + index as usize
    }

    fn sweep(&mut self, out: &[Scheduled], needs: &[Points]) -> bool {
        let mut changed = false;
        for (entry, needs) in out.iter().zip(needs) {
            let Some(stream) = entry.stream else { continue };
            let mut clock = self.before(stream, entry.index);
            self.mark(stream as usize, i64::from(entry.index) - 1);
            for (s, &need) in needs.iter().enumerate() {
                if s != stream as usize && clock[s] < need {
                    clock = later(clock, self.at_point(s, need));
                    self.mark(s, need);
                }
            }
            clock[stream as usize] = i64::from(entry.index);
            let slot = self.slot(stream as usize, entry.index);
            changed |= self.outlives[slot] == 1 && self.ended[slot] != clock;
            self.ended[slot] = clock;
        }
        changed
    }

    /// Notes that this iteration looks at a point of an earlier one.
    fn mark(&mut self, stream: usize, point: i64) {
        if point < 0 {
            let slot = self.slot(stream, self.wait(stream, point).index);
            self.outlives[slot] = 1;
        }
    }

    /// What has ended when the previous step of a stream has.
    fn before(&self, stream: Stream, index: u32) -> Points {
        self.at_point(stream as usize, i64::from(index) - 1)
    }

    /// What has ended when a point is reached.
    fn at_point(&self, stream: usize, point: i64) -> Points {
        if point == NEVER {
            return [NEVER; 3];
        }
        let wait = self.wait(stream, point);
        let ended = self.ended[self.slot(stream, wait.index)];
        let mut clock = match wait.laps {
            0 => ended,
            laps => seen_later(ended, i64::from(laps), self.stream_steps),
        };
        clock[stream] = clock[stream].max(point);
        clock
    }

    #[inline]
    fn wait(&self, stream: usize, point: i64) -> Wait {
        let steps = i64::from(self.stream_steps[stream]);
        // Nearly all points lie in this iteration or the last, and division is slow.
        if point >= -steps {
            let laps = u32::from(point < 0);
            return Wait { index: (point + i64::from(laps) * steps) as u32, laps };
        }
        match u32::try_from(-point.div_euclid(steps)) {
            Ok(laps) => Wait { index: point.rem_euclid(steps) as u32, laps },
            // Later than asked for, so safe, and still further back than anyone can see.
            Err(_) => Wait { index: 0, laps: u32::MAX },
        }
    }

    /// Writes down the waits that no other wait implies.
    pub(super) fn reduce(&self, out: &mut [Scheduled], needs: &[Points]) {
        for (entry, needs) in out.iter_mut().zip(needs) {
            let stream = entry.stream;
            let own = stream.map(|stream| stream as usize);
            let before = stream.map_or([NEVER; 3], |stream| self.before(stream, entry.index));
            for (s, &need) in needs.iter().enumerate() {
                let implied = Some(s) == own
                    || need <= before[s]
                    || needs.iter().enumerate().any(|(other, &point)| {
                        other != s && Some(other) != own && self.at_point(other, point)[s] >= need
                    });
                entry.waits[s] = (!implied).then(|| self.wait(s, need));
            }
        }
    }
}
