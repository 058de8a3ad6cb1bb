//! Propagates facts from op to op along dependencies.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors are those of the checked graph, and the arrays have an entry for each"
)]

use super::BoundOrder;
use crate::graph::{Graph, OpId};
use crate::schedule::PerStream;
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use bytemuck::Pod;

/// A walk over ops in one direction, with the facts of the last writer of each tensor and of the
/// tensor's readers since. An op stays on its side of each write of its operands, and a write on
/// its side of each use; in the given order, an op stays on its side of all other ops on its stream.
pub(super) struct Reached<'a, T> {
    order: BoundOrder,
    /// The facts of the op before on each stream.
    last: PerStream<T>,
    writer: &'a mut [T],
    readers: &'a mut [T],
    none: T,
    join: fn(T, T) -> T,
}

impl<'a, T: Pod> Reached<'a, T> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<T>(limits.tensors).saturating_mul(2)
    }

    pub(super) fn new(
        graph: &Graph<'_>,
        order: BoundOrder,
        none: T,
        join: fn(T, T) -> T,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        let (writer, readers) = (scratch.take(tensors, none)?, scratch.take(tensors, none)?);
        Ok(Self { order, last: PerStream::all(none), writer, readers, none, join })
    }

    /// Starts another walk.
    pub(super) fn clear(&mut self) {
        self.last = PerStream::all(self.none);
        self.writer.fill(self.none);
        self.readers.fill(self.none);
    }

    /// Returns the facts that reach the op; `own` computes from them the facts that the op passes
    /// on.
    pub(super) fn step(&mut self, graph: &Graph<'_>, op: OpId, own: impl FnOnce(T) -> T) -> T {
        let stream = graph.op(op).stream();
        let mut reached = match self.order {
            BoundOrder::Given => self.last[stream],
            BoundOrder::Any => self.none,
        };
        for tensor in graph.operands_of(op) {
            reached = (self.join)(reached, self.writer[tensor.index()]);
        }
        for tensor in graph.writes(op) {
            reached = (self.join)(reached, self.readers[tensor.index()]);
        }
        let reached = own(reached);
        self.last[stream] = reached;
        for tensor in graph.writes(op) {
            self.writer[tensor.index()] = reached;
        }
        for tensor in graph.reads(op) {
            let readers = &mut self.readers[tensor.index()];
            *readers = (self.join)(*readers, reached);
        }
        reached
    }
}
