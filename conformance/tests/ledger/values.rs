//! The rules of a valid plan.

use crate::*;

fn accepted(case: &Case) -> bool {
    try_measure(case).is_ok()
}

#[test]
fn rule_1_every_op_is_launched_exactly_once() {
    let ops: [OpData<'_>; 2] = [(1, &[], &[]), (1, &[], &[])];
    assert!(accepted(&case(&[], &ops, 0, &[], &[launch(1), launch(0)])));
    assert_refused(&case(&[], &ops, 0, &[], &[launch(1)]), "op 0 is never launched");
    let twice = case(&[], &ops, 0, &[], &[launch(1), launch(0), launch(1)]);
    assert_refused(&twice, "step 2: op 1 is launched twice");
}

#[test]
fn rule_1_the_order_keeps_the_dependencies() {
    for (first, second) in [
        ((&[][..], &[0][..]), (&[0][..], &[][..])),
        ((&[0], &[]), (&[], &[0])),
        ((&[], &[0]), (&[], &[0])),
        ((&[0], &[0]), (&[0], &[0])),
    ] {
        let ops: [OpData<'_>; 2] = [(1, first.0, first.1), (1, second.0, second.1)];
        let in_order = [launch(0), launch(1)];
        assert!(accepted(&case(&[state(9)], &ops, 1, &[stale(0)], &in_order)));
        let reversed = [launch(1), launch(0)];
        assert_refused(&case(&[state(9)], &ops, 1, &[stale(0)], &reversed), "step 1: op 0 depends");
    }
    let readers: [OpData<'_>; 2] = [(1, &[0], &[]), (1, &[0], &[])];
    assert!(accepted(&case(&[state(9)], &readers, 1, &[stale(0)], &[launch(1), launch(0)])));
}

#[test]
fn rule_2_prefetches_only_what_is_not_resident() {
    let op: OpData<'_> = (1, &[0], &[]);
    let steps = [prefetch(0), Step::Prefetch(part(0, 1, 1)), launch(0), evict(0)];
    let twice = case(&[state(200)], &[op], 9, &[], &steps);
    assert_refused(&twice, "step 1: tensor 0 is resident already");
    let steps = [Step::Prefetch(part(0, 1, 1)), Step::Prefetch(part(0, 0, 1)), launch(0), evict(0)];
    assert!(accepted(&case(&[state(200)], &[op], 9, &[], &steps)));
}

#[test]
fn rule_2_prefetches_only_what_has_a_valid_host_copy() {
    let ops: [OpData<'_>; 2] = [(1, &[], &[0]), (1, &[0], &[])];
    let steps = [prefetch(0), launch(0), launch(1), evict(0)];
    let unborn = case(&[temporary(9)], &ops, 9, &[], &steps);
    assert_refused(&unborn, "step 0: the host has no valid copy of tensor 0");
    // A temporary's host copy is forgotten when the iteration ends, even where it was made.
    let steps = [launch(0), offload(0), launch(1), evict(0), prefetch(0), evict(0)];
    assert!(accepted(&case(&[temporary(9)], &ops, 9, &[], &steps)));
}

#[test]
fn rule_2_an_input_has_a_host_copy_until_an_op_writes_it() {
    let ops: [OpData<'_>; 3] = [(1, &[0], &[]), (1, &[0], &[0]), (1, &[0], &[])];
    let again = [evict(0), prefetch(0)];
    let around = |first: &[Step], second: &[Step]| {
        let steps =
            [&[prefetch(0), launch(0)], first, &[launch(1)], second, &[launch(2), evict(0)]];
        case(&[input(9)], &ops, 9, &[], &steps.concat())
    };
    assert!(accepted(&around(&again, &[])));
    assert_refused(&around(&[], &again), "step 3: the only copy of tensor 0 would be lost");
    assert!(accepted(&around(&[], &[&[offload(0)], &again[..]].concat())));
}

#[test]
fn rule_2_an_input_has_that_host_copy_whatever_the_plan_claims() {
    let steps = [evict(0), prefetch(0), launch(0), evict(0), prefetch(0)];
    assert!(accepted(&case(&[input(9)], &[(1, &[0], &[])], 9, &[stale(0)], &steps)));
}

#[test]
fn rule_2_an_input_that_no_op_reads_has_a_host_copy_though_an_op_has_written_it() {
    for steps in [
        &[prefetch(0), launch(0), evict(0)][..],
        &[prefetch(0), launch(0), evict(0), prefetch(0), evict(0)],
        &[launch(0), evict(0), prefetch(0), evict(0)],
    ] {
        assert!(accepted(&case(&[input(9)], &[(1, &[], &[0])], 9, &[], steps)));
    }
    let kept = [launch(0), evict(0), prefetch(0)];
    assert!(accepted(&case(&[input(9)], &[(1, &[], &[0])], 9, &[stale(0)], &kept)));
}

#[test]
fn rule_2_after_its_last_read_an_inputs_host_copy_is_the_next_iterations() {
    let ops: [OpData<'_>; 2] = [(1, &[0], &[0]), (1, &[], &[])];
    let steps = [launch(0), evict(0), prefetch(0), launch(1)];
    assert!(accepted(&case(&[input(9)], &ops, 9, &[copied(0)], &steps)));
}

#[test]
fn rule_2_after_its_last_read_an_inputs_device_copy_holds_no_value() {
    let read: OpData<'_> = (1, &[0], &[]);
    let kept = case(&[input(9)], &[read], 9, &[copied(0)], &[launch(0)]);
    assert_refused(&kept, "step 0: the device does not hold the current value of tensor 0");
    let partly = [launch(0), Step::Evict(part(0, 0, 1)), Step::Prefetch(part(0, 0, 1))];
    let partly = case(&[input(200)], &[read], 9, &[copied(0)], &partly);
    assert_refused(&partly, "step 0: the device does not hold the current value of tensor 0");
    let offloaded =
        case(&[input(9)], &[read], 9, &[], &[prefetch(0), launch(0), offload(0), evict(0)]);
    assert_refused(&offloaded, "step 2: the device has no valid copy of tensor 0");
}

#[test]
fn rule_2_a_write_after_the_last_read_spoils_only_the_device_copy() {
    let ops: [OpData<'_>; 2] = [(1, &[0], &[]), (1, &[], &[0])];
    let steps = [launch(0), launch(1), evict(0), prefetch(0)];
    assert!(accepted(&case(&[input(9)], &ops, 9, &[copied(0)], &steps)));
    let steps = [launch(0), evict(0), prefetch(0), launch(1)];
    let spoiled = case(&[input(9)], &ops, 9, &[copied(0)], &steps);
    assert_refused(&spoiled, "step 0: the device does not hold the current value of tensor 0");
}

#[test]
fn an_input_that_no_op_reads_may_stay() {
    let kept = case(&[input(9)], &[(1, &[], &[])], 9, &[copied(0)], &[launch(0)]);
    assert!(accepted(&kept));
    let written = case(&[input(9)], &[(1, &[], &[0])], 9, &[stale(0)], &[launch(0)]);
    assert!(accepted(&written));
    let claimed = case(&[input(9)], &[(1, &[], &[0])], 9, &[copied(0)], &[launch(0)]);
    assert!(accepted(&claimed));
}

#[test]
fn rule_3_launches_only_when_all_objects_read_are_resident() {
    let op: OpData<'_> = (1, &[0], &[]);
    let steps = [Step::Prefetch(part(0, 0, 2)), launch(0), Step::Evict(part(0, 0, 2))];
    assert!(accepted(&case(&[state(200)], &[op], 9, &[], &steps)));
    let lacking = case(&[state(201)], &[op], 9, &[], &steps);
    assert_refused(&lacking, "step 1: tensor 0 is not resident");
}

#[test]
fn rule_3_an_op_that_only_writes_needs_nothing_resident() {
    let steps = [launch(0), offload(0), evict(0)];
    assert!(accepted(&case(&[state(200)], &[(1, &[], &[0])], 9, &[], &steps)));
    let updated = case(&[state(200)], &[(1, &[0], &[0])], 9, &[], &steps);
    assert_refused(&updated, "step 0: tensor 0 is not resident");
}

#[test]
fn rule_3_a_launch_makes_the_host_copy_of_what_it_writes_stale() {
    let op: OpData<'_> = (1, &[0], &[0]);
    let steps = [prefetch(0), launch(0), evict(0)];
    let lost = case(&[state(9)], &[op], 9, &[], &steps);
    assert_refused(&lost, "step 2: the only copy of tensor 0 would be lost");
    let steps = [prefetch(0), offload(0), launch(0), evict(0)];
    assert_refused(&case(&[state(9)], &[op], 9, &[], &steps), "step 3: the only copy");
    let steps = [prefetch(0), launch(0), offload(0), evict(0)];
    assert!(accepted(&case(&[state(9)], &[op], 9, &[], &steps)));
}

#[test]
fn rule_4_offloads_only_what_is_resident() {
    let steps = [Step::Evict(part(0, 0, 1)), Step::Offload(part(0, 0, 2)), launch(0)];
    let case = case(&[state(200)], &[(1, &[], &[0])], 9, &[stale(0)], &steps);
    assert_refused(&case, "step 1: tensor 0 is not resident");
}

#[test]
fn rule_4_offloads_no_input_with_its_next_value() {
    let ops: [OpData<'_>; 2] = [(1, &[0], &[]), (1, &[0], &[])];
    let before = [launch(0), offload(0), launch(1), evict(0), prefetch(0)];
    assert!(accepted(&case(&[input(9)], &ops, 9, &[copied(0)], &before)));
    let after = [launch(0), launch(1), evict(0), prefetch(0), offload(0)];
    let refused = "step 4: the host has the next value of tensor 0";
    assert_refused(&case(&[input(9)], &ops, 9, &[copied(0)], &after), refused);
}

#[test]
fn rule_4_offloads_no_input_that_no_op_reads() {
    let untouched: OpData<'_> = (1, &[], &[]);
    let refused = "the host has the next value of tensor 0";
    let kept = [launch(0), offload(0)];
    assert_refused(&case(&[input(9)], &[untouched], 9, &[stale(0)], &kept), refused);
    let brought = [prefetch(0), offload(0), launch(0), evict(0)];
    assert_refused(&case(&[input(9)], &[untouched], 9, &[], &brought), refused);
    let written = [launch(0), offload(0), evict(0)];
    let refused = "the device has no valid copy of tensor 0";
    assert_refused(&case(&[input(9)], &[(1, &[], &[0])], 9, &[], &written), refused);
}

#[test]
fn rule_5_evicts_only_what_is_resident() {
    let steps = [Step::Evict(part(0, 0, 1)), evict(0), launch(0)];
    let case = case(&[state(200)], &[(1, &[], &[0])], 9, &[stale(0)], &steps);
    assert_refused(&case, "step 1: tensor 0 is not resident");
}

#[test]
fn rule_5_a_value_that_no_op_reads_again_may_be_lost() {
    let ops: [OpData<'_>; 2] = [(1, &[0], &[]), (1, &[], &[0])];
    let steps = [launch(0), evict(0), launch(1)];
    assert!(accepted(&case(&[state(9)], &ops, 9, &[stale(0)], &steps)));
    let early = [evict(0), launch(0), launch(1)];
    assert_refused(&case(&[state(9)], &ops, 9, &[stale(0)], &early), "step 0: the only copy");
    let temporary_steps = [launch(0), evict(0), launch(1), evict(0)];
    let ops: [OpData<'_>; 2] = [(1, &[], &[0]), (1, &[], &[0])];
    assert!(accepted(&case(&[temporary(9)], &ops, 9, &[], &temporary_steps)));
}

#[test]
fn rule_5_the_next_iteration_always_reads_a_state() {
    // It overwrites the state before it reads it, and the value is a result all the same.
    let ops: [OpData<'_>; 2] = [(1, &[], &[0]), (1, &[0], &[])];
    let steps = [launch(0), launch(1), evict(0)];
    let lost = case(&[state(9)], &ops, 9, &[], &steps);
    assert_refused(&lost, "step 2: the only copy of tensor 0 would be lost");
}

#[test]
fn rule_6_ends_with_what_is_resident_at_start() {
    let op: OpData<'_> = (1, &[0], &[]);
    let steps = [launch(0), evict(0)];
    let gone = case(&[state(9)], &[op], 9, &[copied(0)], &steps);
    assert_refused(&gone, "the end of the list: tensor 0 is not resident");
    let steps = [Step::Evict(part(0, 1, 1)), Step::Prefetch(part(0, 1, 1)), launch(0)];
    assert!(accepted(&case(&[state(200)], &[op], 9, &[copied(0)], &steps)));
}

#[test]
fn rule_6_ends_with_nothing_else_resident() {
    let more = case(&[state(9)], &[(1, &[0], &[])], 9, &[], &[prefetch(0), launch(0)]);
    assert_refused(&more, "the end of the list: tensor 0 is still resident");
    let start = Resident { part: part(0, 0, 1), host_copy: true };
    let steps = [Step::Prefetch(part(0, 1, 1)), launch(0)];
    let more = case(&[state(200)], &[(1, &[0], &[])], 9, &[start], &steps);
    assert_refused(&more, "the end of the list: tensor 0 is still resident");
}

#[test]
fn rule_6_ends_with_the_host_copies_that_are_claimed() {
    let op: OpData<'_> = (1, &[0], &[0]);
    let steps = [launch(0)];
    assert!(accepted(&case(&[state(9)], &[op], 9, &[stale(0)], &steps)));
    let claimed = case(&[state(9)], &[op], 9, &[copied(0)], &steps);
    assert_refused(&claimed, "the end of the list: tensor 0 has no host copy and claims one");
    let steps = [launch(0), offload(0)];
    assert!(accepted(&case(&[state(9)], &[op], 9, &[copied(0)], &steps)));
}

#[test]
fn rule_6_what_claims_no_host_copy_has_none_at_start() {
    let steps = [evict(0), prefetch(0), launch(0)];
    let op: OpData<'_> = (1, &[0], &[]);
    assert!(accepted(&case(&[state(9)], &[op], 9, &[copied(0)], &steps)));
    assert_refused(&case(&[state(9)], &[op], 9, &[stale(0)], &steps), "step 0: the only copy");
}

#[test]
fn rule_6_temporaries_are_never_resident_at_start() {
    let steps = [launch(0)];
    let case = case(&[temporary(9)], &[(1, &[], &[0])], 9, &[stale(0)], &steps);
    assert_refused(&case, "resident_at_start[0]: tensor 0 has no value at start");
}

#[test]
fn ranges_lie_inside_their_tensor_and_are_not_empty() {
    for (first, count) in [(0, 0), (0, 3), (2, 1), (1, u64::MAX - 1), (u64::MAX, 2)] {
        let steps = [launch(0), Step::Offload(part(0, first, count))];
        let case = case(&[state(200)], &[(1, &[0], &[])], 9, &[stale(0)], &steps);
        assert_refused(&case, "step 1: no range of tensor 0's 2");
    }
}

#[test]
fn nothing_is_listed_twice_at_start() {
    let half = Resident { part: part(0, 1, 1), host_copy: false };
    let case = case(&[state(200)], &[(1, &[0], &[])], 9, &[stale(0), half], &[launch(0)]);
    assert_refused(&case, "resident_at_start[1]: tensor 0 is listed twice");
}

#[test]
fn ids_exist() {
    let with = |step| case(&[state(9)], &[(1, &[], &[])], 9, &[], &[step, launch(0)]);
    assert_refused(&with(launch(1)), "step 0: there is no op 1");
    for step in [prefetch(1), offload(1), evict(1)] {
        assert_refused(&with(step), "step 0: there is no tensor 1");
    }
    let case = case(&[], &[(1, &[], &[])], 9, &[stale(0)], &[launch(0)]);
    assert_refused(&case, "resident_at_start[0]: there is no tensor 0");
    assert_refused(&with_arena(case, 9, &[(0, 0)]), "arena.placements[0]: there is no tensor 0");
}
