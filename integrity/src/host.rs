//! What an op writes where it runs on the host.

use crate::passes::FoldOrder;
use crate::value::{self, Reading, Value};
use planner_core::{Graph, Kind, OpId};

/// The arithmetic of one op on the host, without its graph, so that it can be sent to the thread or the
/// driver that runs the op there.
#[derive(Clone, Debug)]
pub struct HostArithmetic {
    op: OpId,
    order: FoldOrder,
    /// Kind and size of what the op writes.
    writes: Vec<(Kind, u64)>,
}

impl HostArithmetic {
    /// The arithmetic of an op. O(reads times writes).
    ///
    /// # Panics
    /// There is no such op.
    #[must_use]
    pub fn new(graph: &Graph<'_>, op: OpId) -> Self {
        let writes = graph.writes(op).iter().map(|&tensor| {
            let tensor = graph.tensor(tensor);
            (tensor.kind, tensor.bytes)
        });
        Self { op, order: FoldOrder::new(graph, op), writes: writes.collect() }
    }

    /// The value of each tensor that the op writes, from the readings of what it reads, both by their
    /// positions in the op's order.
    #[must_use]
    pub fn values(&self, read: impl FnMut(usize) -> Reading) -> Vec<Value> {
        let readings = self.order.reads.iter().copied().map(read);
        let results = value::op_results(self.op, self.order.repeated, readings);
        let written = (0..).zip(&self.writes);
        written.map(|(at, &(kind, bytes))| value::written(results.of(kind), at, bytes)).collect()
    }
}
