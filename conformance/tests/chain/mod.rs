//! A chain of three layers, and the steps of plans, to be followed by hand.

use planner_core::planner::{Request, Strategy};
use planner_core::{Kind, Launched, Machine, MachineParameters, Step};
use spillway::planning;
use workloads::{OwnedGraph, OwnedPlan};

pub(crate) const CHUNK_BYTES: u64 = 256;

/// A chunk crosses in as long as an op takes.
pub(crate) const MACHINE: Machine = match Machine::new(
    MachineParameters::new()
        .with_device_bytes(1 << 30)
        .with_host_bytes(1 << 30)
        .with_chunk_bytes(CHUNK_BYTES)
        .with_h2d_bytes_per_s(2_560_000_000)
        .with_d2h_bytes_per_s(2_560_000_000),
) {
    Ok(machine) => machine,
    Err(_) => panic!(),
};

/// Forward `F0` to `F2`, then backward: each `B` reads the activation and updates the
/// weight in place; `d` is the gradient that runs through.
pub(crate) fn chain() -> OwnedGraph {
    let mut graph = OwnedGraph::new("chain");
    let mut add = |name: &str, kind| graph.push_tensor(name, CHUNK_BYTES, kind);
    let w = ["w0", "w1", "w2"].map(|name| add(name, Kind::State));
    let a = ["a0", "a1", "a2"].map(|name| add(name, Kind::Temporary));
    let d = add("d", Kind::Temporary);
    graph.push_op("F0", 100, 0, &[w[0]], &[a[0]]);
    graph.push_op("F1", 100, 0, &[a[0], w[1]], &[a[1]]);
    graph.push_op("F2", 100, 0, &[a[1], w[2]], &[a[2]]);
    graph.push_op("B2", 100, 0, &[a[2], w[2]], &[w[2], d]);
    graph.push_op("B1", 100, 0, &[d, a[1], w[1]], &[w[1], d]);
    graph.push_op("B0", 100, 0, &[d, a[0], w[0]], &[w[0]]);
    graph
}

/// Steps as `+in`, `>copy out`, `-evict` and `[op]`; first what is resident at start.
pub(crate) fn plan(owned: &OwnedGraph, budget_chunks: u64, strategy: Strategy) -> String {
    list(owned, budget_chunks, |request| planning::plan(request, strategy).unwrap())
}

/// The same for any planner.
pub(crate) fn list(
    owned: &OwnedGraph,
    budget_chunks: u64,
    planner: impl Fn(&Request<'_>) -> OwnedPlan,
) -> String {
    let graph = owned.graph().unwrap();
    let budget_bytes = budget_chunks * CHUNK_BYTES;
    let request = Request { graph: &graph, machine: &MACHINE, budget_bytes };
    let plan = planner(&request);
    let name = |tensor: planner_core::TensorId| &owned.tensor_names[tensor.index()];
    let start = plan.resident_at_start.iter().map(|entry| name(entry.part.tensor).clone());
    let steps = plan.steps.iter().map(|step| match *step {
        Step::Launch(Launched { op, .. }) => format!("[{}]", owned.op_names[op.index()]),
        Step::Host(op) => format!("h[{}]", owned.op_names[op.index()]),
        Step::Prefetch(part) => format!("+{}", name(part.tensor)),
        Step::Offload(part) => format!(">{}", name(part.tensor)),
        Step::Evict(part) => format!("-{}", name(part.tensor)),
    });
    start.chain(steps).collect::<Vec<_>>().join(" ")
}
