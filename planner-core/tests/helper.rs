//! A second thread changes no plan.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod buffers;

use buffers::Buffers;
use planner_core::planner::{self, Auto, Helper, PlanningError, Request, RunBoth, Strategy};
use planner_core::scratch::Buffer;
use planner_core::{
    Graph, Kind, Limits, Machine, MachineParameters, Op, Scratch, Tensor, TensorId,
};
use std::cell::Cell;
use std::thread;

const MICRO_BATCHES: u32 = 4;
const LAYERS: u32 = 8;

/// A training step: each micro-batch runs all layers forward and backward, and adds to their
/// gradients; the last one updates the weights. All but the updates may run again. Each op
/// may run on the host if there is a time for it.
fn training(host_ns: Option<u64>) -> (Vec<Tensor>, Vec<Op>, Vec<TensorId>) {
    let weights = (0..LAYERS).flat_map(|_| [Tensor::new(60_000, Kind::State); 2]);
    let mut tensors: Vec<_> = weights.collect();
    let (mut ops, mut operands) = (Vec::new(), Vec::new());
    let mut op = |reads: &[u32], writes: &[u32], repeatable| {
        let first = operands.len() as u32;
        operands.extend(reads.iter().chain(writes).map(|&id| TensorId(id)));
        let counts = Op::new(20_000).with_first_operand(first).with_reads(reads.len() as u32);
        ops.push(counts.with_writes(writes.len() as u32).with_repeatable(repeatable));
    };
    let weight = |layer| 2 * layer;
    for _ in 0..MICRO_BATCHES {
        let input = tensors.len() as u32;
        tensors.push(Tensor::new(20_000, Kind::Input));
        tensors.extend((0..2 * LAYERS).map(|_| Tensor::new(20_000, Kind::Temporary)));
        for layer in 0..LAYERS {
            op(&[input + layer, weight(layer)], &[input + layer + 1], true);
        }
        let mut gradient = input + LAYERS;
        for layer in (0..LAYERS).rev() {
            let (sum, next) = (weight(layer) + 1, input + 2 * LAYERS - layer);
            op(&[gradient, input + layer, weight(layer), sum], &[next, sum], false);
            gradient = next;
        }
    }
    for layer in 0..LAYERS {
        let (weight, sum) = (weight(layer), weight(layer) + 1);
        op(&[weight, sum], &[weight, sum], false);
    }
    ops.iter_mut().for_each(|op| op.host_ns = host_ns);
    (tensors, ops, operands)
}

fn on_two_threads(one: &mut (dyn FnMut() + Send), other: &mut (dyn FnMut() + Send)) {
    thread::scope(|scope| {
        scope.spawn(other);
        one();
    });
}

/// Plans alone, and with a helper that has room for so many steps.
fn plan(budget_bytes: u64, run_both: &RunBoth<'_>, steps: [usize; 2]) -> Result<(), PlanningError> {
    plan_beside_host(None, Auto::new().with_effort(8), budget_bytes, run_both, steps)
}

/// Does the same with ops that may run on the host if there is a time for each.
fn plan_beside_host(
    host_ns: Option<u64>,
    auto: Auto,
    budget_bytes: u64,
    run_both: &RunBoth<'_>,
    [own_steps, helper_steps]: [usize; 2],
) -> Result<(), PlanningError> {
    let (tensors, ops, operands) = training(host_ns);
    let machine = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 30)
            .with_host_bytes(1 << 30)
            .with_chunk_bytes(256)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000),
    )
    .unwrap();
    let mut words = vec![0; Graph::scratch_words(tensors.len())];
    let graph = Graph::new(&tensors, &ops, &operands, &mut Scratch::new(&mut words)).unwrap();
    let request = Request { graph: &graph, machine: &machine, budget_bytes };
    let limits = Limits::of_graph(&graph);
    let strategy = Strategy::Auto(auto);

    let (own_limits, helper_limits) =
        (limits.with_steps(own_steps), limits.with_steps(helper_steps));
    let memory = || vec![0; planner::scratch_words(&own_limits)];
    let [mut alone, mut own, mut helpers] =
        [own_limits, own_limits, helper_limits].map(|limits| Buffers::new(&limits));
    let [mut memory, mut memory_of_helper] = [memory(), memory()];
    let scratch = &mut Scratch::new(&mut memory);
    let expected = planner::make(&request, strategy, alone.output(), &mut scratch.reborrow())?;
    let mut helper =
        Helper { output: helpers.output(), scratch: Scratch::new(&mut memory_of_helper), run_both };
    let made = planner::make_with_helper(&request, strategy, own.output(), &mut helper, scratch)?;
    let [one, other] = [made.plan, expected.plan].map(|plan| format!("{plan:?}"));
    assert!(one == other, "{budget_bytes} bytes");
    assert_eq!((made.by, made.own_ns), (expected.by, expected.own_ns), "{budget_bytes} bytes");
    assert_eq!(made.others_ns, expected.others_ns, "{budget_bytes} bytes");
    Ok(())
}

#[test]
fn a_helper_changes_no_plan() {
    let calls = Cell::new(0);
    let counted: &RunBoth<'_> = &|one, other| {
        calls.set(calls.get() + 1);
        on_two_threads(one, other);
    };
    for budget_bytes in [300_000, 800_000] {
        plan(budget_bytes, counted, [1 << 14; 2]).unwrap();
    }
    assert!(calls.get() > 4, "{} calls", calls.get());
}

#[test]
fn a_helper_changes_no_plan_beside_a_host() {
    // With few lists, and with enough lists to try choices in their best orders. The last plan is the
    // helper's own: no op runs on the host.
    for (host_ns, budget_bytes, effort) in
        [(60_000, 250_000, 8), (100_000, 300_000, 8), (150_000, 500_000, 44)]
    {
        let auto = Auto::new().with_effort(effort);
        let steps = [1 << 14; 2];
        plan_beside_host(Some(host_ns), auto, budget_bytes, &on_two_threads, steps).unwrap();
    }
}

#[test]
fn the_order_does_not_matter_and_a_missing_call_is_made() {
    let ways: [&RunBoth<'_>; 3] = [
        &|one, other| {
            other();
            one();
        },
        &|one, _| one(),
        &|_, _| {},
    ];
    for run_both in ways {
        // With the first budget, the helper finds the best list if it runs first.
        for budget_bytes in [400_000, 500_000] {
            plan(budget_bytes, run_both, [1 << 14; 2]).unwrap();
        }
    }
}

#[test]
fn a_helper_needs_as_much_room_as_the_planner() {
    plan(500_000, &on_two_threads, [1 << 14, 1 << 15]).unwrap();
    let error = plan(500_000, &on_two_threads, [1 << 14, 1 << 13]).unwrap_err();
    let PlanningError::BufferTooShort(short) = error else { panic!("{error:?}") };
    assert_eq!((short.buffer, short.needed, short.len), (Buffer::Steps, 1 << 14, 1 << 13));
}
