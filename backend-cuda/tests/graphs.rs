//! Plans with placements run as CUDA graphs, and call nothing that maps.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_cuda::{Cycle, Integrity, Replay, cycle};
use emulated_cuda::Emulated;
use integrity::{Backend, reference_digest, states_digest};
use planner_core::planner::Strategy;
use planner_core::{Kind, Machine};
use spillway::planning;

/// Runs some iterations eagerly, and some cycles as graphs.
fn hold(
    (emulated, backend, machine): &(Emulated, Integrity, Machine),
    reads: Kind,
    spare: u64,
) -> (Cycle, u32) {
    let work = common::training_step(machine.chunk_bytes, reads);
    let graph = work.graph().unwrap();
    let plan = common::placed(&graph, machine, Strategy::OnDemand, spare);
    let plan = plan.plan();
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

#[test]
fn graphs_compute_what_iterations_do() {
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
