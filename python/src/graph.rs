//! Graphs, and how they are planned.

use crate::error::{self, BudgetError, FormatError, GraphError};
use crate::machine::Machine;
use crate::plan::Plan;
use crate::strategy::{self, Setting};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use spillway::planner_core::Kind;
use spillway::{Budget, OwnedGraph, TensorId};
use std::collections::BTreeMap;
use workloads::format;

/// One iteration of a computation that repeats: tensors, and ops in one legal order.
///
/// Tensors and ops are numbered from 0 in the order in which they are added.
#[pyclass(module = "spillway")]
pub(crate) struct Graph {
    owned: OwnedGraph,
}

impl From<OwnedGraph> for Graph {
    fn from(owned: OwnedGraph) -> Self {
        Self { owned }
    }
}

/// A budget: bytes, or a text such as "35%". Other values are refused.
#[derive(FromPyObject)]
pub(crate) enum BudgetArgument<'py> {
    Bytes(u64),
    Text(String),
    Other(Bound<'py, PyAny>),
}

impl BudgetArgument<'_> {
    pub(crate) fn parse(self) -> PyResult<Budget> {
        let refuse = |given: String, hint: &str| {
            let way = "give bytes (8589934592), a size (\"8GiB\"), a percentage of what the work \
                       needs in-core (\"35%\"), or \"min\"";
            Err(BudgetError::new_err(format!("budget is {given}: {way}{hint}")))
        };
        match self {
            Self::Bytes(bytes) => Ok(Budget::Bytes(bytes)),
            Self::Text(text) => text.parse().or_else(|_| refuse(format!("{text:?}"), "")),
            Self::Other(value) => {
                let share = value.extract::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
                let hint =
                    share.map(|share| format!("; the share {share} is \"{}%\"", 100.0 * share));
                refuse(value.repr()?.to_string(), &hint.unwrap_or_default())
            }
        }
    }
}

impl Graph {
    /// Checks the graph.
    pub(crate) fn checked(&self, py: Python<'_>) -> PyResult<spillway::Graph> {
        spillway::Graph::new(self.owned.clone()).map_err(|error| self.error(py, &error))
    }

    pub(crate) fn error(&self, py: Python<'_>, error: &spillway::Error) -> PyErr {
        error::of_planner(py, &self.owned, error)
    }

    fn tensor(graph: &Bound<'_, Self>, name: String, bytes: u64, kind: Kind) -> PyResult<u32> {
        Ok(Self::changed(graph)?.owned.push_tensor(name, bytes, kind).0)
    }

    /// Borrows the graph to change it.
    fn changed<'py>(graph: &Bound<'py, Self>) -> PyResult<PyRefMut<'py, Self>> {
        graph.try_borrow_mut().map_err(|_| {
            GraphError::new_err(
                "the graph is being planned in another thread: change it afterwards",
            )
        })
    }
}

#[pymethods]
impl Graph {
    #[new]
    fn new(name: String) -> Self {
        Self { owned: OwnedGraph::new(name) }
    }

    /// The name, by which plans refer to the graph.
    #[getter]
    fn name(&self) -> &str {
        &self.owned.name
    }

    /// Adds a tensor that keeps its value from one iteration to the next. Returns its number.
    fn state(graph: &Bound<'_, Self>, name: String, bytes: u64) -> PyResult<u32> {
        Self::tensor(graph, name, bytes, Kind::State)
    }

    /// Adds a tensor that has a new value on the host in each iteration. Returns its number.
    fn input(graph: &Bound<'_, Self>, name: String, bytes: u64) -> PyResult<u32> {
        Self::tensor(graph, name, bytes, Kind::Input)
    }

    /// Adds a tensor that an op writes before any op reads it. Returns its number.
    fn temporary(graph: &Bound<'_, Self>, name: String, bytes: u64) -> PyResult<u32> {
        Self::tensor(graph, name, bytes, Kind::Temporary)
    }

    /// Adds a tensor that an op writes before any op reads it. Each iteration leaves its last value
    /// on the host. Returns its number.
    fn output(graph: &Bound<'_, Self>, name: String, bytes: u64) -> PyResult<u32> {
        Self::tensor(graph, name, bytes, Kind::Output)
    }

    /// Adds an op after all others. Returns its number.
    ///
    /// A tensor that the op reads and writes is updated in place. `workspace_bytes` is device
    /// memory that the op holds only while it runs. A repeatable op may be launched again in the
    /// same iteration, on the values that it read the first time, and then writes the same bytes.
    /// With `host_ns`, plans may run the op on the host instead, where it takes this long. A
    /// `collective` exchanges data with other processes and runs beside the other ops; a session calls
    /// `launch` for it in a thread.
    #[pyo3(signature = (
        name, time_ns, reads, writes, workspace_bytes=0, repeatable=false, host_ns=None,
        collective=false
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn op(
        graph: &Bound<'_, Self>,
        name: String,
        time_ns: u64,
        reads: Vec<u32>,
        writes: Vec<u32>,
        workspace_bytes: u64,
        repeatable: bool,
        host_ns: Option<u64>,
        collective: bool,
    ) -> PyResult<u32> {
        let [reads, writes] =
            [reads, writes].map(|ids| ids.into_iter().map(TensorId).collect::<Vec<_>>());
        let graph = &mut Self::changed(graph)?.owned;
        let op = graph.push_op(name, time_ns, workspace_bytes, &reads, &writes);
        if repeatable {
            graph.set_repeatable(op);
        }
        if let Some(host_ns) = host_ns {
            graph.set_host_ns(op, host_ns);
        }
        if collective {
            graph.set_collective(op);
        }
        Ok(op.0)
    }

    /// Checks the graph. Raises `GraphError`, which names the first defect.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.checked(py).map(drop)
    }

    /// The bytes of a graph file (`spillway.graph.v1`). Raises `GraphError`.
    fn to_json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, &format::write_graph(self.checked(py)?.owned())))
    }

    /// Reads a graph from the bytes of a graph file, compressed or not. Raises `FormatError`.
    #[staticmethod]
    fn from_json(json: &[u8]) -> PyResult<Self> {
        let owned = format::read_graph(json);
        Ok(Self { owned: owned.map_err(|error| FormatError::new_err(error.to_string()))? })
    }

    /// Plans for a machine, and proves the plan safe.
    ///
    /// A budget is bytes, a size ("4GiB"), a percentage of the memory that the work needs in-core
    /// ("35%"), or "min". The default is all of the machine's device memory. With `placed`, all memory
    /// is mapped before the plan runs, unless that makes the period longer by more than a hundredth.
    /// `spillway plan --help` lists the strategies and their settings, and all but `joint` can be used
    /// here. A setting is a number or a text, and `True` and `False` stand for "yes" and "no".
    ///
    /// Raises `InfeasibleError` if the budget is too small. Raises `GraphError`, `BudgetError` and
    /// `PlanningError`.
    #[pyo3(signature = (machine, budget=None, strategy="auto", settings=BTreeMap::new(), placed=true),
        text_signature = "($self, machine, budget=None, strategy='auto', settings={}, placed=True)")]
    fn plan(
        &self,
        py: Python<'_>,
        machine: &Machine,
        budget: Option<BudgetArgument<'_>>,
        strategy: &str,
        settings: BTreeMap<String, Setting>,
        placed: bool,
    ) -> PyResult<Plan> {
        let graph = self.checked(py)?;
        let strategy = strategy::named(strategy, settings)?;
        let mut builder = graph.plan(machine.owned()).strategy(strategy).placed(placed);
        if let Some(budget) = budget {
            builder = builder.budget(budget.parse()?);
        }
        let plan = py.detach(|| builder.run());
        Ok(Plan::new(plan.map_err(|error| self.error(py, &error))?))
    }

    /// The smallest budget, in bytes, with which a strategy can plan for a machine.
    ///
    /// Raises `GraphError` and `PlanningError`.
    #[pyo3(signature = (machine, strategy="auto", settings=BTreeMap::new()),
        text_signature = "($self, machine, strategy='auto', settings={})")]
    fn min_feasible_bytes(
        &self,
        py: Python<'_>,
        machine: &Machine,
        strategy: &str,
        settings: BTreeMap<String, Setting>,
    ) -> PyResult<u64> {
        let graph = self.checked(py)?;
        let strategy = strategy::named(strategy, settings)?;
        let found = py.detach(|| graph.min_feasible_bytes(machine.owned(), &strategy));
        found.map_err(|error| self.error(py, &error))
    }

    fn __repr__(&self) -> String {
        let OwnedGraph { name, tensors, ops, .. } = &self.owned;
        format!("Graph({name:?}, {} tensors, {} ops)", tensors.len(), ops.len())
    }
}
