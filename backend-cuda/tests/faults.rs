//! What fails is an error, the host block stays readable, and the next device works.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use integrity::{Backend, reference_digest, states_digest};
use planner_core::backend::{BackendError, ErrorKind, Transfers};
use planner_core::executor::Moment;
use planner_core::planner::Strategy;
use planner_core::{ExecuteError, Kind};
use spillway::planning;
use std::collections::HashSet;

const ITERATIONS: u64 = 8;

#[test]
fn faults_by_seed_are_errors_and_no_more() {
    let (emulated, backend, machine) = common::emulated();
    let work = common::training_step(machine.chunk_bytes, Kind::Input);
    let graph = work.graph().unwrap();
    let placed = common::placed(&graph, &machine, Strategy::OnDemand, 0);
    let mut kinds = HashSet::new();
    for seed in 0..60 {
        // With placements, and without.
        let mut plan = placed.plan();
        if seed % 2 == 1 {
            plan.placements = None;
        }
        let schedule = planning::schedule(&graph, &machine, &plan).unwrap();
        let verified = planning::prove(&graph, &machine, &plan, &schedule.schedule()).unwrap();
        let Ok(mut device) = backend.open(machine, 0) else { panic!("seed {seed}") };
        let mut kernels = backend.kernels(&mut device, graph).unwrap();
        let (refused, lost) = if seed % 3 == 0 { (0, 800) } else { (400, 0) };
        emulated.set_faults(seed, refused, lost);
        // Streams take their faults when they are created.
        if lost > 0 {
            drop(device);
            device = backend.open(machine, 0).unwrap();
            kernels = backend.kernels(&mut device, graph).unwrap();
        }
        let ran = planning::with_executor(
            &verified,
            &mut device,
            &mut kernels,
            |mut executor, device, kernels| {
                executor.run(device, kernels, ITERATIONS)?;
                executor.save_states(device)?;
                Ok(states_digest(&graph, device, executor.host_layout()).unwrap())
            },
        );
        emulated.set_seed(None);
        let mut is_lost = false;
        match ran {
            Ok(digest) => {
                assert_eq!(digest, reference_digest(&graph, ITERATIONS), "seed {seed}");
            }
            Err(ExecuteError::Device { at, error }) => {
                kinds.insert(error.kind());
                // Then nothing can be given back one by one.
                is_lost = error.kind() == ErrorKind::Lost;
                // The block is made last of all that is set up.
                let read = device.read_host(0, &mut [0; 64]);
                assert!(read.is_ok() || at == Moment::SetUp, "{error}");
            }
            Err(other) => panic!("seed {seed}: {other}"),
        }
        drop(device);
        let after = emulated.counters();
        assert!(is_lost || after.left_behind == 0, "seed {seed}: {after:?}");
    }
    for kind in [ErrorKind::Lost, ErrorKind::OutOfDeviceMemory, ErrorKind::Other] {
        assert!(kinds.contains(&kind), "no {kind:?} among {kinds:?}");
    }
}
