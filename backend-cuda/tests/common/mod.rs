//! Work and plans for tests on the emulated driver.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_cuda::Integrity;
use emulated_cuda::Emulated;
use integrity::Backend;
use planner_core::planner::{Request, Strategy};
use planner_core::{Graph, Kind, Machine};
use spillway::{placing, planning};
use std::sync::Once;
use workloads::{OwnedGraph, OwnedPlan};

static SMALL_CHUNKS: Once = Once::new();

/// The backend on the emulated driver, and a machine whose links take as long for a tensor as
/// an op for its work.
pub(crate) fn emulated() -> (Emulated, Integrity, Machine) {
    let driver = Emulated::built_path();
    let emulated = Emulated::open(&driver).unwrap();
    // Tensors of whole chunks are interpreted word by word, so these are small.
    SMALL_CHUNKS.call_once(|| emulated.resize(1 << 30, 4096));
    let backend = Integrity { driver: Some(driver), ordinal: 0 };
    let found = backend.find().unwrap().machine;
    let bytes_per_s = found.chunk_bytes * 4_000_000;
    let machine = Machine::new(
        (*found)
            .with_h2d_bytes_per_s(bytes_per_s)
            .with_d2h_bytes_per_s(bytes_per_s)
            .with_transfer_latency_ns(0),
    )
    .unwrap();
    (emulated, backend, machine)
}

/// Layers forward and backward, whose weights change. The first reads an input or a state.
pub(crate) fn training_step(chunk_bytes: u64, reads: Kind) -> OwnedGraph {
    let mut graph = OwnedGraph::new("step");
    let mut tensor =
        |name: String, chunks, kind| graph.push_tensor(&name, chunks * chunk_bytes, kind);
    let input = tensor("x".to_owned(), 2, reads);
    let weights = [0, 1, 2].map(|layer| tensor(format!("w{layer}"), 3, Kind::State));
    let outputs = [0, 1, 2].map(|layer| tensor(format!("a{layer}"), 2, Kind::Temporary));
    let slopes = [0, 1, 2].map(|layer| tensor(format!("g{layer}"), 2, Kind::Temporary));
    let before = |layer: usize| if layer == 0 { input } else { outputs[layer - 1] };
    for layer in 0..3 {
        graph.push_op("forward", 1000, 0, &[before(layer), weights[layer]], &[outputs[layer]]);
    }
    graph.push_op("loss", 1000, 0, &[outputs[2]], &[slopes[2]]);
    for layer in [2, 1, 0] {
        let reads = [slopes[layer], before(layer), weights[layer]];
        let writes = [weights[layer], slopes[layer.saturating_sub(1)]];
        graph.push_op("backward", 1000, 0, &reads, &writes[..if layer == 0 { 1 } else { 2 }]);
    }
    graph
}

/// A plan of a strategy that is mapped once, with this many chunks to spare.
pub(crate) fn placed(
    graph: &Graph<'_>,
    machine: &Machine,
    strategy: Strategy,
    spare: u64,
) -> OwnedPlan {
    let request = Request { graph, machine, budget_bytes: 0 };
    let (least_bytes, _) = planning::min_feasible(&request, strategy).unwrap();
    let budget_bytes = least_bytes + spare * machine.chunk_bytes;
    let plan = planning::plan(&Request { budget_bytes, ..request }, strategy).unwrap();
    placing::place(graph, machine, &plan, u64::MAX).unwrap()
}
