//! The arena.

use crate::*;

/// A state, an input and two temporaries that are used one after the other, all in the arena.
fn furnished(arena_bytes: u64, offsets_bytes: [u64; 4], resident_at_start: &[Resident]) -> Case {
    let tensors = [state(100), input(100), temporary(100), temporary(100)];
    let ops: [OpData<'_>; 4] =
        [(10, &[1, 0], &[2]), (10, &[2], &[]), (10, &[], &[3]), (10, &[3], &[0])];
    let launches = [launch(0), launch(1), launch(2), launch(3)];
    let arrives_late = resident_at_start.iter().any(|entry| entry.part.tensor == TensorId(1));
    let steps = match arrives_late {
        true => [&launches[..], &[prefetch(1)]].concat(),
        false => [&[prefetch(1)], &launches[..]].concat(),
    };
    let placements: Vec<(u32, u64)> = (0..).zip(offsets_bytes).collect();
    let mut case =
        with_arena(case(&tensors, &ops, 0, resident_at_start, &steps), arena_bytes, &placements);
    case.plan.pools.clear();
    case
}

fn accepted(case: &Case) -> bool {
    try_measure(case).is_ok()
}

#[test]
fn states_and_inputs_own_their_bytes() {
    let start = [stale(0), copied(1)];
    assert!(accepted(&furnished(400, [0, 100, 200, 300], &start)));
    for shared in [[0, 0, 200, 300], [0, 100, 100, 300], [0, 100, 200, 100], [200, 100, 200, 0]] {
        assert_refused(&furnished(400, shared, &start), "shares bytes");
    }
}

#[test]
fn two_temporaries_may_share_bytes_when_their_spans_do_not_overlap() {
    let start = [stale(0), copied(1)];
    let mut shared = furnished(300, [0, 100, 200, 200], &start);
    assert!(accepted(&shared));
    shared.plan.arena.reverse();
    assert!(accepted(&shared));
    shared.plan.steps.swap(1, 2);
    assert_refused(&shared, "shares bytes with tensor 3 while both live");
    let ops: [OpData<'_>; 3] = [(1, &[], &[0]), (1, &[0], &[1]), (1, &[1], &[])];
    let steps = [launch(0), launch(1), launch(2)];
    let at_one_op = case(&[temporary(9); 3], &ops, 1, &[], &steps);
    assert_refused(&with_arena(at_one_op.clone(), 9, &[(0, 0), (1, 0)]), "shares bytes");
    assert!(
        accepted(&with_arena(at_one_op, 109, &[(0, 0), (2, 0), (1, 100)])),
        "no op touches tensor 2"
    );
    let untouched = case(&[temporary(9); 2], &[(1, &[], &[])], 1, &[], &[launch(0)]);
    assert!(accepted(&with_arena(untouched, 9, &[(0, 0), (1, 0)])), "no op touches either");
}

#[test]
fn an_input_needs_one_prefetch_after_its_last_read_where_it_is_resident_at_start() {
    let mut late = furnished(300, [0, 100, 200, 200], &[stale(0), copied(1)]);
    late.plan.steps.rotate_right(1);
    assert_refused(&late, "step 0: tensor 1 is resident already");
    late.plan.steps.remove(0);
    assert_refused(&late, "an input in the arena needs one prefetch");
}

#[test]
fn an_input_needs_one_prefetch_before_its_reads_where_it_is_not_resident_at_start() {
    let mut early = furnished(300, [0, 100, 200, 200], &[stale(0)]);
    assert!(accepted(&early));
    early.plan.steps.rotate_left(1);
    assert_refused(&early, "step 0: tensor 1 is not resident");
}

#[test]
fn an_input_needs_its_prefetch_also_where_an_op_overwrites_it_first() {
    let overwritten = |steps: &[Step]| {
        let ops: [OpData<'_>; 2] = [(1, &[], &[0]), (1, &[0], &[])];
        with_arena(case(&[input(9)], &ops, 0, &[], steps), 9, &[(0, 0)])
    };
    assert!(accepted(&overwritten(&[prefetch(0), launch(0), launch(1)])));
    assert_refused(&overwritten(&[launch(0), launch(1)]), "needs one prefetch");
    let late = overwritten(&[launch(0), prefetch(0), launch(1)]);
    assert_refused(&late, "step 1: the host has no valid copy of tensor 0");
}

#[test]
fn an_input_stops_being_resident_at_its_last_read() {
    // The prefetch may follow the launch directly, and the same launch may update the input.
    let steps = [launch(0), prefetch(0), launch(1)];
    let read = case(&[input(9)], &[(1, &[0], &[0]), (1, &[], &[])], 0, &[copied(0)], &steps);
    assert!(accepted(&with_arena(read, 9, &[(0, 0)])));
    let steps = [launch(0), prefetch(0), launch(1)];
    let twice = case(&[input(9)], &[(1, &[0], &[]), (1, &[0], &[])], 0, &[copied(0)], &steps);
    assert_refused(&with_arena(twice, 9, &[(0, 0)]), "step 1: tensor 0 is resident already");
}

#[test]
fn an_input_that_is_written_after_its_last_read_or_never_read_may_not_lie_there() {
    let ops: [OpData<'_>; 2] = [(1, &[0], &[]), (1, &[], &[0])];
    let steps = [launch(0), launch(1), prefetch(0)];
    let written = case(&[input(9)], &ops, 0, &[copied(0)], &steps);
    assert_refused(&with_arena(written, 9, &[(0, 0)]), "written after its last read");
    let steps = [launch(0), prefetch(0)];
    let unread = case(&[input(9)], &[(1, &[], &[])], 0, &[copied(0)], &steps);
    assert_refused(&with_arena(unread, 9, &[(0, 0)]), "never read");
}

#[test]
fn states_are_always_listed_as_resident_at_start() {
    let case = furnished(300, [0, 100, 200, 200], &[copied(1)]);
    assert_refused(&case, "a state in the arena is resident at start");
}

#[test]
fn states_and_inputs_may_be_offloaded_nothing_may_be_evicted() {
    let mut case = furnished(300, [0, 100, 200, 200], &[stale(0), copied(1)]);
    case.plan.steps.push(offload(0));
    assert!(accepted(&case));
    case.plan.steps.push(evict(0));
    assert_refused(&case, "step 6: tensor 0 lies in the arena");
}

#[test]
fn temporaries_are_neither_prefetched_nor_offloaded() {
    for step in [prefetch(2), offload(2)] {
        let mut case = furnished(300, [0, 100, 200, 200], &[stale(0), copied(1)]);
        case.plan.steps.insert(1, step);
        assert_refused(&case, "step 1: tensor 2 lies in the arena");
    }
}

#[test]
fn arena_tensors_have_no_ranges() {
    let mut case = furnished(300, [0, 100, 200, 200], &[stale(0), copied(1)]);
    case.plan.steps.push(Step::Offload(part(0, 0, 1)));
    assert_refused(&case, "step 5: tensor 0 lies in the arena and has no ranges");
    case.plan.steps.pop();
    case.plan.resident_at_start[0].part = part(0, 0, 1);
    assert_refused(&case, "resident_at_start[0]: tensor 0 lies in the arena and has no ranges");
}

#[test]
fn offsets_are_multiples_of_256_or_of_a_smaller_chunk() {
    let start = [stale(0), copied(1)];
    assert_refused(&furnished(400, [0, 100, 250, 200], &start), "the offset is not aligned");
    let mut large_chunks = furnished(2000, [0, 256, 1024, 512], &start);
    change_machine(&mut large_chunks, |machine| machine.chunk_bytes = 1000);
    assert!(accepted(&large_chunks));
    large_chunks.plan.arena[2].offset_bytes = 1000;
    assert_refused(&large_chunks, "arena.placements[2]: the offset is not aligned");
}

#[test]
fn everything_lies_inside_the_arena_once() {
    let start = [stale(0), copied(1)];
    assert_refused(&furnished(299, [0, 100, 200, 200], &start), "past the end of the arena");
    let far = furnished(299, [0, 100, u64::MAX / 100 * 100, 200], &start);
    assert_refused(&far, "past the end of the arena");
    let mut twice = furnished(400, [0, 100, 200, 200], &start);
    twice.plan.arena.push(ArenaPlacement { tensor: TensorId(3), offset_bytes: 300 });
    assert_refused(&twice, "arena.placements[4]: tensor 3 has two offsets");
}

#[test]
fn the_arena_counts_in_full_and_its_tensors_hold_no_objects() {
    let judgement = measured(&furnished(370, [0, 100, 200, 200], &[stale(0), copied(1)]));
    assert_eq!(judgement.prediction.peak_bytes, 370);
    assert_eq!(judgement.requested_bytes_at_peak, 0);
    assert_eq!(judgement.prediction.h2d_bytes, 100);
}
