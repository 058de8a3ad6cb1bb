//! If a plan is mapped as it runs, it keeps its schedule: the host maps ahead, and unmaps ranges
//! that the device no longer uses.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_sim::{SimDevice, SimKernels, reference_digest};
use common::{OwnedPlan, Work, execute, limits, lowered, machine, predicted_period_ns, verified};
use planner_core::executor::{self, Executor};
use planner_core::plan::{Pool, Resident};
use planner_core::{Kind, Machine, OpId, Part, Scratch, Step, TensorId, Verified};

const CHUNK_BYTES: u64 = 4;

/// Two bytes a nanosecond to the device and one back; mapping is free.
fn slow_links() -> Machine {
    let (h2d_bytes_per_s, d2h_bytes_per_s) = (2_000_000_000, 1_000_000_000);
    let parameters = (*machine(CHUNK_BYTES))
        .with_h2d_bytes_per_s(h2d_bytes_per_s)
        .with_d2h_bytes_per_s(d2h_bytes_per_s)
        .with_transfer_latency_ns(0);
    Machine::new(parameters).unwrap()
}

fn whole(id: u32) -> Part {
    Part::whole(TensorId(id))
}

fn with_verified(work: &Work, owned: &OwnedPlan, then: impl FnOnce(&Verified<'_>)) {
    let (graph, machine) = (work.graph(), slow_links());
    let plan = owned.plan(&machine);
    let mut steps = Vec::new();
    let schedule = lowered(&graph, &machine, &plan, &mut steps);
    then(&verified(&graph, &machine, &plan, &schedule));
}

/// Checks that a plan takes as long as predicted, and that this is `expected_ns`.
fn check_period_ns(work: &Work, owned: &OwnedPlan, expected_ns: u64) {
    with_verified(work, owned, |verified| {
        let (graph, machine) = (*verified.graph(), *verified.machine());
        let (plan, schedule) = (verified.plan(), verified.schedule());
        assert_eq!(predicted_period_ns(&graph, &machine, plan, schedule), expected_ns);
        let mut device = SimDevice::new(machine);
        assert_eq!(execute(verified, &mut device, graph, 8, 64), Ok(reference_digest(&graph, 8)));
        assert_eq!(device.period_ns(4, 8), Some(expected_ns));
        assert!(device.counters().unmap_calls > 0, "mapped as it runs");
    });
}

#[test]
fn what_comes_twice_an_iteration_does_not_hold_up_the_host() {
    let mut work = Work::default();
    let input = work.tensor(Kind::Input, 200);
    work.op(28, 0, &[input], &[]);
    work.op(1, 0, &[], &[input]);
    let owned = OwnedPlan {
        pools: vec![Pool { object_bytes: CHUNK_BYTES, count: 1000 }],
        steps: vec![
            Step::Prefetch(whole(input)),
            Step::launch(OpId(0)),
            Step::Evict(whole(input)),
            Step::launch(OpId(1)),
            Step::Evict(whole(input)),
        ],
        ..OwnedPlan::default()
    };
    check_period_ns(&work, &owned, 100);
}

/// First one object of a weight leaves and comes back, then two objects, while a sum that an
/// earlier op has written is copied to the host.
fn in_parts() -> (Work, OwnedPlan) {
    let mut work = Work::default();
    let weight = work.tensor(Kind::State, 20);
    let sum = work.tensor(Kind::Temporary, 90);
    work.op(10, 0, &[], &[sum]);
    work.op(100, 0, &[weight], &[]);
    work.op(20, 0, &[weight], &[]);
    let part = |first, count| Part { tensor: TensorId(weight), first, count };
    let owned = OwnedPlan {
        pools: vec![Pool { object_bytes: CHUNK_BYTES, count: 200 }],
        resident_at_start: vec![Resident { part: whole(weight), host_copy: true }],
        steps: vec![
            Step::launch(OpId(0)),
            Step::launch(OpId(1)),
            Step::Evict(part(1, 1)),
            Step::Prefetch(part(1, 1)),
            Step::Offload(whole(sum)),
            Step::Evict(whole(sum)),
            Step::launch(OpId(2)),
            Step::Evict(part(3, 1)),
            Step::Evict(part(1, 1)),
            Step::Prefetch(part(1, 1)),
            Step::Prefetch(part(3, 1)),
        ],
        ..OwnedPlan::default()
    };
    (work, owned)
}

#[test]
fn a_part_comes_back_while_the_device_still_reads_the_rest() {
    let (work, owned) = in_parts();
    // The time of all ops, and of four bytes for which the last op waits.
    check_period_ns(&work, &owned, 130 + 2);
}

#[test]
fn what_never_leaves_is_mapped_at_the_start_and_no_more() {
    let (work, owned) = in_parts();
    let [few, many] = [20, 40].map(|iterations| {
        let mut chunks = 0;
        with_verified(&work, &owned, |verified| {
            let mut device = SimDevice::new(slow_links());
            execute(verified, &mut device, *verified.graph(), iterations, 64).unwrap();
            chunks = device.counters().chunks_mapped;
        });
        chunks
    });
    // The 23 chunks of the sum, one chunk three times when it comes back, and once the chunk that
    // stayed and is mapped again beside it.
    assert_eq!((many - few) / 20, 23 + 3 + 1);
}

#[test]
fn a_host_far_ahead_keeps_no_more_mappings_and_ranges() {
    let (work, owned) = in_parts();
    with_verified(&work, &owned, |verified| {
        let graph = *verified.graph();
        let mut memory = vec![0; executor::scratch_words(&limits(&graph, verified.plan()), 64)];
        let mut device = SimDevice::new(slow_links());
        let mut kernels = SimKernels::new(graph);
        let scratch = &mut Scratch::new(&mut memory);
        let mut executor = Executor::start(verified, &mut device, &mut kernels, scratch).unwrap();
        let ranges = device.counters().ranges;
        for iterations in 1..200 {
            executor.run(&mut device, &mut kernels, 1).unwrap();
            // The sum, a part in one range, another part that shares it, and both in the next
            // range.
            let unmapped = device.counters().unmap_calls;
            assert!(unmapped + 3 * 6 >= 5 * iterations, "{unmapped} after {iterations}");
        }
        assert_eq!(device.counters().ranges, ranges);
        executor.save_states(&mut device).unwrap();
        assert_eq!(device.counters().unmap_calls, 5 * 199);
    });
}
