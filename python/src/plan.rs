//! Plans and their figures.

use crate::error;
use crate::graph::Graph;
use crate::machine::Machine;
use crate::setup::SetupCosts;
use crate::switch::SwitchFigures;
use backend_host::SetUpCosts;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use spillway::planner_core::Step;
use spillway::planner_core::executor::Mappings;
use spillway::{OpId, TensorId, summary, units};
use std::sync::OnceLock;

/// A proved plan. It is safe in every order that its waits allow, and its prediction is exact.
#[pyclass(frozen, module = "spillway")]
pub(crate) struct Plan {
    plan: spillway::Plan,
    mapped: OnceLock<Mappings>,
    costs: Option<SetUpCosts>,
}

impl Plan {
    pub(crate) const fn new(plan: spillway::Plan) -> Self {
        Self { plan, mapped: OnceLock::new(), costs: None }
    }

    pub(crate) const fn plan(&self) -> &spillway::Plan {
        &self.plan
    }

    /// The mappings of a session for the plan, counted once.
    pub(crate) fn mapped(&self, py: Python<'_>) -> PyResult<Mappings> {
        if let Some(&mapped) = self.mapped.get() {
            return Ok(mapped);
        }
        let mapped = py.detach(|| self.plan.mappings()).map_err(|error| self.error(py, &error))?;
        Ok(*self.mapped.get_or_init(|| mapped))
    }

    /// The mappings of a session, in a few words.
    fn mappings_row(&self, py: Python<'_>) -> PyResult<String> {
        let (mapped, is_fixed) = (self.mapped(py)?, self.plan.owned().placements.is_some());
        let most = if is_fixed { "" } else { "at most " };
        let (count, bytes) = (units::count(mapped.count), units::bytes(mapped.bytes));
        Ok(match self.setup_ns(py)? {
            None => format!("{most}{count}, of {bytes} in all"),
            Some(ns) => format!(
                "{most}{count}, of {bytes} in all; to map and first touch them takes {}",
                units::time(ns)
            ),
        })
    }

    fn error(&self, py: Python<'_>, error: &spillway::Error) -> PyErr {
        error::of_planner(py, self.plan.graph().owned(), error)
    }
}

#[pymethods]
impl Plan {
    /// Reads a plan from the bytes of a plan file, and proves it.
    ///
    /// Raises `FormatError` if the bytes are malformed, `InvalidPlanError` if the plan is not safe
    /// or belongs to another graph or machine, and `GraphError`.
    #[staticmethod]
    fn from_json(py: Python<'_>, json: &[u8], graph: &Graph, machine: &Machine) -> PyResult<Self> {
        let checked = graph.checked(py)?;
        let plan = py.detach(|| spillway::Plan::from_json(json, &checked, machine.owned()));
        Ok(Self::new(plan.map_err(|error| graph.error(py, &error))?))
    }

    /// The bytes of a plan file (`spillway.plan.v1`).
    fn to_json<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.plan.to_json())
    }

    /// The exact figures of the plan for the given times of ops and links.
    #[getter]
    fn figures(&self) -> Figures {
        Figures::of(self.plan.figures())
    }

    /// A period that no other plan can beat under this budget. If this plan repeats no op, the
    /// bound holds for plans that run each op once.
    #[getter]
    fn lower_bound_ns(&self) -> u64 {
        self.plan.lower_bound().period_ns
    }

    /// The device memory that the work needs with everything on the device.
    #[getter]
    fn in_core_peak_bytes(&self) -> u64 {
        self.plan.context().in_core_peak_bytes
    }

    /// Why the plan maps memory while it runs. None if it does not, if it was allowed to
    /// (`placed=False`), or if it comes from a file.
    #[getter]
    fn unplaced(&self) -> Option<String> {
        self.plan.context().unplaced.map(|reason| reason.to_string())
    }

    /// The cost of a switch from this plan to the next between two iterations, before a run. If
    /// tensors have objects smaller than a chunk, a session may keep other bytes.
    ///
    /// Raises `SwitchError` if the states of the graphs differ.
    fn switch_to(&self, py: Python<'_>, next: &Self) -> PyResult<SwitchFigures> {
        let predicted = py.detach(|| self.plan.switch_to(&next.plan));
        predicted.map(SwitchFigures::from).map_err(|error| self.error(py, &error))
    }

    /// The same plan with memory that is laid out after the memory of an earlier plan, so that a
    /// switch from that plan copies less. Returns the plan unchanged if the budget is too small for
    /// that.
    ///
    /// Raises `SwitchError` if the states of the graphs differ.
    fn arranged_after(&self, py: Python<'_>, earlier: &Self) -> PyResult<Self> {
        let arranged = py.detach(|| self.plan.arranged_after(&earlier.plan));
        let costs = self.costs;
        arranged
            .map(|plan| Self { costs, ..Self::new(plan) })
            .map_err(|error| self.error(py, &error))
    }

    /// A plan of the same work in the same budget for one step between two steps of another plan,
    /// such as a prompt between tokens. If possible, the plan ends with all states on the device that
    /// the other plan holds. Returns the best of this plan and the plans that are tried: its period and
    /// the copies of both switches take the least time together. Plans the work up to twice.
    ///
    /// Raises `SwitchError` if the states of the graphs differ.
    fn between(&self, py: Python<'_>, other: &Self) -> PyResult<Self> {
        let between = py.detach(|| self.plan.between(&other.plan));
        let costs = self.costs;
        between
            .map(|plan| Self { costs, ..Self::new(plan) })
            .map_err(|error| self.error(py, &error))
    }

    /// Whether a tensor stays in place between two ops: no step between their first launches copies
    /// the tensor or frees its memory. False if the ops are not launched in this order.
    fn leaves_alone(&self, tensor: u32, after: u32, before: u32) -> bool {
        let mut steps = self.plan.owned().steps.iter();
        let launch = |op| move |step: &Step| *step == Step::launch(OpId(op));
        let is_moved =
            |step: &Step| step.part().is_some_and(|part| part.tensor == TensorId(tensor));
        steps.any(|step| launch(after)(step))
            && steps.find(|step| launch(before)(step) || is_moved(step)).is_some_and(launch(before))
    }

    /// The ops that run on the host, in their order there.
    #[getter]
    fn host_ops(&self) -> Vec<u32> {
        let on_host = |step: &Step| match step {
            Step::Host(op) => Some(op.0),
            _ => None,
        };
        self.plan.owned().steps.iter().filter_map(on_host).collect()
    }

    /// The number of mappings that a session makes before the first iteration. If the plan maps as
    /// it runs, the most that it has. A mapping is a run of addresses with consecutive chunks
    /// behind them. On host memory, the system limits the mappings of a process.
    #[getter]
    fn mappings(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.mapped(py)?.count)
    }

    /// The size in bytes of all mappings. A chunk counts in each of its mappings.
    #[getter]
    fn mapped_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.mapped(py)?.bytes)
    }

    /// The same plan, whose `setup_ns` and summary give the time to set up its memory.
    fn with_setup_costs(&self, costs: &SetupCosts) -> Self {
        let (plan, mapped) = (self.plan.clone(), self.mapped.clone());
        Self { plan, mapped, costs: Some(costs.costs()) }
    }

    /// The costs that were passed to `with_setup_costs`, or None.
    #[getter]
    fn setup_costs(&self) -> Option<SetupCosts> {
        self.costs.map(SetupCosts::from)
    }

    /// The predicted time, once per session, to create the memory, to map it, and to touch each
    /// page of each mapping for the first time. The first iterations take this much longer in
    /// total. None without costs.
    #[getter]
    fn setup_ns(&self, py: Python<'_>) -> PyResult<Option<u64>> {
        let mapped = self.mapped(py)?;
        let bytes = self.plan.figures().peak_bytes;
        Ok(self.costs.map(|costs| costs.time_ns(bytes, mapped.count, mapped.bytes)))
    }

    /// The machine of the plan.
    #[getter]
    fn machine(&self) -> Machine {
        Machine::from(self.plan.machine().clone())
    }

    /// A copy of the plan's graph.
    #[getter]
    fn graph(&self) -> Graph {
        Graph::from(self.plan.graph().owned().clone())
    }

    /// The device memory that the plan may use.
    #[getter]
    fn budget_bytes(&self) -> u64 {
        self.plan.owned().budget_bytes
    }

    /// The name of the strategy that made the plan.
    #[getter]
    fn strategy(&self) -> &str {
        &self.plan.owned().strategy
    }

    /// A report: one self-contained page of HTML.
    fn report(&self, py: Python<'_>) -> PyResult<String> {
        Ok(py.detach(|| self.plan.report()))
    }

    /// The report, in the form for notebooks.
    fn _repr_html_(&self, py: Python<'_>) -> PyResult<String> {
        let page = self.report(py)?.replace('&', "&amp;").replace('"', "&quot;");
        Ok(format!("<iframe srcdoc=\"{page}\" width=\"100%\" height=\"600\"></iframe>"))
    }

    /// The plan in a few lines.
    fn summary(&self, py: Python<'_>) -> PyResult<String> {
        let (context, figures) = (self.plan.context(), self.plan.figures());
        let mut rows = summary::rows(context, figures, self.plan.machine());
        rows.push(("mappings", self.mappings_row(py)?));
        Ok(rows.iter().map(|(title, text)| format!("{title:<10}{text}\n")).collect())
    }

    /// Proves the plan again. Raises `InvalidPlanError`.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        let parts = self.plan.clone().into_parts();
        let context = self.plan.context().clone();
        let proved = py.detach(|| {
            spillway::Plan::in_context(parts.graph, parts.machine, parts.plan, context).map(drop)
        });
        proved.map_err(|error| self.error(py, &error))
    }

    fn __repr__(&self) -> String {
        let (owned, figures) = (self.plan.owned(), self.plan.figures());
        let (graph, period_ns) = (&owned.graph, figures.period_ns);
        format!("Plan({graph:?}, {} bytes, {period_ns} ns an iteration)", owned.budget_bytes)
    }
}

/// Defines the figures of a plan from the library's figures, with a text of all.
macro_rules! figures {
    ($($(#[$about:meta])* $name:ident: $type:ty,)*) => {
        /// The figures of a plan, for one iteration.
        #[pyclass(frozen, eq, get_all, module = "spillway")]
        #[derive(PartialEq)]
        pub(crate) struct Figures {
            $($(#[$about])* $name: $type,)*
        }

        impl Figures {
            const fn of(of: &spillway::Figures) -> Self {
                Self { $($name: of.$name,)* }
            }
        }

        #[pymethods]
        impl Figures {
            fn __repr__(&self) -> String {
                let values = [$(format!("{}={}", stringify!($name), self.$name),)*];
                format!("Figures({})", values.join(", "))
            }
        }
    };
}

figures! {
    /// Time from one iteration to the next.
    period_ns: u64,
    /// The sum of all op times, each op once.
    compute_ns: u64,
    /// Time of the repeats.
    repeat_ns: u64,
    /// The number of repeats.
    repeats: u64,
    /// Time of the ops that run on the host.
    host_ns: u64,
    /// The number of ops that run on the host.
    on_host: u64,
    /// The part of a period in which no op runs on the device.
    stall_ns: u64,
    /// The most device memory that is held at a time.
    peak_bytes: u64,
    /// The part of the peak that neither tensors nor workspaces fill.
    waste_bytes: u64,
    /// Bytes copied to the device.
    h2d_bytes: u64,
    /// Bytes copied to the host.
    d2h_bytes: u64,
    /// The size of the pinned host memory.
    host_bytes: u64,
    /// The number of steps of one iteration.
    steps: u64,
    /// Time for which the host maps and unmaps memory, if the plan maps as it runs. The period
    /// leaves it out.
    mapping_ns: u64,
    /// Whether ops run in another order than the graph's.
    reordered: bool,
}
