//! Pools, objects, and memory that returns in list order.

use crate::*;

/// One op overwrites `a` and takes 50 ns; offloading `a` takes 100 ns more. Another tensor is
/// wanted meanwhile.
fn slow_release(count: u64, next: &[Step], kind: Tensor, op: OpData<'_>) -> Case {
    let steps = [&[launch(0), offload(0), evict(0)], next, &[evict(1)]].concat();
    case(&[temporary(100), kind], &[(50, &[], &[0]), op], count, &[], &steps)
}

#[test]
fn a_prefetch_starts_when_its_memory_is_granted() {
    let next = [prefetch(1), launch(1)];
    let read: OpData<'_> = (50, &[1], &[]);
    assert_eq!(first_start_ns(&slow_release(1, &next, state(100), read), 3), 150);
    assert_eq!(first_start_ns(&slow_release(2, &next, state(100), read), 3), 0);
}

#[test]
fn a_launch_starts_when_its_memory_is_granted() {
    let write: OpData<'_> = (50, &[], &[1]);
    assert_eq!(first_start_ns(&slow_release(1, &[launch(1)], temporary(100), write), 3), 150);
    assert_eq!(first_start_ns(&slow_release(2, &[launch(1)], temporary(100), write), 3), 50);
}

#[test]
fn a_launch_allocates_only_what_is_not_resident_of_what_it_writes() {
    let steps = [Step::Evict(part(0, 1, 1)), prefetch(1), launch(0), launch(1), evict(1)];
    let ops: [OpData<'_>; 2] = [(50, &[1], &[]), (50, &[], &[0])];
    let tight = case(&[state(200), state(100)], &ops, 3, &[stale(0)], &steps);
    assert_eq!(measured(&tight).prediction.peak_bytes, 300);
    let tighter = case(&[state(200), state(100)], &ops, 2, &[stale(0)], &steps);
    assert_refused(&tighter, "step 3: pool 0 never has enough free objects");
}

#[test]
fn a_tensor_takes_its_bytes_over_object_bytes_rounded_up() {
    let steps = [launch(0), evict(0)];
    let case = |bytes, count| case(&[temporary(bytes)], &[(1, &[], &[0])], count, &[], &steps);
    assert!(try_measure(&case(200, 2)).is_ok());
    assert_refused(&case(201, 2), "never has enough free objects");
    assert!(try_measure(&case(201, 3)).is_ok());
}

/// `slow` leaves after a copy of 100 ns, `quick` at once, in one order or the other; then `x`
/// wants one object.
fn two_releases(first: u32, second: u32) -> Case {
    let steps =
        [launch(0), offload(0), evict(first), evict(second), prefetch(2), launch(1), evict(2)];
    let ops: [OpData<'_>; 2] = [(50, &[], &[0, 1]), (50, &[2], &[])];
    case(&[temporary(100), temporary(100), state(100)], &ops, 2, &[], &steps)
}

#[test]
fn a_grant_waits_for_a_slow_release_listed_before_a_quick_one() {
    assert_eq!(first_start_ns(&two_releases(1, 0), 4), 50);
    assert_eq!(first_start_ns(&two_releases(0, 1), 4), 150);
}

#[test]
fn a_grant_waits_for_all_releases_of_the_shortest_prefix() {
    let mut case = two_releases(1, 0);
    case.graph.tensors[2].bytes = 200;
    assert_eq!(first_start_ns(&case, 4), 150);
}

#[test]
fn a_release_is_whole() {
    // One evict gives back two objects at once, though the second is copied much later.
    let steps = [
        launch(0),
        Step::Offload(part(0, 0, 1)),
        Step::Offload(part(0, 1, 1)),
        evict(0),
        prefetch(1),
        launch(1),
        evict(1),
    ];
    let ops: [OpData<'_>; 2] = [(50, &[], &[0]), (50, &[1], &[])];
    let case = case(&[temporary(200), state(100)], &ops, 2, &[], &steps);
    assert_eq!(first_start_ns(&case, 4), 250);
}

#[test]
fn an_evict_completes_when_the_last_launch_that_touches_the_tensor_has_ended() {
    let ops: [OpData<'_>; 2] = [(500, &[0], &[]), (50, &[], &[])];
    let steps = [launch(0), launch(1), evict(0), prefetch(0)];
    let case = case(&[state(100)], &ops, PLENTY, &[copied(0)], &steps);
    assert_eq!(first_start_ns(&case, 2), 500);
}

#[test]
fn an_evict_completes_when_the_last_offload_and_prefetch_of_its_objects_have_ended() {
    let (front, back) = (part(0, 0, 1), part(0, 1, 1));
    let steps = [
        Step::Prefetch(front),
        Step::Prefetch(back),
        Step::Evict(front),
        Step::Offload(back),
        Step::Evict(back),
        launch(0),
    ];
    let case = case(&[state(200)], &[(1, &[], &[])], 2, &[], &steps);
    assert_eq!(first_start_ns(&case, 2), 100);
    assert_eq!(first_start_ns(&case, 4), 300);
}

#[test]
fn a_workspace_is_held_while_its_op_runs_and_released_at_its_launch() {
    let steps = [launch(0), prefetch(0), launch(1), evict(0)];
    let ops: [OpData<'_>; 2] = [(50, &[], &[]), (60, &[0], &[])];
    let mut case = case(&[state(100)], &ops, 2, &[], &steps);
    assert_eq!(first_start_ns(&case, 1), 0);
    case.graph.ops[0].workspace_bytes = 101;
    assert_eq!(first_start_ns(&case, 1), 50);
    // The next workspace waits for the tensor in turn, which is read from 150 to 210.
    assert_eq!(starts_ns(&case, 0)[1], 210);
    assert_eq!(measured(&case).prediction.peak_bytes, 200);
    case.graph.ops[0].workspace_bytes = 201;
    assert_refused(&case, "step 0: pool 0 never has enough free objects");
}

#[test]
fn a_launch_is_granted_all_it_allocates_or_nothing() {
    // The output would fit at 50, the workspace only at 150.
    let next = [launch(1)];
    let mut case = slow_release(2, &next, temporary(100), (50, &[], &[1]));
    assert_eq!(first_start_ns(&case, 3), 50);
    case.graph.ops[1].workspace_bytes = 100;
    assert_eq!(first_start_ns(&case, 3), 150);
}

#[test]
fn pools_wait_for_themselves_only() {
    let read: OpData<'_> = (50, &[1], &[]);
    let mut case = slow_release(1, &[prefetch(1), launch(1)], state(100), read);
    case.plan.pools.push(Pool { object_bytes: 100, count: 1 });
    case.plan.tensor_pool = vec![0, 1];
    assert_eq!(first_start_ns(&case, 3), 0);
}

#[test]
fn a_launch_waits_for_each_of_its_pools() {
    for slow_pool in [0, 1] {
        let mut case = slow_release(1, &[launch(1)], temporary(100), (50, &[], &[1]));
        case.graph.ops[1].workspace_bytes = 1;
        case.plan.pools.push(Pool { object_bytes: 100, count: 1 });
        case.plan.tensor_pool = vec![slow_pool, 1];
        case.plan.workspace_pool = vec![0, 0];
        assert_eq!(first_start_ns(&case, 3), 150);
    }
}

/// Each iteration a tensor comes in, goes back out and leaves (120 ns); then a launch takes
/// an object for a moment. Every such launch but the first few waits for memory.
fn lagging(count: u64) -> Case {
    let steps = [prefetch(0), offload(0), evict(0), launch(0), evict(1)];
    case(&[state(60), temporary(100)], &[(10, &[], &[1])], count, &[], &steps)
}

#[test]
fn memory_may_be_granted_by_an_iteration_long_before() {
    // With 8 objects the launch of iteration 5 makes the tenth allocation, and waits for the
    // two releases of iteration 1, of which the slower completes at 120.
    let launches = events(&lagging(8), 3);
    let ends_ns: Vec<u64> = launches.iter().map(|event| event.end_ns).collect();
    assert_eq!(ends_ns, [10, 20, 30, 40, 130, 250, 370, 490]);
    let lags: Vec<Option<u32>> = launches.iter().map(|event| event.memory_lag).collect();
    assert_eq!(lags, [None, None, None, None, Some(4), Some(4), Some(4), Some(4)]);
    // With 7, that of iteration 4 makes the eighth, and waits for the first release alone.
    let launches = events(&lagging(7), 3);
    assert_eq!([launches[3].end_ns, launches[7].end_ns], [130, 610]);
}

#[test]
fn the_period_is_a_quarter_of_the_last_four_iterations_rounded_down() {
    assert_eq!(measured(&lagging(8)).prediction.period_ns, (490 - 40) / 4);
    assert_eq!(measured(&lagging(7)).prediction.period_ns, (610 - 130) / 4);
}

#[test]
fn what_is_resident_at_start_must_fit() {
    let tensors = [state(100), state(100)];
    let op: OpData<'_> = (1, &[0, 1], &[]);
    let fits = case(&tensors, &[op], 2, &[copied(0), copied(1)], &[launch(0)]);
    assert!(try_measure(&fits).is_ok());
    let full = case(&tensors, &[op], 1, &[copied(0), copied(1)], &[launch(0)]);
    assert_refused(&full, "resident_at_start[1]: pool 0 is full");
}

#[test]
fn objects_are_multiples_of_a_chunk_where_something_takes_more_than_one() {
    let with_pool = |bytes, object_bytes| {
        let mut case = case(&[temporary(bytes)], &[(1, &[], &[0])], 9, &[], &[launch(0), evict(0)]);
        case.plan.pools[0].object_bytes = object_bytes;
        case
    };
    assert!(try_measure(&with_pool(70, 70)).is_ok());
    assert!(try_measure(&with_pool(71, 100)).is_ok());
    assert!(try_measure(&with_pool(201, 200)).is_ok());
    assert_refused(&with_pool(71, 70), "pools[0]: its objects are no multiple of a chunk");
    assert_refused(&with_pool(71, 0), "pools[0]: an object has no bytes");
    let mut workspace = with_pool(70, 70);
    workspace.graph.ops[0].workspace_bytes = 71;
    assert_refused(&workspace, "pools[0]: its objects are no multiple of a chunk");
}

#[test]
fn everything_has_a_pool_that_exists() {
    let mut case = case(&[temporary(9)], &[(1, &[], &[0])], 9, &[], &[launch(0), evict(0)]);
    case.plan.workspace_pool = vec![1];
    assert!(try_measure(&case).is_ok(), "the op has no workspace");
    case.graph.ops[0].workspace_bytes = 1;
    assert_refused(&case, "pools[1]: there is no such pool");
    case.plan.workspace_pool = vec![0, 0];
    assert_refused(&case, "wrong length");
    case.plan.workspace_pool = vec![0];
    case.plan.tensor_pool = vec![1];
    assert_refused(&case, "pools[1]: there is no such pool");
}

#[test]
fn arena_and_pools_rounded_up_to_chunks_are_within_the_budget_and_that_within_the_device() {
    let steps = [launch(0), evict(0)];
    let mut case = case(&[temporary(9)], &[(1, &[], &[0])], 3, &[], &steps);
    case.plan.pools.push(Pool { object_bytes: 70, count: 3 });
    case.plan.arena_bytes = 101;
    case.plan.budget_bytes = 200 + 300 + 300;
    assert!(try_measure(&case).is_ok());
    case.machine = case.machine.with_device_bytes(800);
    assert!(try_measure(&case).is_ok());
    case.machine = case.machine.with_device_bytes(799);
    assert_refused(&case, "the budget is more than the device has");
    case.plan.budget_bytes = 799;
    assert_refused(&case, "arena and pools take more than the budget");
    case.plan.pools[1].count = u64::MAX;
    assert_refused(&case, "exceeds 64 bits");
}
