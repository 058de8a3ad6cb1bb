//! Which op touches which tensor when, and what must wait for it.

use crate::graph::{Graph, OpId, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

/// The touches of each tensor, in the given order, followed by a cursor.
#[derive(Debug)]
pub(super) struct Touches<'a> {
    /// The position of each tensor's first touch, and the number of all.
    start: &'a mut [u32],
    /// The op of each touch, and in the lowest bit whether it writes.
    touch: &'a mut [u32],
    /// The position of each tensor's next write; the end where there is none.
    write: &'a mut [u32],
}

impl<'a> Touches<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u32>(limits.operands),
            words::<u32>(limits.tensors.saturating_add(1)),
            words::<u32>(limits.tensors),
        ])
    }

    /// Sorts all operands by tensor. O(operands).
    pub(super) fn new(graph: &Graph<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        let start = scratch.take(tensors + 1, 0u32)?;
        let operands = || graph.op_ids().flat_map(|op| graph.operands_of(op));
        for tensor in operands() {
            start[tensor.index() + 1] += 1;
        }
        for tensor in 0..tensors {
            start[tensor + 1] += start[tensor];
        }
        let touch = scratch.take(start[tensors] as usize, 0u32)?;
        let write = scratch.take(tensors, 0u32)?;
        write.copy_from_slice(&start[..tensors]);
        for op in graph.op_ids() {
            let writes = |at: usize| u32::from(at >= graph.reads(op).len());
            for (at, tensor) in graph.operands_of(op).iter().enumerate() {
                let end = &mut write[tensor.index()];
                touch[*end as usize] = op.0 << 1 | writes(at);
                *end += 1;
            }
        }
        let mut touches = Self { start, touch, write };
        touches.rewind(graph);
        Ok(touches)
    }

    /// Puts the cursor before the first op.
    pub(super) fn rewind(&mut self, graph: &Graph<'_>) {
        for tensor in graph.tensor_ids() {
            self.write[tensor.index()] = self.next_write(tensor, self.start[tensor.index()]);
        }
    }

    /// The first op that touches a tensor.
    pub(super) fn first(&self, tensor: TensorId) -> Option<OpId> {
        let at = self.start[tensor.index()];
        (at < self.end(tensor)).then(|| self.op(at))
    }

    fn end(&self, tensor: TensorId) -> u32 {
        self.start[tensor.index() + 1]
    }

    fn op(&self, at: u32) -> OpId {
        OpId(self.touch[at as usize] >> 1)
    }

    /// The first write of a tensor from a position on.
    fn next_write(&self, tensor: TensorId, from: u32) -> u32 {
        let writes = |&at: &u32| self.touch[at as usize] & 1 == 1;
        (from..self.end(tensor)).find(writes).unwrap_or(self.end(tensor))
    }

    /// Moves the cursor over an op, and visits the ops that had to wait for it: each reader
    /// of what it writes, and the writer of what it, or no one, reads.
    pub(super) fn pass(&mut self, graph: &Graph<'_>, op: OpId, mut waited: impl FnMut(OpId)) {
        for &tensor in graph.reads(op) {
            let write = self.write[tensor.index()];
            if write < self.end(tensor) {
                waited(self.op(write));
            }
        }
        for &tensor in graph.writes(op) {
            let readers = self.write[tensor.index()].saturating_add(1);
            let write = self.next_write(tensor, readers);
            self.write[tensor.index()] = write;
            let unread = readers >= write && write < self.end(tensor);
            (readers..write + u32::from(unread)).for_each(|at| waited(self.op(at)));
        }
    }
}
