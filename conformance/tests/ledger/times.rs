//! The section on timing, but for what concerns memory.

use crate::*;

#[test]
fn a_prefetch_starts_when_its_stream_is_free() {
    let steps = [prefetch(0), prefetch(1), launch(0), evict(0), evict(1)];
    let case = case(&[state(100); 2], &[(50, &[0, 1], &[])], PLENTY, &[], &steps);
    assert_eq!(first_start_ns(&case, 1), 100);
}

#[test]
fn a_prefetch_starts_when_the_last_offload_of_the_same_objects_has_ended() {
    let ops: [OpData<'_>; 2] = [(50, &[], &[0]), (1, &[0], &[])];
    let steps = [launch(0), offload(0), evict(0), prefetch(0), launch(1), evict(0)];
    let case = case(&[temporary(100)], &ops, PLENTY, &[], &steps);
    assert_eq!(first_start_ns(&case, 3), 150);
}

#[test]
fn a_prefetch_does_not_wait_for_the_offload_of_other_objects() {
    for (early, late) in [(0, 1), (1, 0)] {
        let steps = [
            launch(0),
            Step::Offload(part(0, early, 1)),
            Step::Offload(part(0, late, 1)),
            Step::Evict(part(0, early, 1)),
            Step::Prefetch(part(0, early, 1)),
            launch(1),
            evict(0),
        ];
        let ops: [OpData<'_>; 2] = [(50, &[], &[0]), (1, &[0], &[])];
        let case = case(&[temporary(200)], &ops, PLENTY, &[], &steps);
        assert_eq!(first_start_ns(&case, 2), 150);
        assert_eq!(first_start_ns(&case, 4), 150);
    }
}

#[test]
fn a_prefetch_waits_for_the_last_launch_listed_before_it_that_touches_the_tensor() {
    let ops: [OpData<'_>; 2] = [(500, &[0], &[]), (7, &[], &[])];
    let steps = [launch(0), launch(1), evict(0), prefetch(0)];
    let case = case(&[state(100)], &ops, PLENTY, &[copied(0)], &steps);
    assert_eq!(first_start_ns(&case, 3), 500);
}

/// One input, read for 500 ns and then fetched anew for the next iteration.
fn read_then_fetched(bytes: u64, fetches: &[Part]) -> Case {
    let fetches = fetches.iter().copied().map(Step::Prefetch);
    let steps: Vec<Step> = [launch(0), evict(0)].into_iter().chain(fetches).collect();
    case(&[input(bytes)], &[(500, &[0], &[])], PLENTY, &[copied(0)], &steps)
}

#[test]
fn the_prefetch_of_a_whole_input_does_not_wait_for_that_launch() {
    assert_eq!(first_start_ns(&read_then_fetched(100, &[whole(0)]), 2), 0);
}

#[test]
fn the_prefetch_of_all_objects_of_an_input_is_that_of_the_whole() {
    assert_eq!(first_start_ns(&read_then_fetched(200, &[part(0, 0, 2)]), 2), 0);
}

#[test]
fn the_prefetch_of_a_part_of_an_input_waits_for_that_launch() {
    let halves = [part(0, 0, 1), part(0, 1, 1)];
    assert_eq!(first_start_ns(&read_then_fetched(200, &halves), 2), 500);
}

#[test]
fn the_prefetch_of_an_input_in_the_arena_waits_for_that_launch() {
    let steps = [launch(0), prefetch(0)];
    let case = case(&[input(100)], &[(500, &[0], &[])], 0, &[copied(0)], &steps);
    assert_eq!(first_start_ns(&with_arena(case, 100, &[(0, 0)]), 1), 500);
}

#[test]
fn two_device_copies_of_an_input_may_exist_no_more() {
    assert_eq!(starts_ns(&read_then_fetched(100, &[whole(0)]), 2), [0, 500, 1000]);
}

#[test]
fn a_whole_input_fetched_in_mid_iteration_is_a_copy_too() {
    let ops: [OpData<'_>; 2] = [(500, &[0], &[]), (30, &[0], &[])];
    let steps = [launch(0), evict(0), prefetch(0), launch(1), evict(0), prefetch(0)];
    let case = case(&[input(100)], &ops, PLENTY, &[copied(0)], &steps);
    // The first copy is out of use at 500, so the third may arrive then; the second at 530.
    assert_eq!(starts_ns(&case, 2)[..2], [0, 600]);
    assert_eq!(starts_ns(&case, 5)[0], 500);
}

#[test]
fn a_launch_starts_when_its_stream_is_free() {
    let case = case(&[], &[(50, &[], &[]), (70, &[], &[])], 0, &[], &[launch(0), launch(1)]);
    assert_eq!(starts_ns(&case, 0), [0, 120, 240]);
    assert_eq!(starts_ns(&case, 1), [50, 170, 290]);
}

#[test]
fn a_launch_starts_when_every_tensor_it_touches_has_arrived() {
    for op in [(50, &[0u32, 1][..], &[][..]), (50, &[0], &[1]), (50, &[], &[0, 1])] {
        let steps =
            [prefetch(0), prefetch(1), launch(0), offload(0), offload(1), evict(0), evict(1)];
        let case = case(&[state(100); 2], &[op], PLENTY, &[], &steps);
        assert_eq!(first_start_ns(&case, 2), 200);
    }
}

#[test]
fn a_launch_waits_while_a_tensor_it_writes_is_being_offloaded() {
    let writes = case(&[state(100)], &[(50, &[0], &[0])], 1, &[stale(0)], &[offload(0), launch(0)]);
    assert_eq!(starts_ns(&writes, 1), [100, 250, 400]);
    let reads = case(&[state(100)], &[(50, &[0], &[])], 1, &[stale(0)], &[offload(0), launch(0)]);
    assert_eq!(starts_ns(&reads, 1), [0, 50, 100]);
}

#[test]
fn an_offload_starts_when_its_stream_is_free() {
    let steps = [launch(0), offload(0), offload(1), evict(0), evict(1)];
    let case = case(&[temporary(100); 2], &[(50, &[], &[0, 1])], PLENTY, &[], &steps);
    assert_eq!(first_start_ns(&case, 2), 150);
}

#[test]
fn an_offload_starts_when_the_last_write_of_the_tensor_has_ended() {
    let ops: [OpData<'_>; 3] = [(50, &[0], &[0]), (60, &[0], &[]), (70, &[], &[])];
    let steps = [launch(0), launch(1), launch(2), offload(0)];
    let case = case(&[state(100)], &ops, 1, &[copied(0)], &steps);
    assert_eq!(first_start_ns(&case, 3), 50);
}

#[test]
fn an_offload_starts_when_the_last_prefetch_of_the_same_objects_has_ended() {
    let steps = [
        Step::Prefetch(part(0, 0, 1)),
        Step::Prefetch(part(0, 1, 1)),
        Step::Offload(part(0, 0, 1)),
        Step::Offload(part(0, 1, 1)),
        launch(0),
        evict(0),
    ];
    let mut case = case(&[state(200)], &[(50, &[0], &[])], PLENTY, &[], &steps);
    change_machine(&mut case, |machine| machine.d2h_bytes_per_s *= 10);
    assert_eq!(first_start_ns(&case, 2), 100);
    assert_eq!(first_start_ns(&case, 3), 200);
}

#[test]
fn the_directions_are_independent() {
    let steps = [offload(0), prefetch(1), launch(0), evict(1)];
    let case = case(&[state(100); 2], &[(50, &[0, 1], &[])], PLENTY, &[copied(0)], &steps);
    assert_eq!([first_start_ns(&case, 0), first_start_ns(&case, 1)], [0, 0]);
}

#[test]
fn a_transfer_takes_the_latency_and_its_bytes_over_the_bandwidth_rounded_up() {
    let steps = [prefetch(0), launch(0), offload(0), evict(0)];
    let mut case = case(&[state(100)], &[(50, &[0], &[0])], 1, &[], &steps);
    change_machine(&mut case, |machine| {
        machine.transfer_latency_ns = 1000;
        machine.h2d_bytes_per_s = 3_000_000_000;
        machine.d2h_bytes_per_s = 7_000_000_000;
    });
    let took_ns = |step: usize| {
        let event = events(&case, step)[0];
        event.end_ns - event.start_ns
    };
    assert_eq!([took_ns(0), took_ns(2)], [1034, 1015]);
}

#[test]
fn a_range_copies_the_bytes_that_are_filled_and_pays_the_latency_once() {
    let steps = [Step::Prefetch(part(0, 1, 2)), Step::Prefetch(part(0, 0, 1)), launch(0), evict(0)];
    let mut case = case(&[state(250)], &[(50, &[0], &[])], 3, &[], &steps);
    change_machine(&mut case, |machine| machine.transfer_latency_ns = 1000);
    assert_eq!(first_start_ns(&case, 1), 1150);
    assert_eq!(first_start_ns(&case, 2), 2250);
}

#[test]
fn what_is_resident_at_start_is_present_at_time_0() {
    let case = case(&[state(100)], &[(50, &[0], &[])], 1, &[copied(0)], &[launch(0)]);
    assert_eq!(first_start_ns(&case, 0), 0);
}

#[test]
fn iterations_follow_each_other_with_no_barrier() {
    let ops: [OpData<'_>; 3] = [(100, &[], &[]), (100, &[0], &[]), (100, &[], &[])];
    let steps = [launch(0), prefetch(0), launch(1), evict(0), launch(2)];
    let case = case(&[state(250)], &ops, PLENTY, &[], &steps);
    // The second prefetch begins at 350, while launch 2 of the first iteration runs.
    assert_eq!(starts_ns(&case, 1), [0, 350, 700]);
    assert_eq!(starts_ns(&case, 2), [250, 600, 950]);
    assert_eq!(measured(&case).prediction.period_ns, 350);
}
