//! Planning, placing, lowering, predicting and verifying do not allocate.
#![allow(unsafe_code, reason = "counting allocations takes a global allocator")]

mod buffers;

use buffers::Buffers;
use planner_core::bounds::BoundOrder;
use planner_core::placement::Over;
use planner_core::planner::{self, Auto, Request, Strategy, Weights};
use planner_core::schedule::Scheduled;
use planner_core::{
    Graph, Kind, Limits, Machine, MachineParameters, Op, Scratch, Tensor, TensorId, bounds, lower,
    placement, timeline, verify,
};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// The number of iterations that placements cover.
const ITERATIONS: usize = 2;

struct Counting;

thread_local! {
    /// Counts this thread only, since the test harness allocates while a test runs.
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed on unchanged to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends no longer counts.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A chain: each op reads the previous value and a weight, and updates the weight.
fn chain(length: u32) -> (Vec<Tensor>, Vec<Op>, Vec<TensorId>) {
    let mut tensors = vec![Tensor::new(5000, Kind::Input)];
    let (mut ops, mut operands) = (Vec::new(), Vec::new());
    for at in 0..length {
        let (weight, value) = (2 * at + 1, 2 * at + 2);
        tensors.push(Tensor::new(3000 + u64::from(at), Kind::State));
        tensors.push(Tensor::new(5000, Kind::Temporary));
        ops.push(
            Op::new(700)
                .with_workspace_bytes(100)
                .with_first_operand(operands.len() as u32)
                .with_reads(2)
                .with_writes(2)
                .with_repeatable(true),
        );
        let before = if at == 0 { 0 } else { value - 2 };
        operands.extend([before, weight, weight, value].map(TensorId));
    }
    (tensors, ops, operands)
}

/// A forward and a backward pass of layers, each with a weight and an output.
fn layers(count: u32) -> (Vec<Tensor>, Vec<Op>, Vec<TensorId>) {
    let tensor = |kind| Tensor::new(5000, kind);
    let tensors = [Kind::State, Kind::Temporary].map(|kind| vec![tensor(kind); count as usize]);
    let (mut ops, mut operands) = (Vec::new(), Vec::new());
    for at in (0..count).chain((0..count).rev()) {
        let is_forward = ops.len() < count as usize;
        let before = at.checked_sub(1).map(|before| count + before);
        let (weight, after) = (Some(at), Some(count + at));
        let (reads, writes) = match is_forward {
            true => ([weight, before, None], [after, None]),
            false => ([weight, before, after], [weight, before]),
        };
        let [reads, writes] = [&reads[..], &writes[..]]
            .map(|list| list.iter().flatten().copied().map(TensorId).collect::<Vec<_>>());
        ops.push(
            Op::new(700)
                .with_workspace_bytes(if is_forward { 0 } else { 5000 })
                .with_first_operand(operands.len() as u32)
                .with_reads(reads.len() as u32)
                .with_writes(writes.len() as u32)
                .with_repeatable(is_forward),
        );
        operands.extend(reads.into_iter().chain(writes));
    }
    (tensors.concat(), ops, operands)
}

const MACHINE: Machine = {
    let Ok(machine) = Machine::new(
        MachineParameters::new()
            .with_device_bytes(300_000)
            .with_host_bytes(1 << 30)
            .with_chunk_bytes(4096)
            .with_h2d_bytes_per_s(10_000_000_000)
            .with_d2h_bytes_per_s(10_000_000_000)
            .with_transfer_latency_ns(10),
    ) else {
        panic!("the machine is not sound")
    };
    machine
};

fn limits((tensors, ops, operands): (&[Tensor], &[Op], &[TensorId]), steps: usize) -> Limits {
    let limits = Limits {
        ops: ops.len(),
        operands: operands.len(),
        tensors: tensors.len(),
        pools: 2,
        iterations: ITERATIONS,
        objects: 20_000,
        ..Limits::default()
    };
    limits.with_steps(steps)
}

#[test]
fn weight_offloading_allocates_nothing() {
    let (tensors, ops, operands) = layers(40);
    let limits = limits((&tensors, &ops, &operands), 1000);
    let mut memory = vec![0; planner::scratch_words(&limits)];
    let mut buffers = Buffers::new(&limits);
    let machine = Machine::new((*MACHINE).with_chunk_bytes(1)).unwrap();

    let before = ALLOCATIONS.with(Cell::get);
    let mut scratch = Scratch::new(&mut memory);
    let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
    let request = Request { graph: &graph, machine: &machine, budget_bytes: 300_000 };
    let strategy = Strategy::Weights(Weights::new());
    let plan = planner::plan(&request, strategy, buffers.output(), &mut scratch).unwrap();
    let after = ALLOCATIONS.with(Cell::get);

    assert!(plan.predicted.h2d_bytes > 0, "the plan should move something");
    assert!(before > 0, "its memory should be counted");
    assert_eq!(after - before, 0);
}

#[test]
fn nothing_is_allocated() {
    let (tensors, ops, operands) = chain(200);
    let limits = limits((&tensors, &ops, &operands), 4000);
    let words = [
        planner::scratch_words(&limits),
        lower::scratch_words(&limits),
        timeline::scratch_words(&limits),
        verify::scratch_words(&limits),
        bounds::scratch_words(&limits),
        placement::scratch_words(&limits),
    ];
    let mut memory = vec![0; words.into_iter().max().unwrap()];
    let mut buffers = Buffers::new(&limits);
    let (mut objects, mut ends) = (vec![0; limits.objects], vec![0; 4 * limits.steps]);

    let before = ALLOCATIONS.with(Cell::get);
    let mut scratch = Scratch::new(&mut memory);
    let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
    let request = Request { graph: &graph, machine: &MACHINE, budget_bytes: 200_000 };
    let strategy = Strategy::Auto(Auto::default());
    let plan = planner::plan(&request, strategy, buffers.output(), &mut scratch).unwrap();
    let over =
        Over { iterations: ITERATIONS as u32, settled: true, spares_due: true, most_lacking: 0 };
    let output = placement::PlacementOutput { objects: &mut objects, ends: &mut ends };
    let plan = placement::place(&graph, &MACHINE, &plan, over, output, &mut scratch).unwrap();
    let mut lowered = [Scheduled::EMPTY; 4096];
    let schedule = lower(&graph, &MACHINE, &plan, &mut lowered, &mut scratch).unwrap();
    timeline::check(&graph, &MACHINE, &plan, &schedule, &mut scratch).unwrap();
    verify(&graph, &MACHINE, &plan, &schedule, &mut scratch).unwrap();
    bounds::period_ns(&graph, &MACHINE, 200_000, BoundOrder::Given, &mut scratch).unwrap();
    let after = ALLOCATIONS.with(Cell::get);

    assert!(plan.predicted.h2d_bytes > 0, "the plan should move something");
    assert!(plan.placements.is_some_and(|placements| placements.objects.len() > 1000));
    assert!(before > 0, "its memory should be counted");
    assert_eq!(after - before, 0);
}
