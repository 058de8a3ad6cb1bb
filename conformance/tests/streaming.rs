//! Weights that are streamed for inference.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use planner_core::planner::{Auto, Groups, Request, Strategy as Planner};
use planner_core::{Kind, Machine, MachineParameters};
use proptest::collection::vec;
use proptest::prelude::*;
use spillway::planning;
use workloads::OwnedGraph;

/// Layers, each with its time and the chunks of its weight and of what it hands on.
fn inference(layers: &[(u64, u64, u64)]) -> OwnedGraph {
    let mut graph = OwnedGraph::new("inference");
    let mut before = graph.push_tensor("x", 256, Kind::Input);
    for &(time_ns, weight_chunks, handed_chunks) in layers {
        let weight = graph.push_tensor("w", 256 * weight_chunks, Kind::State);
        let after = graph.push_tensor("a", 256 * handed_chunks, Kind::Temporary);
        graph.push_op("layer", time_ns, 0, &[before, weight], &[after]);
        before = after;
    }
    graph
}

fn machine(ns_per_chunk: u64) -> Machine {
    let bytes_per_s = 256_000_000_000 / ns_per_chunk;
    let parameters = MachineParameters {
        device_bytes: 1 << 30,
        host_bytes: 1 << 30,
        chunk_bytes: 256,
        h2d_bytes_per_s: bytes_per_s,
        d2h_bytes_per_s: bytes_per_s,
        transfer_latency_ns: 10,
        map_ns_per_chunk: 0,
        unmap_ns_per_chunk: 0,
    };
    Machine::new(parameters).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whoever tunes the knobs of a server by hand gets no shorter plan, at any budget.
    #[test]
    fn auto_is_no_slower_than_any_group(
        layers in vec((1..2000u64, 1..9u64, 1..3u64), 2..24),
        ns_per_chunk in 1..1000u64,
        share in 0..=100u64,
    ) {
        let (owned, machine) = (inference(&layers), machine(ns_per_chunk));
        let graph = owned.graph().unwrap();
        let request = |budget_bytes| Request { graph: &graph, machine: &machine, budget_bytes };
        let least_bytes = [Planner::Groups(Groups::default()), Planner::Auto(Auto::default())]
            .map(|strategy| planning::min_feasible(&request(0), strategy).unwrap().0)
            .into_iter()
            .max()
            .unwrap();
        let in_core_bytes = planning::in_core_peak_bytes(&graph, &machine).unwrap();
        let more_bytes = in_core_bytes.saturating_sub(least_bytes) * share / 100;
        let request = request(least_bytes + more_bytes);
        let period_ns = |strategy| planning::plan(&request, strategy).unwrap().predicted.period_ns;
        let auto_ns = period_ns(Planner::Auto(Auto { effort: Some(16), ..Auto::default() }));
        let groups_ns = period_ns(Planner::Groups(Groups::default()));
        prop_assert!(auto_ns <= groups_ns, "auto {auto_ns} ns, groups {groups_ns} ns");
    }
}
