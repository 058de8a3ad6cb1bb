//! What an op writes where it runs on the host.

use crate::backend::RUN_WORDS;
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
    /// Words between the starts of the runs that are touched.
    spread_words: u64,
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
        let (order, writes) = (FoldOrder::new(graph, op), writes.collect());
        Self { op, order, writes, spread_words: RUN_WORDS }
    }

    /// The same, of runs of [`RUN_WORDS`] words that begin so far apart, as
    /// [`sparse_kernels`](crate::Backend::sparse_kernels) have it.
    #[must_use]
    pub fn sparse(self, spread_words: u64) -> Self {
        Self { spread_words: spread_words.max(RUN_WORDS), ..self }
    }

    /// Reads the bytes of a tensor.
    #[must_use]
    pub fn reading(&self, bytes: &[u8]) -> Reading {
        Reading::of_words(bytes, |word| self.touches(word))
    }

    /// Writes a value into the bytes of a tensor.
    pub fn write(&self, value: Value, bytes: &mut [u8]) {
        for (word, bytes) in (0..).zip(bytes.chunks_mut(4)) {
            if self.touches(word) {
                value.fill(4 * word, bytes);
            }
        }
    }

    const fn touches(&self, word: u64) -> bool {
        word % self.spread_words < RUN_WORDS
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
