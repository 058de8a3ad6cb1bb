//! Vector clocks, which tell the waits that other waits imply.

#![expect(
    clippy::indexing_slicing,
    reason = "points are those of scheduled steps, so slots lie within the entries"
)]

use super::{NEVER, Points, later, seen_later};
use crate::schedule::{PerStream, Scheduled, Stream, Wait};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

/// For each step, the last step of every stream that is known to have ended when the step has.
pub(super) struct Clocks<'a> {
    /// Ordered by iteration, then by stream.
    ended: &'a mut [Points],
    /// 1 if a later iteration reads a step's clock, else 0.
    outlives: &'a mut [u8],
    stream_steps: PerStream<u32>,
    /// The index at which the steps of each stream begin, and the number of steps of all streams.
    first: PerStream<usize>,
    steps: usize,
    /// The number of iterations after which the needs repeat.
    iterations: u32,
}

impl<'a> Clocks<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<Points>(limits.entries()).saturating_add(words::<u8>(limits.entries()))
    }

    /// Computes the least fixed point over the cyclic list. It sweeps until no clock changes that a
    /// later iteration reads: one sweep more than the number of iteration borders that the longest
    /// chain of waits crosses.
    pub(super) fn new(
        out: &[Scheduled],
        stream_steps: PerStream<u32>,
        iterations: u32,
        needs: &[Points],
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let ended = scratch.take(out.len(), PerStream::all(NEVER))?;
        let outlives = scratch.take(out.len(), 0u8)?;
        let (first, steps) = stream_steps.first_indices();
        let mut clocks = Self { ended, outlives, stream_steps, first, steps, iterations };
        clocks.sweep(out, needs);
        while clocks.sweep(out, needs) {}
        Ok(clocks)
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the slots of all iterations are those of `ended`"
    )]
    fn slot(&self, iteration: u32, stream: Stream, index: u32) -> usize {
        iteration as usize * self.steps + self.first[stream] + index as usize
    }

    /// The iteration that lies `iterations_back` before another one.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "there is at least one iteration, and the result is below their number"
    )]
    fn earlier(&self, iteration: u32, iterations_back: u32) -> u32 {
        match self.iterations {
            1 => 0,
            n => iteration
                .checked_sub(iterations_back % n)
                .unwrap_or_else(|| iteration + (n - iterations_back % n)),
        }
    }

    /// The number of entries, and of needs, of an iteration.
    fn entries(&self, out: &[Scheduled]) -> usize {
        out.len().checked_div(self.iterations as usize).unwrap_or(0).max(1)
    }

    fn sweep(&mut self, out: &[Scheduled], needs: &[Points]) -> bool {
        let entries = self.entries(out);
        let mut changed = false;
        for (iteration, (out, needs)) in (0..).zip(out.chunks(entries).zip(needs.chunks(entries))) {
            for (entry, needs) in out.iter().zip(needs) {
                if let Some(stream) = entry.stream() {
                    changed |= self.step(iteration, stream, entry.index(), needs);
                }
            }
        }
        changed
    }

    /// Updates the clock of one step. Returns whether it changed and a later iteration reads it.
    #[inline]
    fn step(&mut self, iteration: u32, stream: Stream, index: u32, needs: &Points) -> bool {
        let mut clock = self.before(iteration, stream, index);
        self.mark(iteration, stream, before(index));
        for awaited in Stream::ALL {
            let need = needs[awaited];
            if awaited != stream && clock[awaited] < need {
                clock = later(clock, self.at_point(iteration, awaited, need));
                self.mark(iteration, awaited, need);
            }
        }
        clock[stream] = i64::from(index);
        let slot = self.slot(iteration, stream, index);
        let changed = self.outlives[slot] == 1 && self.ended[slot] != clock;
        self.ended[slot] = clock;
        changed
    }

    /// Records that an iteration reads a point of an earlier iteration.
    fn mark(&mut self, iteration: u32, stream: Stream, point: i64) {
        if point < 0 {
            let Wait { index, iterations_back } = self.wait(stream, point);
            let slot = self.slot(self.earlier(iteration, iterations_back), stream, index);
            self.outlives[slot] = 1;
        }
    }

    /// The steps that have ended when the previous step of a stream has.
    fn before(&self, iteration: u32, stream: Stream, index: u32) -> Points {
        self.at_point(iteration, stream, before(index))
    }

    /// The steps that have ended when a point is reached.
    fn at_point(&self, iteration: u32, stream: Stream, point: i64) -> Points {
        if point == NEVER {
            return PerStream::all(NEVER);
        }
        let Wait { index, iterations_back } = self.wait(stream, point);
        let ended = self.ended[self.slot(self.earlier(iteration, iterations_back), stream, index)];
        let mut clock = match iterations_back {
            0 => ended,
            iterations_back => seen_later(ended, i64::from(iterations_back), self.stream_steps),
        };
        clock[stream] = clock[stream].max(point);
        clock
    }

    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "no point is the least number, since that is `NEVER`, and numbers of steps have \
                  32 bits"
    )]
    fn wait(&self, stream: Stream, point: i64) -> Wait {
        let steps = i64::from(self.stream_steps[stream]);
        // Nearly all points lie in this iteration or the last one, and division is slow.
        if point >= -steps {
            let iterations_back = u32::from(point < 0);
            return Wait {
                index: (point + i64::from(iterations_back) * steps) as u32,
                iterations_back,
            };
        }
        match u32::try_from(-point.div_euclid(steps)) {
            Ok(iterations_back) => Wait { index: point.rem_euclid(steps) as u32, iterations_back },
            // A later point than the one asked for is safe, and this one still lies further back
            // than any step.
            Err(_) => Wait { index: 0, iterations_back: u32::MAX },
        }
    }

    /// Writes the waits that no other wait implies.
    pub(super) fn reduce(&self, out: &mut [Scheduled], needs: &[Points]) {
        let entries = self.entries(out);
        for (iteration, (out, needs)) in
            (0..).zip(out.chunks_mut(entries).zip(needs.chunks(entries)))
        {
            for (entry, needs) in out.iter_mut().zip(needs) {
                self.reduce_step(iteration, entry, needs);
            }
        }
    }

    #[inline]
    fn reduce_step(&self, iteration: u32, entry: &mut Scheduled, needs: &Points) {
        let own = entry.stream();
        let before = own
            .map_or(PerStream::all(NEVER), |stream| self.before(iteration, stream, entry.index()));
        for stream in Stream::ALL {
            let need = needs[stream];
            let implied = Some(stream) == own
                || need <= before[stream]
                || Stream::ALL.into_iter().any(|other| {
                    other != stream
                        && Some(other) != own
                        && self.at_point(iteration, other, needs[other])[stream] >= need
                });
            entry.set_wait(stream, (!implied).then(|| self.wait(stream, need)));
        }
    }
}

/// The point before a step of the current iteration.
fn before(index: u32) -> i64 {
    i64::from(index).saturating_sub(1)
}
