//! Plans written by hand, with times worked out by hand: one test for each sentence of the
//! format.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod arena;
mod figures;
mod memory;
mod placements;
mod repeats;
mod times;
mod values;

use conformance::ledger::{Event, Judgement, Violation, judge, measure};
use conformance::plans::Case;
use planner_core::plan::{ArenaPlacement, Pool, Resident};
use planner_core::{
    Kind, Machine, MachineParameters, OpId, Part, Step, Tensor, TensorId, VerifyError,
};
use spillway::planning;
use workloads::{OwnedGraph, OwnedPlan};

/// Chunks of 100 bytes, and links that take 1 ns a byte.
const MACHINE: MachineParameters = MachineParameters::new()
    .with_device_bytes(1 << 20)
    .with_host_bytes(1 << 20)
    .with_chunk_bytes(100)
    .with_h2d_bytes_per_s(1_000_000_000)
    .with_d2h_bytes_per_s(1_000_000_000);

/// More objects than eight iterations of these plans allocate.
const PLENTY: u64 = 1000;

const fn state(bytes: u64) -> Tensor {
    Tensor::new(bytes, Kind::State)
}

const fn input(bytes: u64) -> Tensor {
    Tensor::new(bytes, Kind::Input)
}

const fn temporary(bytes: u64) -> Tensor {
    Tensor::new(bytes, Kind::Temporary)
}

const fn whole(tensor: u32) -> Part {
    Part::whole(TensorId(tensor))
}

const fn part(tensor: u32, first: u64, count: u64) -> Part {
    Part { tensor: TensorId(tensor), first, count }
}

const fn prefetch(tensor: u32) -> Step {
    Step::Prefetch(whole(tensor))
}

const fn launch(op: u32) -> Step {
    Step::launch(OpId(op))
}

const fn offload(tensor: u32) -> Step {
    Step::Offload(whole(tensor))
}

const fn evict(tensor: u32) -> Step {
    Step::Evict(whole(tensor))
}

/// Resident at start with a host copy.
const fn copied(tensor: u32) -> Resident {
    Resident { part: whole(tensor), host_copy: true }
}

/// Resident at start, and the host copy is stale.
const fn stale(tensor: u32) -> Resident {
    Resident { part: whole(tensor), host_copy: false }
}

/// An op's time, reads and writes.
type OpData<'a> = (u64, &'a [u32], &'a [u32]);

fn ids(tensors: &[u32]) -> Vec<TensorId> {
    tensors.iter().copied().map(TensorId).collect()
}

/// A plan with one pool of this many chunks.
fn case(
    tensors: &[Tensor],
    ops: &[OpData<'_>],
    count: u64,
    resident_at_start: &[Resident],
    steps: &[Step],
) -> Case {
    let mut graph = OwnedGraph::default();
    for tensor in tensors {
        graph.push_tensor("tensor", tensor.bytes, tensor.kind);
    }
    for (time_ns, reads, writes) in ops {
        graph.push_op("op", *time_ns, 0, &ids(reads), &ids(writes));
    }
    let pools = vec![Pool { object_bytes: 100, count }];
    let mut plan = OwnedPlan::new(pools, resident_at_start.to_vec(), steps.to_vec());
    plan.budget_bytes = MACHINE.device_bytes;
    Case { graph, machine: Machine::new(MACHINE).unwrap(), plan }
}

fn change_machine(case: &mut Case, change: impl FnOnce(&mut MachineParameters)) {
    let mut parameters = *case.machine;
    change(&mut parameters);
    case.machine = Machine::new(parameters).unwrap();
}

/// The same case with an arena.
fn with_arena(mut case: Case, arena_bytes: u64, placements: &[(u32, u64)]) -> Case {
    case.plan.arena_bytes = arena_bytes;
    case.plan.arena = placements
        .iter()
        .map(|&(tensor, offset_bytes)| ArenaPlacement { tensor: TensorId(tensor), offset_bytes })
        .collect();
    case
}

/// Judges a case, and has the verifier come to the same verdict.
fn try_measure(case: &Case) -> Result<Judgement, Violation> {
    let (graph, plan) = (case.graph.graph().unwrap(), case.plan.plan());
    let slow = measure(&graph, &case.machine, &plan);
    let fast = verified(case);
    assert_eq!(slow.is_ok(), fast.is_ok(), "{:?} {fast:?}", slow.as_ref().err());
    slow
}

fn verified(case: &Case) -> Result<(), VerifyError> {
    let (graph, plan) = (case.graph.graph().unwrap(), case.plan.plan());
    let schedule = planning::schedule(&graph, &case.machine, &plan)?;
    planning::prove(&graph, &case.machine, &plan, &schedule.schedule())?;
    planning::predict(&graph, &case.machine, &plan, &schedule.schedule())?;
    Ok(())
}

fn measured(case: &Case) -> Judgement {
    try_measure(case).unwrap_or_else(|violation| panic!("{violation}"))
}

/// The case is refused for this reason.
fn assert_refused(case: &Case, reason: &str) {
    match try_measure(case) {
        Ok(_) => panic!("accepted, not refused because {reason}"),
        Err(violation) => assert!(violation.to_string().contains(reason), "{violation}"),
    }
}

/// The events of one step, iteration after iteration.
fn events(case: &Case, step: usize) -> Vec<Event> {
    measured(case).timeline.into_iter().filter(|event| event.step == step).collect()
}

/// When one step starts in the first iteration.
fn first_start_ns(case: &Case, step: usize) -> u64 {
    events(case, step)[0].start_ns
}

/// When one step starts in each of the first three iterations.
fn starts_ns(case: &Case, step: usize) -> [u64; 3] {
    let events = events(case, step);
    [events[0].start_ns, events[1].start_ns, events[2].start_ns]
}
