//! Contiguous memory: allocators under random requests, and plans with results found by hand.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use backend_sim::contiguous::{
    Allocator, Block, CachingAllocator, ReplayError, SizeClasses, Usage, replay,
};
use common::{OwnedPlan, Work};
use planner_core::plan::{ArenaPlacement, Location, Pool, Resident};
use planner_core::{Kind, Machine, MachineParameters, OpId, Part, PlanError, Step, TensorId};
use proptest::prelude::*;

const DEVICE_BYTES: u64 = 256 << 20;

/// A size to ask for, or the position of a held block to give back.
#[derive(Clone, Copy, Debug)]
enum Request {
    Allocate(u64),
    Release(usize),
}

fn requests() -> impl Strategy<Value = Vec<Request>> {
    let sizes = prop_oneof![1..4096u64, 1..4u64 << 20, 1..64u64 << 20];
    let request =
        prop_oneof![sizes.prop_map(Request::Allocate), any::<usize>().prop_map(Request::Release),];
    proptest::collection::vec(request, 1..200)
}

/// Follows the requests, checks every block and the accounts after each, and then releases all
/// blocks.
fn follow(allocator: &mut impl Allocator, requests: &[Request]) -> Result<(), TestCaseError> {
    let mut held: Vec<Block> = Vec::new();
    for request in requests {
        match *request {
            Request::Allocate(bytes) => {
                let Some(block) = allocator.allocate(bytes) else {
                    prop_assert!(!held.is_empty(), "{bytes} bytes of an empty device");
                    continue;
                };
                prop_assert!(block.bytes() >= bytes);
                let end = block.start() + block.bytes();
                let apart = |other: &Block| {
                    other.start() >= end || block.start() >= other.start() + other.bytes()
                };
                prop_assert!(held.iter().all(apart), "{block:?} overlaps one of {held:?}");
                held.push(block);
            }
            Request::Release(_) if held.is_empty() => {}
            Request::Release(at) => allocator.release(held.swap_remove(at % held.len())),
        }
        let used_bytes = held.iter().map(Block::bytes).sum::<u64>();
        prop_assert_eq!(allocator.used_bytes(), used_bytes);
        prop_assert!((used_bytes..=DEVICE_BYTES).contains(&allocator.reserved_bytes()));
    }
    held.into_iter().for_each(|block| allocator.release(block));
    prop_assert_eq!(allocator.used_bytes(), 0);
    // A segment goes back to the driver only after all its blocks have been joined again.
    prop_assert_eq!(
        allocator.allocate(DEVICE_BYTES).map(|block| block.bytes()),
        Some(DEVICE_BYTES)
    );
    Ok(())
}

proptest! {
    #![proptest_config(conformance::seeds::config(256))]
    #[test]
    fn blocks_never_overlap_and_join_again(requests in requests()) {
        follow(&mut CachingAllocator::new(DEVICE_BYTES), &requests)?;
        follow(&mut SizeClasses::new(DEVICE_BYTES), &requests)?;
    }
}

const MIB: u64 = 1 << 20;
const MACHINE: Machine = {
    let Ok(machine) = Machine::new(
        MachineParameters::new()
            .with_device_bytes(1 << 40)
            .with_host_bytes(1 << 40)
            .with_chunk_bytes(512)
            .with_h2d_bytes_per_s(1)
            .with_d2h_bytes_per_s(1),
    ) else {
        panic!("the machine is not sound")
    };
    machine
};

/// A state of 12 MiB, a temporary of 30 MiB, and an op that makes one from the other with a
/// workspace of 20 MiB.
fn work() -> Work {
    let mut work = Work::default();
    let state = work.tensor(Kind::State, 12 * MIB);
    let temporary = work.tensor(Kind::Temporary, 30 * MIB);
    work.op(1, 20 * MIB, &[state], &[temporary]);
    work
}

fn plan(steps: Vec<Step>) -> OwnedPlan {
    OwnedPlan {
        pools: vec![Pool { object_bytes: 512, count: 1 << 20 }],
        steps,
        ..OwnedPlan::default()
    }
}

const STATE: Part = Part::whole(TensorId(0));
const TEMPORARY: Part = Part::whole(TensorId(1));

fn follow_plan(plan: &OwnedPlan, device_mib: u64) -> Result<Usage, ReplayError> {
    let work = work();
    let mut allocator = CachingAllocator::new(device_mib * MIB);
    replay(&work.graph(), &plan.plan(&MACHINE), 3, &mut allocator)
}

#[test]
fn blocks_are_taken_and_given_back_in_list_order() {
    let steps = vec![
        Step::Prefetch(STATE),
        Step::launch(OpId(0)),
        Step::Evict(STATE),
        Step::Evict(TEMPORARY),
    ];
    // Segments of 12, 30 and 20 MiB. In the next iteration, the state and the workspace lie in the
    // same segments again.
    let usage = Usage {
        reserved_bytes: 62 * MIB,
        used_bytes: 62 * MIB,
        requested_bytes: 62 * MIB,
        segments_per_iteration: 0,
    };
    assert_eq!(follow_plan(&plan(steps.clone()), 62), Ok(usage));
    let full =
        ReplayError::OutOfMemory { iterations: 0, location: Location::Step(1), bytes: 20 * MIB };
    assert_eq!(follow_plan(&plan(steps), 61), Err(full));
}

/// Classes of 12, 32 and 20 MiB. The device holds only the last two together, so in each iteration
/// the allocator returns the others for the state, and the state for the workspace.
#[test]
fn a_full_device_goes_back_to_the_driver_in_every_iteration() {
    let work = work();
    let plan = plan(vec![
        Step::Prefetch(STATE),
        Step::Evict(STATE),
        Step::launch(OpId(0)),
        Step::Evict(TEMPORARY),
    ]);
    let mut allocator = SizeClasses::new(60 * MIB);
    let usage = replay(&work.graph(), &plan.plan(&MACHINE), 3, &mut allocator).unwrap();
    assert_eq!((usage.reserved_bytes, usage.segments_per_iteration), (52 * MIB, 3));
    let mut allocator = SizeClasses::new(64 * MIB);
    let usage = replay(&work.graph(), &plan.plan(&MACHINE), 3, &mut allocator).unwrap();
    assert_eq!((usage.reserved_bytes, usage.segments_per_iteration), (64 * MIB, 0));
}

#[test]
fn the_arena_is_one_block_that_stays() {
    let resident = Resident { part: STATE, host_copy: true };
    let arena = vec![ArenaPlacement { tensor: TensorId(1), offset_bytes: 0 }];
    let plan = OwnedPlan {
        arena_bytes: 31 * MIB,
        arena,
        resident_at_start: vec![resident],
        ..plan(vec![Step::launch(OpId(0)), Step::Evict(STATE), Step::Prefetch(STATE)])
    };
    // The arena's segment has 1 MiB left, which is too little for its own block.
    let usage = follow_plan(&plan, 1 << 10).unwrap();
    assert_eq!((usage.reserved_bytes, usage.requested_bytes), (64 * MIB, 63 * MIB));
    assert_eq!((usage.used_bytes, usage.external_bytes()), (64 * MIB, 0));
}

#[test]
fn parts_and_broken_plans_are_refused() {
    let half = Part { tensor: TensorId(0), first: 0, count: 100 };
    let all = Part { tensor: TensorId(0), first: 0, count: 12 * MIB / 512 };
    let at = |location| Location::Step(location);
    for (steps, expected) in [
        (vec![Step::Prefetch(half)], ReplayError::Part { location: at(0), tensor: TensorId(0) }),
        (
            vec![Step::Prefetch(all), Step::Evict(half)],
            ReplayError::Part { location: at(1), tensor: TensorId(0) },
        ),
        (
            vec![Step::Prefetch(STATE), Step::Prefetch(STATE)],
            PlanError::AlreadyResident(at(1), TensorId(0)).into(),
        ),
        (vec![Step::Evict(all)], PlanError::NotResident(at(0), TensorId(0)).into()),
        (vec![Step::launch(OpId(7))], PlanError::UnknownOp(at(0), OpId(7)).into()),
        (
            vec![Step::Offload(Part::whole(TensorId(9)))],
            PlanError::UnknownTensor(at(0), TensorId(9)).into(),
        ),
    ] {
        assert_eq!(follow_plan(&plan(steps), 1 << 10), Err(expected));
    }
}
