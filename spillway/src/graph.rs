//! A graph that owns its data and is checked once.

use crate::error::Error;
use crate::names::Names;
use crate::plan_builder::PlanBuilder;
use crate::strategy::{Planner, Strategy};
use planner_core::planner::Request;
use planner_core::{Kind, OpId, TensorId};
use std::sync::Arc;
use workloads::{OwnedGraph, OwnedMachine};

/// One iteration of a computation that repeats for ever: a checked graph with names.
///
/// A clone shares the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Graph {
    owned: Arc<OwnedGraph>,
}

impl Graph {
    /// Checks a graph from a file, an importer or a generator. O(tensors + operands).
    ///
    /// # Errors
    /// [`Error::Graph`]: the first defect.
    pub fn new(owned: OwnedGraph) -> Result<Self, Error> {
        match owned.graph() {
            Ok(_) => Ok(Self { owned: Arc::new(owned) }),
            Err(error) => Err(Error::graph(&owned, error)),
        }
    }

    /// Starts planning for a machine.
    pub fn plan(&self, machine: &OwnedMachine) -> PlanBuilder {
        PlanBuilder::new(self.clone(), machine.clone())
    }

    /// The smallest budget with which a strategy can plan for a machine.
    ///
    /// # Errors
    /// [`Error::Planning`] if the strategy cannot plan this work at all; [`Error::OutOfMemory`].
    pub fn min_feasible_bytes(
        &self,
        machine: &OwnedMachine,
        strategy: &Strategy,
    ) -> Result<u64, Error> {
        let (graph, machine) = (self.graph(), &machine.machine);
        let budget_bytes = machine.device_bytes;
        let found = strategy.min_feasible(&Request { graph: &graph, machine, budget_bytes });
        let named = |error| Error::planning(&Names::new(&self.owned, &[]), error, budget_bytes);
        found.map(|(bytes, _)| bytes).map_err(named)
    }

    /// The name of the graph.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.owned.name
    }

    /// The data, with the names of tensors and ops.
    #[must_use]
    pub fn owned(&self) -> &OwnedGraph {
        &self.owned
    }

    /// The graph for the core. O(tensors + operands), since the core checks it again.
    #[must_use]
    pub fn graph(&self) -> planner_core::Graph<'_> {
        self.owned.graph().expect("the graph was checked when it was made")
    }
}

/// Builds a [`Graph`], op by op in one legal order.
///
/// ```
/// use spillway::GraphBuilder;
///
/// let mut graph = GraphBuilder::new("step");
/// let x = graph.input("x", 4096);
/// let w = graph.state("w", 1 << 20);
/// let y = graph.temporary("y", 4096);
/// graph.op("matmul", 20_000).reads([x, w]).writes([y]).repeatable();
/// graph.op("update", 10_000).reads([y, w]).writes([w]);
/// let graph = graph.build()?;
/// # assert_eq!(graph.graph().ops().len(), 2);
/// # Ok::<(), spillway::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GraphBuilder {
    owned: OwnedGraph,
}

impl GraphBuilder {
    /// Creates an empty graph. Plan files refer to the graph by its name.
    pub fn new(name: impl Into<String>) -> Self {
        Self { owned: OwnedGraph::new(name) }
    }

    /// Adds a tensor that keeps its value from one iteration to the next.
    pub fn state(&mut self, name: impl Into<String>, bytes: u64) -> TensorId {
        self.owned.push_tensor(name, bytes, Kind::State)
    }

    /// Adds a tensor that has a new value on the host in each iteration.
    pub fn input(&mut self, name: impl Into<String>, bytes: u64) -> TensorId {
        self.owned.push_tensor(name, bytes, Kind::Input)
    }

    /// Adds a tensor that an op writes before any op reads it.
    pub fn temporary(&mut self, name: impl Into<String>, bytes: u64) -> TensorId {
        self.owned.push_tensor(name, bytes, Kind::Temporary)
    }

    /// Adds a tensor that an op writes before any op reads it. Each iteration leaves the last value of the
    /// tensor on the host.
    pub fn output(&mut self, name: impl Into<String>, bytes: u64) -> TensorId {
        self.owned.push_tensor(name, bytes, Kind::Output)
    }

    /// Adds an op after all others, with its time in ns. Add its operands with [`reads`](OpBuilder::reads)
    /// and [`writes`](OpBuilder::writes).
    pub fn op(&mut self, name: impl Into<String>, time_ns: u64) -> OpBuilder<'_> {
        let id = self.owned.push_op(name, time_ns, 0, &[], &[]);
        OpBuilder { owned: &mut self.owned, id }
    }

    /// Checks the graph. O(tensors + operands).
    ///
    /// # Errors
    /// [`Error::Graph`]: the first defect.
    pub fn build(self) -> Result<Graph, Error> {
        Graph::new(self.owned)
    }
}

/// The op that was added last. Sets its operands, its workspace, and whether it may run again.
#[derive(Debug)]
pub struct OpBuilder<'g> {
    owned: &'g mut OwnedGraph,
    id: OpId,
}

impl OpBuilder<'_> {
    /// Adds tensors that the op reads.
    pub fn reads(self, tensors: impl IntoIterator<Item = TensorId>) -> Self {
        let Self { owned, id } = self;
        let (op, operands) = (&mut owned.ops[id.index()], &mut owned.operands);
        // The written tensors follow the read ones.
        let at = operands.len() - op.writes as usize;
        let before = operands.len();
        operands.splice(at..at, tensors);
        op.reads += (operands.len() - before) as u32;
        Self { owned, id }
    }

    /// Adds tensors that the op writes. A tensor that it also reads is updated in place.
    pub fn writes(self, tensors: impl IntoIterator<Item = TensorId>) -> Self {
        let Self { owned, id } = self;
        let (op, operands) = (&mut owned.ops[id.index()], &mut owned.operands);
        let before = operands.len();
        operands.extend(tensors);
        op.writes += (operands.len() - before) as u32;
        Self { owned, id }
    }

    /// Sets the device memory that the op needs while it runs.
    pub fn workspace_bytes(self, bytes: u64) -> Self {
        self.owned.ops[self.id.index()].workspace_bytes = bytes;
        self
    }

    /// Allows plans to launch the op again in the same iteration, on the values that it read the first time.
    /// A repeat must write the same bytes into the temporaries that the op writes. It neither reads nor
    /// writes the states, inputs and outputs that the op writes.
    pub fn repeatable(self) -> Self {
        self.owned.set_repeatable(self.id);
        self
    }

    /// Allows plans to run the op on the host, and sets its time there. An op that writes an input must not
    /// have a host time.
    pub fn host_ns(self, time_ns: u64) -> Self {
        self.owned.set_host_ns(self.id, time_ns);
        self
    }

    /// The id of the op, which kernels receive.
    #[must_use]
    pub const fn id(&self) -> OpId {
        self.id
    }
}
