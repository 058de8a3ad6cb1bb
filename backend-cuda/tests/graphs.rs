//! Plans with placements run as CUDA graphs, and call nothing that maps.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_cuda::{Cycle, Integrity, Replay, cycle};
use emulated_cuda::Emulated;
use integrity::{Backend, IntegrityKernels, reference_digest};
use planner_core::planner::Strategy;
use planner_core::{Kind, Machine};
use workloads::planning;

/// Runs some iterations eagerly, and some cycles as graphs.
fn hold(emulated: &Emulated, backend: &Integrity, machine: &Machine, reads: Kind) -> Cycle {
    let work = common::training_step(machine.chunk_bytes, reads);
    let graph = work.graph().unwrap();
    let plan = common::placed(&graph, machine, Strategy::OnDemand, 0);
    let plan = plan.plan();
    let schedule = planning::schedule(&graph, machine, &plan).unwrap();
    let verified = planning::prove(&graph, machine, &plan, &schedule.schedule()).unwrap();
    let rooms = common::rooms(&verified);
    let divided = cycle(&graph, &plan).unwrap();
    for (first, others) in [(0, 0), (0, 1), (3, 4)] {
        let iterations = first + (1 + others) * divided.length();
        let mut device = backend.open(graph, *machine, 0).unwrap();
        let mut kernels = IntegrityKernels::new(backend, &rooms);
        let steady = |emulated: &Emulated| emulated.counters().vmm_calls;
        planning::with_executor(
            &verified,
            &mut device,
            &mut kernels,
            |mut executor, device, kernels| {
                executor.run(device, kernels, first)?;
                let before = steady(emulated);
                let mut replay = Replay::record(&mut executor, device, kernels, divided, first)?;
                for _ in 0..others {
                    replay.run(device, kernels)?;
                }
                executor.finish(device)?;
                assert_eq!(steady(emulated), before, "calls that map");
                Ok(())
            },
        )
        .unwrap();
        let launches = (1 + others) * divided.graphs;
        assert_eq!(device.counters().graph_launches, launches);
        let digest = rooms.digest(backend, &mut device).unwrap();
        assert_eq!(digest, reference_digest(&graph, iterations), "{iterations} iterations");
    }
    divided
}

#[test]
fn graphs_compute_what_iterations_do() {
    let (emulated, backend, machine) = common::emulated();
    emulated.delay_all();
    let with_inputs = hold(&emulated, &backend, &machine, Kind::Input);
    assert_eq!(with_inputs.iterations, 1);
    assert!(with_inputs.graphs.is_multiple_of(2));
    let without = hold(&emulated, &backend, &machine, Kind::State);
    assert!(without.iterations > 1 && without.graphs == 1, "{without:?}");
    let counters = emulated.counters();
    assert_eq!(counters.left_behind, 0, "{counters:?}");
}
