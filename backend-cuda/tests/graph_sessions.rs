//! A session that runs as CUDA graphs has the values of a session that runs call by call.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_cuda::{CudaDevice, CudaError, GraphSession, Integrity, IntegrityKernels};
use integrity::Backend;
use planner_core::planner::Strategy;
use planner_core::{ExecuteError, Kind, Machine, TensorId};
use spillway::{Graph, Plan, Session, SessionError};
use workloads::{OwnedMachine, OwnedPlan};

type Calls<'g> = Session<CudaDevice, IntegrityKernels<'g>>;

/// A training step whose last op also writes an output.
fn work(chunk_bytes: u64, reads: Kind) -> Graph {
    let mut owned = common::training_step(chunk_bytes, reads);
    let state = owned.graph().unwrap().tensors().iter().position(|of| of.kind == Kind::State);
    let state = TensorId(u32::try_from(state.unwrap()).unwrap());
    let output = owned.push_tensor("result", chunk_bytes, Kind::Output);
    owned.push_op("result", 1000, 0, &[state], &[output]);
    Graph::new(owned).unwrap()
}

fn session<'g>(
    graph: &'g Graph,
    (backend, machine): (&Integrity, Machine),
    plan: &OwnedPlan,
) -> Calls<'g> {
    let mut device = backend.open(machine, 0).unwrap();
    let kernels = backend.kernels(&mut device, graph.graph()).unwrap();
    let machine = OwnedMachine::new("emulated", machine);
    let mut plan = plan.clone();
    (plan.graph, plan.machine) = ("step".to_owned(), "emulated".to_owned());
    let plan = Plan::new(graph, &machine, plan).unwrap();
    Session::new(plan, device, kernels).unwrap()
}

type Graphs<'g> = GraphSession<IntegrityKernels<'g>>;

/// The values of all states and outputs by tensor, which `read` reads.
fn values(graph: &Graph, mut read: impl FnMut(Kind, TensorId, &mut [u8])) -> Vec<Vec<u8>> {
    let tensors = (0..).map(TensorId).zip(graph.graph().tensors());
    let values = tensors.map(|(id, tensor)| {
        let mut bytes = vec![0; usize::try_from(tensor.bytes).unwrap()];
        if matches!(tensor.kind, Kind::State | Kind::Output) {
            read(tensor.kind, id, &mut bytes);
        }
        bytes
    });
    values.collect()
}

/// Fails unless both sessions have the same values.
fn assert_same(graph: &Graph, graphs: &mut Graphs<'_>, calls: &mut Calls<'_>) {
    let of_graphs = values(graph, |kind, id, into| match kind {
        Kind::Output => graphs.read_output(id, into).unwrap(),
        _ => graphs.read_state_at(id, 0, into).unwrap(),
    });
    let of_calls = values(graph, |kind, id, into| match kind {
        Kind::Output => calls.read_output(id, into).unwrap(),
        _ => calls.read_state(id, into).unwrap(),
    });
    assert_eq!(of_graphs, of_calls);
}

#[test]
fn a_session_goes_on_as_graphs() {
    let (_, backend, machine) = common::emulated();
    for (reads, spare) in [(Kind::Input, 0), (Kind::State, 0), (Kind::State, 3)] {
        let graph = work(machine.chunk_bytes, reads);
        let plan = common::placed(&graph.graph(), &machine, Strategy::OnDemand, spare);
        let mut calls = session(&graph, (&backend, machine), &plan);
        let mut before = session(&graph, (&backend, machine), &plan);
        before.run(1).unwrap();
        let mut graphs = GraphSession::record(before).unwrap();
        graphs.run().unwrap();
        let length = graphs.cycle().length();
        assert_eq!(graphs.session().iterations(), 1 + 2 * length, "{reads:?}, {spare} chunks");
        calls.run(1 + 2 * length).unwrap();
        assert_same(&graph, &mut graphs, &mut calls);

        // The next launch reads values that are written between two launches.
        let weights = TensorId(1);
        assert_eq!(graph.graph().tensor(weights).kind, Kind::State);
        let value = [7; 1000];
        graphs.write_state_at(weights, 24, &value).unwrap();
        calls.write_state_at(weights, 24, &value).unwrap();
        graphs.run().unwrap();
        graphs.wait().unwrap();
        calls.run(length).unwrap();
        assert_same(&graph, &mut graphs, &mut calls);
    }
}

#[test]
fn a_plan_that_maps_as_it_runs_is_refused() {
    let (_, backend, machine) = common::emulated();
    let graph = work(machine.chunk_bytes, Kind::State);
    let mut plan = common::placed(&graph.graph(), &machine, Strategy::OnDemand, 0);
    plan.placements = None;
    let refused = GraphSession::record(session(&graph, (&backend, machine), &plan)).unwrap_err();
    let SessionError::Execute { error, message } = refused else { panic!("{refused}") };
    assert!(matches!(error, ExecuteError::Device { error: CudaError::MappedInGraph, .. }));
    assert!(message.contains("memory cannot be mapped while a graph is captured"), "{message}");
}
