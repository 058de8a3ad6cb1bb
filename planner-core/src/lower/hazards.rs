//! The data hazards: the steps that each step must wait for so that it neither reads a value too
//! early nor overwrites one too soon.

#![expect(
    clippy::indexing_slicing,
    reason = "ids are those of the checked graph, and the arrays have an entry for each tensor"
)]

use super::{NEVER, Points};
use crate::graph::Graph;
use crate::pieces::Pieces;
use crate::plan::Step;
use crate::ranges::LastUses;
use crate::schedule::PerStream;
use crate::scratch::{OutOfScratch, Scratch};

/// The last step of each kind that used a tensor or a piece.
pub(super) struct Hazards<'a> {
    touched: &'a mut [i64],
    written: &'a mut [i64],
    /// The last launch that used the tensor before its last prefetch.
    touched_before_prefetch: &'a mut [i64],
    prefetched: LastUses<'a>,
    offloaded: LastUses<'a>,
    /// The last `host` step that used, and that wrote, each tensor.
    host_touched: &'a mut [i64],
    host_written: &'a mut [i64],
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
            prefetched: LastUses::new(pieces.len(), NEVER, scratch)?,
            offloaded: LastUses::new(pieces.len(), NEVER, scratch)?,
            host_touched: scratch.take(tensors, NEVER)?,
            host_written: scratch.take(tensors, NEVER)?,
        })
    }

    pub(super) fn start_iteration(&mut self, stream_steps: PerStream<u32>) {
        let PerStream([launches, prefetches, offloads, on_host]) = stream_steps.map(i64::from);
        for (points, steps) in [
            (&mut *self.touched, launches),
            (&mut *self.written, launches),
            (&mut *self.touched_before_prefetch, launches),
            (&mut *self.host_touched, on_host),
            (&mut *self.host_written, on_host),
        ] {
            for point in points {
                *point = point.saturating_sub(steps);
            }
        }
        for (uses, steps) in [(&mut self.prefetched, prefetches), (&mut self.offloaded, offloads)] {
            for point in uses.points() {
                *point = point.saturating_sub(steps);
            }
        }
        // A tensor without a launch before its last prefetch was last used two iterations back.
        for (before, &touched) in self.touched_before_prefetch.iter_mut().zip(&*self.touched) {
            if *before == NEVER {
                *before = touched.saturating_sub(launches);
            }
        }
    }

    /// The steps that a step must wait for, except for memory; for an evict, the steps that must
    /// have ended before its memory is free. Then records the step as done.
    pub(super) fn walk(
        &mut self,
        graph: &Graph<'_>,
        pieces: &Pieces<'_>,
        step: &Step,
        now: i64,
    ) -> Points {
        match *step {
            Step::Launch(launched) => {
                let (mut upload, mut download) = (NEVER, NEVER);
                for tensor in pieces.operands_by(launched) {
                    upload = upload.max(self.prefetched.last(pieces.whole(tensor)));
                    self.touched[tensor.index()] = now;
                }
                for tensor in graph.written_by(launched) {
                    download = download.max(self.offloaded.last(pieces.whole(tensor)));
                    self.written[tensor.index()] = now;
                }
                PerStream([NEVER, upload, download, NEVER])
            }
            Step::Host(op) => {
                let (mut upload, mut download) = (NEVER, NEVER);
                for &tensor in graph.operands_of(op) {
                    download = download.max(self.offloaded.last(pieces.whole(tensor)));
                    self.host_touched[tensor.index()] = now;
                }
                for &tensor in graph.writes(op) {
                    upload = upload.max(self.prefetched.last(pieces.whole(tensor)));
                    self.host_written[tensor.index()] = now;
                }
                PerStream([NEVER, upload, download, NEVER])
            }
            Step::Prefetch(part) => {
                let tensor = part.tensor.index();
                let launch = if pieces.arrives_beside(graph, part) {
                    self.touched_before_prefetch[tensor]
                } else {
                    self.touched[tensor]
                };
                self.touched_before_prefetch[tensor] = self.touched[tensor];
                let span = pieces.span(part);
                let download = self.offloaded.last(span);
                self.prefetched.note(span, now);
                PerStream([launch, NEVER, download, self.host_written[tensor]])
            }
            Step::Offload(part) => {
                let span = pieces.span(part);
                let upload = self.prefetched.last(span);
                self.offloaded.note(span, now);
                let tensor = part.tensor.index();
                PerStream([self.written[tensor], upload, NEVER, self.host_touched[tensor]])
            }
            Step::Evict(part) => {
                let span = pieces.span(part);
                let (upload, download) = (self.prefetched.last(span), self.offloaded.last(span));
                PerStream([self.touched[part.tensor.index()], upload, download, NEVER])
            }
        }
    }
}
