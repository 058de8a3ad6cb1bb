//! What each step must wait for so that no value is read too early or overwritten too soon.

use super::{NEVER, Points};
use crate::graph::Graph;
use crate::pieces::Pieces;
use crate::plan::Step;
use crate::scratch::{OutOfScratch, Scratch};
use core::ops::Range;

/// The last step of each sort that touched a tensor or a piece.
pub(super) struct Hazards<'a> {
    touched: &'a mut [i64],
    written: &'a mut [i64],
    /// The last launch that touched the tensor before its last prefetch.
    touched_before_prefetch: &'a mut [i64],
    prefetched: &'a mut [i64],
    offloaded: &'a mut [i64],
}

impl<'a> Hazards<'a> {
    pub(super) fn new(
        graph: &Graph<'_>,
        pieces: &Pieces<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        Ok(Self {
            touched: scratch.take(tensors, NEVER)?,
            written: scratch.take(tensors, NEVER)?,
            touched_before_prefetch: scratch.take(tensors, NEVER)?,
            prefetched: scratch.take(pieces.len(), NEVER)?,
            offloaded: scratch.take(pieces.len(), NEVER)?,
        })
    }

    pub(super) fn start_lap(&mut self, stream_steps: [u32; 3]) {
        let [launches, prefetches, offloads] = stream_steps.map(i64::from);
        for (points, steps) in [
            (&mut *self.touched, launches),
            (&mut *self.written, launches),
            (&mut *self.touched_before_prefetch, launches),
            (&mut *self.prefetched, prefetches),
            (&mut *self.offloaded, offloads),
        ] {
            for point in points {
                *point = point.saturating_sub(steps);
            }
        }
        // What no launch touched before its last prefetch was touched two laps back.
        for (before, &touched) in self.touched_before_prefetch.iter_mut().zip(&*self.touched) {
            if *before == NEVER {
                *before = touched.saturating_sub(launches);
            }
        }
    }

    /// What a step must wait for (for an evict: what must have ended before its memory is
    /// free), memory apart. Then the step counts as done.
    pub(super) fn walk(
        &mut self,
        graph: &Graph<'_>,
        pieces: &Pieces<'_>,
        step: &Step,
        now: i64,
    ) -> Points {
        match *step {
            Step::Launch(op) => {
                let (mut upload, mut download) = (NEVER, NEVER);
                for &tensor in graph.operands_of(op) {
                    upload = upload.max(last(self.prefetched, pieces.of(tensor)));
                    self.touched[tensor.index()] = now;
                }
                for &tensor in graph.writes(op) {
                    download = download.max(last(self.offloaded, pieces.of(tensor)));
                    self.written[tensor.index()] = now;
                }
                [NEVER, upload, download]
            }
            Step::Prefetch(part) => {
                let tensor = part.tensor.index();
                let range = pieces.of_part(part);
                let launch = if pieces.arrives_beside(graph, part) {
                    self.touched_before_prefetch[tensor]
                } else {
                    self.touched[tensor]
                };
                self.touched_before_prefetch[tensor] = self.touched[tensor];
                let download = last(self.offloaded, range.clone());
                self.prefetched[range].fill(now);
                [launch, NEVER, download]
            }
            Step::Offload(part) => {
                let range = pieces.of_part(part);
                let upload = last(self.prefetched, range.clone());
                self.offloaded[range].fill(now);
                [self.written[part.tensor.index()], upload, NEVER]
            }
            Step::Evict(part) => {
                let range = pieces.of_part(part);
                let upload = last(self.prefetched, range.clone());
                [self.touched[part.tensor.index()], upload, last(self.offloaded, range)]
            }
        }
    }
}

fn last(points: &[i64], range: Range<usize>) -> i64 {
    points[range].iter().copied().max().unwrap_or(NEVER)
}
