//! A graph that owns its data and has names for its tensors and ops.

use planner_core::scratch::Scratch;
use planner_core::{Graph, GraphError, Kind, Op, OpId, Tensor, TensorId};

/// A graph with names, as importers and generators make it and as in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedGraph {
    /// The name of the graph, which plans refer to.
    pub name: String,
    /// All tensors.
    pub tensors: Vec<Tensor>,
    /// The name of each tensor.
    pub tensor_names: Vec<String>,
    /// All ops, in one legal order.
    pub ops: Vec<Op>,
    /// The name of each op.
    pub op_names: Vec<String>,
    /// The operands of all ops, as [`Op`] describes.
    pub operands: Vec<TensorId>,
}

impl OwnedGraph {
    /// Creates an empty graph.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Keeps the tensors and ops, and replaces the name.
    #[must_use]
    pub fn with_name(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Adds a tensor.
    pub fn push_tensor(&mut self, name: impl Into<String>, bytes: u64, kind: Kind) -> TensorId {
        let id = TensorId(self.tensors.len() as u32);
        self.tensors.push(Tensor::new(bytes, kind));
        self.tensor_names.push(name.into());
        id
    }

    /// Adds an op after all others.
    pub fn push_op(
        &mut self,
        name: impl Into<String>,
        time_ns: u64,
        workspace_bytes: u64,
        reads: &[TensorId],
        writes: &[TensorId],
    ) -> OpId {
        let id = OpId(self.ops.len() as u32);
        self.ops.push(
            Op::new(time_ns)
                .with_workspace_bytes(workspace_bytes)
                .with_first_operand(self.operands.len() as u32)
                .with_reads(reads.len() as u32)
                .with_writes(writes.len() as u32),
        );
        self.operands.extend(reads);
        self.operands.extend(writes);
        self.op_names.push(name.into());
        id
    }

    /// Marks an op as repeatable (`docs/format.md`, 9): a repeat must write the same bytes into its
    /// temporaries.
    ///
    /// # Panics
    /// The graph does not have the op.
    pub fn set_repeatable(&mut self, op: OpId) {
        self.ops[op.index()].repeatable = true;
    }

    /// Allows an op to run on the host, and sets its time there.
    ///
    /// # Panics
    /// The graph does not have the op.
    pub fn set_host_ns(&mut self, op: OpId, host_ns: u64) {
        self.ops[op.index()].host_ns = Some(host_ns);
    }

    /// Marks an op as a collective, which exchanges data with other processes.
    ///
    /// # Panics
    /// The graph does not have the op.
    pub fn set_collective(&mut self, op: OpId) {
        self.ops[op.index()].collective = true;
    }

    /// Marks an op with this property as repeatable, if it writes a temporary: a repeat of another op would
    /// write nothing. O(operands of the op).
    ///
    /// # Panics
    /// The graph does not have the op, or lacks some of its operands.
    pub fn promise_repeats(&mut self, op: OpId) {
        let Op { first_operand, reads, writes, .. } = self.ops[op.index()];
        let written = &self.operands[(first_operand + reads) as usize..][..writes as usize];
        let is_temporary = |tensor: &TensorId| self.tensors[tensor.index()].kind == Kind::Temporary;
        if written.iter().any(is_temporary) {
            self.set_repeatable(op);
        }
    }

    /// Returns the graph with its ops in another order, which must keep the dependencies.
    ///
    /// # Panics
    /// The order has an op that the graph does not have.
    #[must_use]
    pub fn in_order(&self, order: &[OpId]) -> Self {
        let (ops, op_names, operands) = (Vec::new(), Vec::new(), Vec::new());
        let mut ordered = Self { ops, op_names, operands, ..self.clone() };
        for op in order {
            let of = self.ops[op.index()];
            let operands = &self.operands[of.first_operand as usize..];
            let operands = &operands[..of.reads as usize + of.writes as usize];
            ordered.ops.push(of.with_first_operand(ordered.operands.len() as u32));
            ordered.operands.extend(operands);
            ordered.op_names.push(self.op_names[op.index()].clone());
        }
        ordered
    }

    /// Checks the graph, and returns it for planners.
    ///
    /// # Errors
    /// The first defect found.
    pub fn graph(&self) -> Result<Graph<'_>, GraphError> {
        let mut memory = vec![0; Graph::scratch_words(self.tensors.len())];
        Graph::new(&self.tensors, &self.ops, &self.operands, &mut Scratch::new(&mut memory))
    }
}
