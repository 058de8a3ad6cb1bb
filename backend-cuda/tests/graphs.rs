//! Plans with placements run as CUDA graphs, and call nothing that maps.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_cuda::{Cycle, Integrity, Replay, cycle};
use emulated_cuda::Emulated;
use integrity::{Backend, reference_digest, states_digest};
use planner_core::planner::{Auto, Order, Repeats, Strategy};
use planner_core::{Graph, Kind, Machine};
use spillway::planning;
use std::sync::{Mutex, PoisonError};
use workloads::{OwnedGraph, OwnedPlan};

/// Runs some iterations eagerly, and some cycles as graphs.
fn hold(
    bench @ (_, _, machine): &(Emulated, Integrity, Machine),
    reads: Kind,
    spare: u64,
) -> (Cycle, u32) {
    let work = common::training_step(machine.chunk_bytes, reads);
    let graph = work.graph().unwrap();
    hold_plan(bench, &graph, &common::placed(&graph, machine, Strategy::OnDemand, spare))
}

/// The same under a plan.
fn hold_plan(
    (emulated, backend, machine): &(Emulated, Integrity, Machine),
    graph: &Graph<'_>,
    plan: &OwnedPlan,
) -> (Cycle, u32) {
    let (graph, plan) = (*graph, plan.plan());
    let schedule = planning::schedule(&graph, machine, &plan).unwrap();
    let verified = planning::prove(&graph, machine, &plan, &schedule.schedule()).unwrap();
    let divided = cycle(&graph, &plan).unwrap();
    for (first, others) in [(0, 0), (0, 1), (3, 4)] {
        let iterations = first + (2 + others) * divided.length();
        let mut device = backend.open(*machine, 0).unwrap();
        let mut kernels = backend.kernels(&mut device, graph).unwrap();
        let steady = |emulated: &Emulated| emulated.counters().vmm_calls;
        let digest = planning::with_executor(
            &verified,
            &mut device,
            &mut kernels,
            |mut executor, device, kernels| {
                executor.run(device, kernels, first)?;
                let before = steady(emulated);
                let mut replay = Replay::record(&mut executor, device, kernels, divided, first)?;
                for _ in 0..others {
                    replay.run(&executor, device, kernels)?;
                }
                executor.save_states(device)?;
                let between = states_digest(&graph, device, executor.host_layout()).unwrap();
                let saved = first + (1 + others) * divided.length();
                assert_eq!(between, reference_digest(&graph, saved), "{saved} iterations");
                // Graphs can go on after states were saved.
                replay.run(&executor, device, kernels)?;
                executor.save_states(device)?;
                assert_eq!(steady(emulated), before, "calls that map");
                Ok(states_digest(&graph, device, executor.host_layout()).unwrap())
            },
        )
        .unwrap();
        let launches = (2 + others) * divided.graphs;
        assert_eq!(device.counters().graph_launches, launches);
        assert_eq!(digest, reference_digest(&graph, iterations), "{iterations} iterations");
    }
    (divided, plan.placements.unwrap().iterations)
}

/// One test at a time: the counters of the driver are those of the process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn graphs_compute_what_iterations_do() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bench = common::emulated();
    bench.0.delay_all();
    let mut alternating = 0;
    for spare in 0..6 {
        let (with_inputs, _) = hold(&bench, Kind::Input, spare);
        assert_eq!(with_inputs.iterations, 1);
        assert!(with_inputs.graphs.is_multiple_of(2));
        let (without, period) = hold(&bench, Kind::State, spare);
        assert!(without.iterations > 1 && without.graphs == 1, "{without:?}");
        alternating += u32::from(period > 1);
    }
    assert!(alternating > 0, "no plan whose objects take more than an iteration to come round");
    let counters = bench.0.counters();
    assert_eq!(counters.left_behind, 0, "{counters:?}");
}

/// A step of training whose activations take far longer to move than to make again.
fn repeatable_step(chunk_bytes: u64, reads: Kind) -> OwnedGraph {
    const LAYERS: usize = 5;
    let mut graph = OwnedGraph::new("repeats");
    let mut values = vec![graph.push_tensor("x", 3 * chunk_bytes, reads)];
    let mut weights = Vec::new();
    for layer in 0..LAYERS {
        let weight = graph.push_tensor("w", 64, Kind::State);
        let output = graph.push_tensor("a", 3 * chunk_bytes, Kind::Temporary);
        let forward = graph.push_op("forward", 100, 0, &[values[layer], weight], &[output]);
        graph.set_repeatable(forward);
        values.push(output);
        weights.push(weight);
    }
    let mut slope = values[LAYERS];
    for layer in (0..LAYERS).rev() {
        let before = graph.push_tensor("g", 3 * chunk_bytes, Kind::Temporary);
        let reads = [slope, values[layer], weights[layer]];
        graph.push_op("backward", 100, 0, &reads, &[weights[layer], before]);
        slope = before;
    }
    graph
}

#[test]
fn repeats_are_captured_as_launches_are() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let bench = common::emulated();
    bench.0.delay_all();
    let auto =
        Strategy::Auto(Auto { effort: Some(8), order: Order::Free, repeats: Repeats::Allowed });
    for reads in [Kind::Input, Kind::State] {
        let work = repeatable_step(bench.2.chunk_bytes, reads);
        let graph = work.graph().unwrap();
        let mut plans = (0..16).map(|spare| common::placed(&graph, &bench.2, auto, spare));
        let plan = plans.find(|plan| plan.predicted.repeat_ns > 0);
        hold_plan(&bench, &graph, &plan.expect("an op is repeated"));
    }
}
