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
use crate::schedule::{PerStream, Stream};
use crate::scratch::{OutOfScratch, Scratch};

/// The last launch on each of [`Stream::OF_LAUNCHES`].
type Launches = [i64; 2];

/// The last step of each kind that used a tensor or a piece.
pub(super) struct Hazards<'a> {
    touched: &'a mut [Launches],
    written: &'a mut [Launches],
    /// The last launches that used the tensor before its last prefetch.
    touched_before_prefetch: &'a mut [Launches],
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
            touched: scratch.take(tensors, [NEVER; 2])?,
            written: scratch.take(tensors, [NEVER; 2])?,
            touched_before_prefetch: scratch.take(tensors, [NEVER; 2])?,
            prefetched: LastUses::new(pieces.len(), NEVER, scratch)?,
            offloaded: LastUses::new(pieces.len(), NEVER, scratch)?,
            host_touched: scratch.take(tensors, NEVER)?,
            host_written: scratch.take(tensors, NEVER)?,
        })
    }

    pub(super) fn start_iteration(&mut self, stream_steps: PerStream<u32>) {
        let PerStream([launches, prefetches, offloads, on_host, collectives]) =
            stream_steps.map(i64::from);
        let earlier = |[compute, network]: Launches| {
            [compute.saturating_sub(launches), network.saturating_sub(collectives)]
        };
        for points in [&mut *self.touched, &mut *self.written, &mut *self.touched_before_prefetch] {
            for point in points {
                *point = earlier(*point);
            }
        }
        for points in [&mut *self.host_touched, &mut *self.host_written] {
            for point in points {
                *point = point.saturating_sub(on_host);
            }
        }
        for (uses, steps) in [(&mut self.prefetched, prefetches), (&mut self.offloaded, offloads)] {
            for point in uses.points() {
                *point = point.saturating_sub(steps);
            }
        }
        // A tensor without a launch before its last prefetch was last used two iterations back.
        for (before, &touched) in self.touched_before_prefetch.iter_mut().zip(&*self.touched) {
            for (before, touched) in before.iter_mut().zip(earlier(touched)) {
                if *before == NEVER {
                    *before = touched;
                }
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
                let is_collective = graph.op(launched.op).collective;
                let own = usize::from(is_collective);
                // The launches on the other stream.
                let (other, mut beside) = (usize::from(!is_collective), NEVER);
                let (mut upload, mut download) = (NEVER, NEVER);
                for tensor in graph.written_by(launched) {
                    download = download.max(self.offloaded.last(pieces.whole(tensor)));
                    beside = beside.max(self.touched[tensor.index()][other]);
                    self.written[tensor.index()][own] = now;
                }
                for tensor in pieces.operands_by(launched) {
                    upload = upload.max(self.prefetched.last(pieces.whole(tensor)));
                    beside = beside.max(self.written[tensor.index()][other]);
                    self.touched[tensor.index()][own] = now;
                }
                let mut needs = PerStream([NEVER, upload, download, NEVER, NEVER]);
                needs[Stream::OF_LAUNCHES[other]] = beside;
                needs
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
                PerStream([NEVER, upload, download, NEVER, NEVER])
            }
            Step::Prefetch(part) => {
                let tensor = part.tensor.index();
                let [compute, network] = if pieces.arrives_beside(graph, part) {
                    self.touched_before_prefetch[tensor]
                } else {
                    self.touched[tensor]
                };
                self.touched_before_prefetch[tensor] = self.touched[tensor];
                let span = pieces.span(part);
                let download = self.offloaded.last(span);
                self.prefetched.note(span, now);
                PerStream([compute, NEVER, download, self.host_written[tensor], network])
            }
            Step::Offload(part) => {
                let span = pieces.span(part);
                let upload = self.prefetched.last(span);
                self.offloaded.note(span, now);
                let tensor = part.tensor.index();
                let [compute, network] = self.written[tensor];
                PerStream([compute, upload, NEVER, self.host_touched[tensor], network])
            }
            Step::Evict(part) => {
                let span = pieces.span(part);
                let (upload, download) = (self.prefetched.last(span), self.offloaded.last(span));
                let [compute, network] = self.touched[part.tensor.index()];
                PerStream([compute, upload, download, NEVER, network])
            }
        }
    }
}
