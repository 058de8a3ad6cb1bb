//! The suite's checks of graphs are held to what they say: each finds a bug that it is meant to find.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[allow(dead_code, reason = "the tests use only a part")]
mod common;

use backend_cuda::{CudaDevice, CudaError, Graph as CudaGraph, Integrity, IntegrityKernels};
use conformance::suite::{Bench, graph_checks};
use integrity::{Backend, Found, Graphs};
use planner_core::backend::{DeviceAddress, Launch};
use planner_core::{Graph, Machine};

/// What is wrong with a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    None,
    /// Graphs keep the iteration that was captured.
    FreezesTheIteration,
    /// Graphs are taken and not launched.
    LosesGraphs,
    /// Graphs of other devices, and those whose memory is gone, are taken and not launched.
    TakesAnyGraph,
}

struct Mutant(Integrity, Bug);

impl Backend for Mutant {
    type Error = CudaError;
    type Device = CudaDevice;
    type Kernels<'g> = IntegrityKernels<'g>;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn find(&self) -> Result<Found, String> {
        self.0.find()
    }

    fn open(&self, machine: Machine, order: u64) -> Result<CudaDevice, String> {
        self.0.open(machine, order)
    }

    fn kernels<'g>(
        &self,
        device: &mut CudaDevice,
        graph: Graph<'g>,
    ) -> Result<IntegrityKernels<'g>, CudaError> {
        self.0.kernels(device, graph)
    }
}

impl Graphs for Mutant {
    type Graph = CudaGraph;

    fn begin_capture(&self, device: &mut CudaDevice) -> Result<(), CudaError> {
        self.0.begin_capture(device)
    }

    fn end_capture(&self, device: &mut CudaDevice) -> Result<CudaGraph, CudaError> {
        self.0.end_capture(device)
    }

    fn launch_graph(
        &self,
        device: &mut CudaDevice,
        graph: &CudaGraph,
        iterations_later: u64,
    ) -> Result<(), CudaError> {
        let later = if self.1 == Bug::FreezesTheIteration { 0 } else { iterations_later };
        if self.1 == Bug::LosesGraphs {
            return Ok(());
        }
        match self.0.launch_graph(device, graph, later) {
            Err(_) if self.1 == Bug::TakesAnyGraph => Ok(()),
            launched => launched,
        }
    }

    fn write_iteration(
        &self,
        device: &mut CudaDevice,
        launch: &Launch<'_>,
        at: DeviceAddress,
    ) -> Result<(), CudaError> {
        self.0.write_iteration(device, launch, at)
    }
}

#[test]
fn each_check_of_graphs_finds_its_mutant() {
    let (_, backend, _) = common::emulated();
    let machine = backend.find().unwrap().machine;
    let found = |bug: Bug| -> Vec<&str> {
        let mutant = Mutant(backend.clone(), bug);
        let bench = Bench { backend: &mutant, machine, order: 0 };
        let checks = graph_checks::<Mutant>();
        let failed = checks.iter().filter(|check| check.run_in_order(&bench).is_err());
        failed.map(|check| check.name).collect()
    };
    assert_eq!(found(Bug::None), [""; 0]);
    assert_eq!(found(Bug::FreezesTheIteration), ["graphs::kernels_find_their_iteration"]);
    let losing = found(Bug::LosesGraphs);
    assert!(losing.contains(&"graphs::graphs_copy_over_mappings_and_aliases"), "{losing:?}");
    assert_eq!(found(Bug::TakesAnyGraph), ["graphs::foreign_and_late_graphs_are_refused"]);
}
