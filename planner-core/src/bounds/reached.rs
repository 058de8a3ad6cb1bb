//! Facts that propagate from op to op along dependencies.

use super::BoundOrder;
use crate::graph::{Graph, OpId};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use bytemuck::Pod;

/// Ops walked in one direction: what the nearest writer of each tensor hands on, and what the
/// tensor's readers since do. An op stays on its side of each write of what it touches, and a
/// write of each touch; in the given order, on its side of all ops.
pub(super) struct Reached<'a, T> {
    order: BoundOrder,
    /// What the op before hands on.
    last: T,
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
        Ok(Self { order, last: none, writer, readers, none, join })
    }

    /// Starts another walk.
    pub(super) fn clear(&mut self) {
        self.last = self.none;
        self.writer.fill(self.none);
        self.readers.fill(self.none);
    }

    /// What is handed on to the next op; `own` makes of it what the op hands on.
    pub(super) fn step(&mut self, graph: &Graph<'_>, op: OpId, own: impl FnOnce(T) -> T) -> T {
        let mut reached = if self.order == BoundOrder::Given { self.last } else { self.none };
        for tensor in graph.operands_of(op) {
            reached = (self.join)(reached, self.writer[tensor.index()]);
        }
        for tensor in graph.writes(op) {
            reached = (self.join)(reached, self.readers[tensor.index()]);
        }
        let reached = own(reached);
        self.last = reached;
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
