//! Layers whose weights do not fit the device.

use crate::error;
use crate::graph::BudgetArgument;
use crate::machine::Machine;
use crate::plan::Plan;
use pyo3::prelude::*;
use spillway::{OwnedGraph, streaming};

/// A layer. No other layer reads its weights.
///
/// `time_ns` is the time that it computes on the device, and `host_ns` the time on the host, or
/// None if it cannot run there. `activation_bytes` is the size of the activation that the next
/// layer reads. `cache_bytes` is the size of a cache that each iteration reads and writes.
/// `output_bytes` is the size of the output that each iteration leaves on the host.
#[pyclass(frozen, module = "spillway.streaming")]
pub(crate) struct Layer {
    layer: streaming::Layer,
}

#[pymethods]
impl Layer {
    #[new]
    #[pyo3(signature = (
        bytes, time_ns, host_ns=None, activation_bytes=0, cache_bytes=0, output_bytes=0, name=""
    ))]
    fn new(
        bytes: u64,
        time_ns: u64,
        host_ns: Option<u64>,
        activation_bytes: u64,
        cache_bytes: u64,
        output_bytes: u64,
        name: &str,
    ) -> Self {
        let mut layer = streaming::Layer::new(bytes, time_ns)
            .name(name)
            .activation_bytes(activation_bytes)
            .cache_bytes(cache_bytes)
            .output_bytes(output_bytes);
        layer.host_ns = host_ns;
        Self { layer }
    }

    fn __repr__(&self) -> String {
        format!("Layer({}, {})", self.layer.bytes, self.layer.time_ns)
    }
}

fn owned(layers: &[PyRef<'_, Layer>]) -> Vec<streaming::Layer> {
    layers.iter().map(|layer| layer.layer.clone()).collect()
}

/// Plans which layers stay on the device, when and where other layers are uploaded, and which
/// layers run on the host.
///
/// In the plan, a layer, its op and the tensor of its weights have the same number. A budget is as
/// in `Graph.plan`, and covers weights, caches, outputs and activations.
///
/// Raises `InfeasibleError` if the budget is too small. Raises `GraphError`, `BudgetError` and
/// `PlanningError`.
#[pyfunction]
#[pyo3(signature = (layers, machine, budget=None))]
pub(crate) fn streaming_plan(
    py: Python<'_>,
    layers: Vec<PyRef<'_, Layer>>,
    machine: &Machine,
    budget: Option<BudgetArgument<'_>>,
) -> PyResult<Plan> {
    let layers = owned(&layers);
    let device_bytes = machine.owned().machine.device_bytes;
    let budget = budget.map(BudgetArgument::parse).transpose()?;
    let budget = budget.unwrap_or_else(|| device_bytes.into());
    let plan = py.detach(|| streaming::plan(&layers, machine.owned(), budget));
    let names = || streaming::graph(&layers).map(|graph| graph.owned().clone());
    let named = |error: spillway::Error| {
        let graph = names().unwrap_or_else(|_| OwnedGraph::new("layers"));
        error::of_planner(py, &graph, &error)
    };
    plan.map(Plan::new).map_err(named)
}

/// Returns the smallest budget, in bytes, with which layers can be streamed.
#[pyfunction]
pub(crate) fn streaming_min_feasible_bytes(
    layers: Vec<PyRef<'_, Layer>>,
    machine: &Machine,
) -> u64 {
    streaming::min_feasible(&owned(&layers), machine.owned()).bytes
}
