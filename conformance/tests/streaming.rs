//! Weights that are streamed for inference.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_sim::{SimDevice, SimKernels, reference_digest};
use conformance::ledger::judge;
use planner_core::planner::{Auto, Groups, Request, Strategy as Planner};
use planner_core::{Kind, Machine, MachineParameters};
use proptest::collection::vec;
use proptest::prelude::*;
use spillway::planning;
use spillway::streaming::{self, Layer};
use workloads::{OwnedGraph, OwnedMachine};

const ITERATIONS: u64 = 4;

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
    let parameters = MachineParameters::new()
        .with_device_bytes(1 << 30)
        .with_host_bytes(1 << 30)
        .with_chunk_bytes(256)
        .with_h2d_bytes_per_s(bytes_per_s)
        .with_d2h_bytes_per_s(bytes_per_s)
        .with_transfer_latency_ns(10);
    Machine::new(parameters).unwrap()
}

/// Layers with caches and outputs, and without. All hand something on and some may run on the host, or none.
fn lists() -> impl Strategy<Value = Vec<Layer>> {
    let host_ns = prop_oneof![1 => Just(None), 3 => (1..4000u64).prop_map(Some)];
    let some = |most: u64| prop_oneof![1 => Just(0), 1 => 1..most];
    let layer = (1..9 * 256u64, 1..2000u64, host_ns, 1..400u64, some(1500), some(600));
    let layer = layer.prop_map(|(bytes, time_ns, host_ns, activation, cache, output)| {
        let mut layer = Layer::new(bytes, time_ns).activation_bytes(activation);
        layer.host_ns = host_ns;
        layer.cache_bytes(cache).output_bytes(output)
    });
    let on_device = |layers: Vec<Layer>| {
        let alone = |mut layer: Layer| {
            layer.host_ns = None;
            layer.activation_bytes(0)
        };
        layers.into_iter().map(alone).collect()
    };
    let lists = || vec(layer.clone(), 1..20);
    prop_oneof![2 => lists(), 1 => lists().prop_map(on_device)]
}

proptest! {
    #![proptest_config(conformance::seeds::config(96))]

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
        let auto_ns = period_ns(Planner::Auto(Auto::new().with_effort(16)));
        let groups_ns = period_ns(Planner::Groups(Groups::default()));
        prop_assert!(auto_ns <= groups_ns, "auto {auto_ns} ns, groups {groups_ns} ns");
    }

    /// The ledger agrees with the verifier, and every byte is right on an adversarial device.
    #[test]
    fn lists_leave_the_digest_of_their_layers(
        layers in lists(),
        ns_per_chunk in 1..3000u64,
        share in 0..=100u64,
        order in any::<u64>(),
    ) {
        let on = OwnedMachine::new("drawn", machine(ns_per_chunk));
        let all_bytes: u64 = layers.iter().map(|layer| layer.bytes).sum();
        let budget_bytes = streaming::min_feasible(&layers, &on).bytes + all_bytes * share / 100;
        let plan = streaming::plan(&layers, &on, budget_bytes).unwrap();
        prop_assert!(plan.figures().peak_bytes <= budget_bytes);
        prop_assert!(plan.addresses().unwrap().slab_bytes() <= budget_bytes);
        let (graph, plan) = (plan.graph().graph(), plan.owned().plan());
        if let Err(violation) = judge(&graph, &on.machine, &plan) {
            return Err(TestCaseError::fail(format!("{violation:?}")));
        }
        let schedule = planning::schedule(&graph, &on.machine, &plan).unwrap();
        let schedule = schedule.schedule();
        let verified = planning::prove(&graph, &on.machine, &plan, &schedule).unwrap();
        let mut device = SimDevice::adversarial(on.machine, order);
        let mut kernels = SimKernels::new(graph);
        planning::execute(&verified, &mut device, &mut kernels, ITERATIONS).unwrap();
        let digest = kernels.digest(&device).unwrap();
        prop_assert_eq!(digest, reference_digest(&graph, ITERATIONS));
    }
}
