//! The values that an op writes if it runs on the host.

use crate::backend::RUN_WORDS;
use crate::passes::FoldOrder;
use crate::value::{self, Reading, Value};
use planner_core::{Graph, Kind, OpId};

/// The arithmetic of one op on the host. It does not borrow the graph, so it can move to the thread
/// or the driver that runs the op.
#[derive(Clone, Debug)]
pub struct HostArithmetic {
    op: OpId,
    order: FoldOrder,
    /// The kind and size of each tensor that the op writes.
    writes: Vec<(Kind, u64)>,
    /// The distance in words between the starts of the runs that are touched.
    spread_words: u64,
    /// The iteration in which the op fails.
    fails_in: Option<u64>,
}

impl HostArithmetic {
    /// Takes the arithmetic of an op. O(reads times writes).
    ///
    /// # Panics
    /// If the graph does not have the op.
    #[must_use]
    pub fn new(graph: &Graph<'_>, op: OpId) -> Self {
        let writes = graph.writes(op).iter().map(|&tensor| {
            let tensor = graph.tensor(tensor);
            (tensor.kind, tensor.bytes)
        });
        let (order, writes) = (FoldOrder::new(graph, op), writes.collect());
        Self { op, order, writes, spread_words: RUN_WORDS, fails_in: None }
    }

    /// The same arithmetic on runs of [`RUN_WORDS`] words that begin `spread_words` words apart, as
    /// for [`sparse_kernels`](crate::Backend::sparse_kernels).
    #[must_use]
    pub fn sparse(self, spread_words: u64) -> Self {
        Self { spread_words: spread_words.max(RUN_WORDS), ..self }
    }

    /// The same arithmetic. If `at` names this op, it fails in the iteration of `at`.
    #[must_use]
    pub fn failing(self, at: Option<(OpId, u64)>) -> Self {
        let of_op = at.filter(|&(op, _)| op == self.op);
        Self { fails_in: of_op.map(|(_, iteration)| iteration), ..self }
    }

    /// Writes the values of an op into the bytes of the tensors that it writes.
    pub fn write(&self, values: Vec<Value>, writes: &mut [&mut [u8]]) {
        for (value, bytes) in values.into_iter().zip(writes) {
            for (word, bytes) in (0..).zip(bytes.chunks_mut(4)) {
                if self.touches(word) {
                    value.fill(4 * word, bytes);
                }
            }
        }
    }

    const fn touches(&self, word: u64) -> bool {
        word % self.spread_words < RUN_WORDS
    }

    /// The value of each tensor that the op writes in an iteration, from the bytes of the tensors
    /// that it reads. Both have the op's order.
    ///
    /// # Errors
    /// The op [fails](Self::failing) in this iteration.
    pub fn values<'a>(
        &self,
        iteration: u64,
        read: impl Fn(usize) -> &'a [u8],
    ) -> Result<Vec<Value>, &'static str> {
        if self.fails_in == Some(iteration) {
            return Err("it was made to fail");
        }
        let reading = |&at: &usize| Reading::of_words(read(at), |word| self.touches(word));
        let readings = self.order.reads.iter().map(reading);
        let results = value::op_results(self.op, self.order.repeated, readings);
        let written = (0..).zip(&self.writes);
        let value = |(at, &(kind, bytes))| value::written(results.of(kind), at, bytes);
        Ok(written.map(value).collect())
    }
}
