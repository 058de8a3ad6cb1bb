//! Proves that every use of a tensor's memory, on the device and on the host, is ordered after the
//! uses it conflicts with (`docs/format.md`, 4).

#![expect(
    clippy::indexing_slicing,
    reason = "ids are those of the checked graph, and the arrays have an entry for each tensor and \
              step"
)]

use super::clocks::{Clocks, ListedStep};
use super::{NEVER, Points, VerifyError};
use crate::graph::{Graph, Launched, OpId, TensorId};
use crate::pieces::Pieces;
use crate::plan::{Part, Step};
use crate::ranges::LastUses;
use crate::schedule::{PerStream, Stream};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        words::<i64>(limits.tensors).saturating_mul(8),
        LastUses::scratch_words(limits).saturating_mul(2),
        words::<Points>(limits.steps),
    ])
}

/// The last launch on the compute stream, and the last one on the network stream.
type Launches = [i64; 2];

/// The last uses of each tensor, by kind of use.
struct Uses<'a> {
    /// The last launches that used the tensor's device memory.
    launched: &'a mut [Launches],
    /// The last launches that wrote the tensor.
    written: &'a mut [Launches],
    /// The last launches that used the tensor before its last prefetch. An input has two address
    /// ranges, so its next prefetch overwrites the copy that these launches used.
    launched_before_arrival: &'a mut [Launches],
    /// The last prefetch, which writes the device copy and reads the host copy.
    uploaded: LastUses<'a>,
    /// The last offload, which reads the device copy and writes the host copy.
    downloaded: LastUses<'a>,
    /// The last op on the host that used the host copy, and the last that wrote it.
    used_on_host: &'a mut [i64],
    written_on_host: &'a mut [i64],
}

/// Checks every step of the iterations after a first one. Returns, for each evict, the steps that
/// must have ended before its memory is free.
pub(super) fn check<'a>(
    graph: &Graph<'_>,
    pieces: &Pieces<'_>,
    clocks: &Clocks<'_>,
    scratch: &mut Scratch<'a>,
) -> Result<&'a [Points], VerifyError> {
    let steps = clocks.steps().count();
    let freed = scratch.take(steps, PerStream::all(NEVER))?;
    let mut uses = Uses::new(graph, pieces, scratch)?;
    for ListedStep { step, index: now, .. } in clocks.steps() {
        uses.step(graph, pieces, step, now);
    }
    for iteration in 0..clocks.iterations() {
        uses.next_iteration(clocks.stream_steps());
        for ListedStep { at, step, index: now } in clocks.steps() {
            let (must, tensor) = uses.step(graph, pieces, step, now);
            if let Some(stream) = clocks.missing(iteration, at, must) {
                return Err(VerifyError::Race { step: at, stream, tensor });
            }
            freed[at as usize] = must;
        }
    }
    Ok(freed)
}

impl<'a> Uses<'a> {
    fn new(
        graph: &Graph<'_>,
        pieces: &Pieces<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        Ok(Self {
            launched: scratch.take(tensors, [NEVER; 2])?,
            written: scratch.take(tensors, [NEVER; 2])?,
            launched_before_arrival: scratch.take(tensors, [NEVER; 2])?,
            uploaded: LastUses::new(pieces.len(), NEVER, scratch)?,
            downloaded: LastUses::new(pieces.len(), NEVER, scratch)?,
            used_on_host: scratch.take(tensors, NEVER)?,
            written_on_host: scratch.take(tensors, NEVER)?,
        })
    }

    fn next_iteration(&mut self, stream_steps: PerStream<u32>) {
        fn age<'p>(points: impl IntoIterator<Item = &'p mut i64>, steps: i64) {
            for point in points {
                *point = point.saturating_sub(steps);
            }
        }
        let PerStream([computes, uploads, downloads, on_host, exchanges]) =
            stream_steps.map(i64::from);
        let launches = [computes, exchanges];
        for points in [&mut *self.launched, &mut *self.written, &mut *self.launched_before_arrival]
        {
            for (stream, steps) in launches.into_iter().enumerate() {
                age(points.iter_mut().map(|points| &mut points[stream]), steps);
            }
        }
        age(self.uploaded.points(), uploads);
        age(self.downloaded.points(), downloads);
        age(&mut *self.used_on_host, on_host);
        age(&mut *self.written_on_host, on_host);
        // If no launch preceded the last prefetch in its iteration, the launch before it lies
        // another iteration back.
        for (before, launched) in self.launched_before_arrival.iter_mut().zip(&*self.launched) {
            for (stream, steps) in launches.into_iter().enumerate() {
                before[stream] = before[stream].max(launched[stream].saturating_sub(steps));
            }
        }
    }

    /// The steps that must have ended before a step may start, and the tensor that requires it.
    /// Then records the step as the last use.
    fn step(
        &mut self,
        graph: &Graph<'_>,
        pieces: &Pieces<'_>,
        step: &Step,
        now: i64,
    ) -> (Points, TensorId) {
        match *step {
            Step::Launch(launched) => self.launch(graph, pieces, launched, now),
            Step::Host(op) => self.run_on_host(graph, pieces, op, now),
            Step::Prefetch(part) => (self.prefetch(graph, pieces, part, now), part.tensor),
            Step::Offload(part) => {
                let span = pieces.span(part);
                let uploaded = self.uploaded.last(span);
                self.downloaded.note(span, now);
                let tensor = part.tensor.index();
                let ([computed, exchanged], on_host) =
                    (self.written[tensor], self.used_on_host[tensor]);
                (PerStream([computed, uploaded, NEVER, on_host, exchanged]), part.tensor)
            }
            Step::Evict(part) => {
                let [computed, exchanged] = self.launched[part.tensor.index()];
                let span = pieces.span(part);
                let (uploaded, downloaded) = (self.uploaded.last(span), self.downloaded.last(span));
                let must = PerStream([computed, uploaded, downloaded, NEVER, exchanged]);
                (must, part.tensor)
            }
        }
    }

    fn launch(
        &mut self,
        graph: &Graph<'_>,
        pieces: &Pieces<'_>,
        launched: Launched,
        now: i64,
    ) -> (Points, TensorId) {
        let mut must = PerStream::all(NEVER);
        let mut cause = TensorId(0);
        let mut raise = |stream: Stream, point: i64, tensor: TensorId| {
            if point > must[stream] {
                must[stream] = point;
                cause = tensor;
            }
        };
        let own = graph.op(launched.op).stream();
        let (at, beside, other) = match own {
            Stream::Network => (1, 0, Stream::Compute),
            _ => (0, 1, Stream::Network),
        };
        // It reads what the other stream has written, and writes what that no longer uses.
        for tensor in pieces.read_by(launched) {
            raise(other, self.written[tensor.index()][beside], tensor);
        }
        for tensor in graph.written_by(launched) {
            raise(other, self.launched[tensor.index()][beside], tensor);
            raise(Stream::Download, self.downloaded.last(pieces.whole(tensor)), tensor);
            self.written[tensor.index()][at] = now;
        }
        for tensor in pieces.operands_by(launched) {
            raise(Stream::Upload, self.uploaded.last(pieces.whole(tensor)), tensor);
            self.launched[tensor.index()][at] = now;
        }
        (must, cause)
    }

    /// An op on the host uses only host copies: it runs after the downloads into them, and, if it
    /// writes them, after the uploads from them.
    fn run_on_host(
        &mut self,
        graph: &Graph<'_>,
        pieces: &Pieces<'_>,
        op: OpId,
        now: i64,
    ) -> (Points, TensorId) {
        let mut must = PerStream::all(NEVER);
        let mut cause = TensorId(0);
        let mut raise = |stream: Stream, point: i64, tensor: TensorId| {
            if point > must[stream] {
                must[stream] = point;
                cause = tensor;
            }
        };
        for &tensor in graph.writes(op) {
            raise(Stream::Upload, self.uploaded.last(pieces.whole(tensor)), tensor);
            self.written_on_host[tensor.index()] = now;
        }
        for &tensor in graph.operands_of(op) {
            raise(Stream::Download, self.downloaded.last(pieces.whole(tensor)), tensor);
            self.used_on_host[tensor.index()] = now;
        }
        (must, cause)
    }

    fn prefetch(&mut self, graph: &Graph<'_>, pieces: &Pieces<'_>, part: Part, now: i64) -> Points {
        let tensor = part.tensor.index();
        let [computed, exchanged] = if pieces.arrives_beside(graph, part) {
            self.launched_before_arrival[tensor]
        } else {
            self.launched[tensor]
        };
        self.launched_before_arrival[tensor] = self.launched[tensor];
        let span = pieces.span(part);
        let downloaded = self.downloaded.last(span);
        self.uploaded.note(span, now);
        PerStream([computed, NEVER, downloaded, self.written_on_host[tensor], exchanged])
    }
}
