//! Ops that are launched again. All that is launched here is repeatable, where a test does not say
//! otherwise.

use crate::placements::placed;
use crate::*;
use conformance::ledger::host;

fn again(op: u32) -> Step {
    Step::repeat(OpId(op))
}

fn repeatable(
    tensors: &[Tensor],
    ops: &[OpData<'_>],
    count: u64,
    resident_at_start: &[Resident],
    steps: &[Step],
) -> Case {
    let mut case = case(tensors, ops, count, resident_at_start, steps);
    case.graph.ops.iter_mut().for_each(|op| op.repeatable = true);
    case
}

fn accepted(case: &Case) -> bool {
    try_measure(case).is_ok()
}

/// A temporary is made, updated in place, and read.
const UPDATED: [OpData<'_>; 3] = [(10, &[], &[0]), (20, &[0], &[0]), (40, &[0], &[])];

fn updated(count: u64, steps: &[Step]) -> Case {
    repeatable(&[temporary(100)], &UPDATED, count, &[], steps)
}

#[test]
fn rule_1_none_but_repeatable_ops_are_launched_again() {
    let ops: [OpData<'_>; 2] = [(1, &[], &[]), (1, &[], &[])];
    let mut case = repeatable(&[], &ops, 0, &[], &[launch(0), launch(1), again(0), again(0)]);
    assert!(accepted(&case));
    case.graph.ops[0].repeatable = false;
    assert_refused(&case, "step 2: op 0 is repeated and is not repeatable");
}

#[test]
fn rule_1_the_first_launch_of_an_op_is_the_op_and_every_later_one_is_a_repeat() {
    let op: OpData<'_> = (1, &[], &[]);
    let of = |steps: &[Step]| repeatable(&[], &[op], 0, &[], steps);
    assert_refused(&of(&[again(0), launch(0)]), "step 0: op 0 is repeated before its first");
    assert_refused(&of(&[again(0)]), "step 0: op 0 is repeated before its first launch");
    assert_refused(&of(&[launch(0), launch(0)]), "step 1: op 0 is launched twice");
}

#[test]
fn rule_1_only_first_launches_keep_the_order_of_the_dependencies() {
    let steps = [launch(0), launch(1), launch(2), again(0), again(1), again(0), evict(0)];
    assert!(accepted(&updated(1, &steps)));
    let steps = [launch(0), launch(2), launch(1), again(0), evict(0)];
    assert_refused(&updated(1, &steps), "step 2: op 1 depends on op 2");
}

#[test]
fn rule_2_prefetches_an_earlier_value_only_where_a_later_launch_reads_it() {
    let brought = [launch(0), offload(0), launch(1), launch(2), evict(0), prefetch(0)];
    let read = [&brought[..], &[again(1), evict(0)]].concat();
    assert!(accepted(&updated(1, &read)));
    let unread = [&brought[..], &[evict(0)]].concat();
    assert_refused(&updated(1, &unread), "step 5: the host has no valid copy of tensor 0");
    let too_late = [&brought[..5], &[again(0), again(1), evict(0), prefetch(0), evict(0)]];
    assert_refused(&updated(1, &too_late.concat()), "step 8: the host has no valid copy");
}

#[test]
fn rule_2_an_inputs_value_is_the_next_iterations_only_after_its_last_read_by_a_repeat() {
    let ops: [OpData<'_>; 2] = [(10, &[0], &[1]), (10, &[1], &[])];
    let tensors = [input(100), temporary(100)];
    let drop = [prefetch(0), launch(0), evict(1)];
    let last = [again(0), launch(1), evict(1), evict(0)];
    let kept = [&drop[..], &last].concat();
    assert!(accepted(&repeatable(&tensors, &ops, 2, &[], &kept)));
    let brought_again = [&drop[..], &[evict(0), prefetch(0)], &last].concat();
    assert!(accepted(&repeatable(&tensors, &ops, 2, &[], &brought_again)));
    let offloaded = [&drop[..], &[offload(0)], &last].concat();
    assert!(accepted(&repeatable(&tensors, &ops, 2, &[], &offloaded)));
    let too_late = [&drop[..], &last[..1], &[offload(0)], &last[1..]].concat();
    assert_refused(
        &repeatable(&tensors, &ops, 2, &[], &too_late),
        "step 4: the device has no valid",
    );
    // The next value stays for the next iteration.
    let next = [&last[..], &[prefetch(0)]].concat();
    let ahead = [&drop[1..], &next].concat();
    assert!(accepted(&repeatable(&tensors, &ops, 2, &[copied(0)], &ahead)));
    let too_early = [&drop[1..], &[evict(0), prefetch(0)], &last[..3]].concat();
    let refused = "step 0: the device does not hold the current value of tensor 0";
    assert_refused(&repeatable(&tensors, &ops, 2, &[copied(0)], &too_early), refused);
}

#[test]
fn rule_2_the_host_copy_of_an_input_that_an_op_writes_is_valid_for_repeats_that_read_it() {
    let ops: [OpData<'_>; 3] = [(1, &[0], &[1]), (1, &[0], &[0]), (1, &[1], &[])];
    let tensors = [input(100), temporary(100)];
    let written = [prefetch(0), launch(0), evict(1), launch(1), evict(0), prefetch(0)];
    let repeated = [&written[..], &[again(0), launch(2), evict(0), evict(1)]].concat();
    assert!(accepted(&repeatable(&tensors, &ops, 2, &[], &repeated)));
    let kept = [&written[..4], &repeated[6..]].concat();
    let refused = "step 4: the device does not hold the value of tensor 0 that op 0 read first";
    assert_refused(&repeatable(&tensors, &ops, 2, &[], &kept), refused);
    let replaced = [&written[..4], &[offload(0)], &repeated[4..]].concat();
    let refused = "step 7: the device does not hold the value of tensor 0 that op 0 read first";
    assert_refused(&repeatable(&tensors, &ops, 2, &[], &replaced), refused);
}

#[test]
fn rule_3_a_repeat_reads_the_values_that_the_first_launch_read() {
    let steps = [launch(0), launch(1), again(1), launch(2), evict(0)];
    let refused = "step 2: the device does not hold the value of tensor 0 that op 1 read first";
    assert_refused(&updated(1, &steps), refused);
    let steps = [launch(0), launch(1), again(0), again(1), launch(2), evict(0)];
    assert!(accepted(&updated(1, &steps)));
    let gone = [launch(0), launch(1), launch(2), evict(0), again(1), evict(0)];
    assert_refused(&updated(1, &gone), "step 4: tensor 0 is not resident");
}

#[test]
fn rule_3_a_repeat_reads_no_newer_value_of_a_state() {
    let ops: [OpData<'_>; 3] = [(1, &[0], &[1]), (1, &[1], &[]), (1, &[0], &[0])];
    let tensors = [state(100), temporary(100)];
    let before = [launch(0), evict(1), again(0), launch(1), evict(1), launch(2)];
    assert!(accepted(&repeatable(&tensors, &ops, 2, &[stale(0)], &before)));
    let after = [launch(0), launch(1), launch(2), evict(1), again(0), evict(1)];
    let refused = "step 4: the device does not hold the value of tensor 0 that op 0 read first";
    assert_refused(&repeatable(&tensors, &ops, 2, &[stale(0)], &after), refused);
}

#[test]
fn rule_3_a_repeat_brings_an_earlier_value_back() {
    let lost = [launch(0), launch(1), again(0), launch(2), evict(0)];
    let refused = "step 3: the device does not hold the current value of tensor 0";
    assert_refused(&updated(1, &lost), refused);
    let dropped = [launch(0), launch(1), evict(0), again(0), again(1), launch(2), evict(0)];
    assert!(accepted(&updated(1, &dropped)));
}

#[test]
fn rule_3_host_copies_keep_the_value_they_have() {
    let steps = [launch(0), launch(1), offload(0), again(0), evict(0), prefetch(0), launch(2)];
    assert!(accepted(&updated(1, &[&steps[..], &[evict(0)]].concat())));
    let earlier = [launch(0), offload(0), launch(1), evict(0), prefetch(0), again(1), launch(2)];
    assert!(accepted(&updated(1, &[&earlier[..], &[evict(0)]].concat())));
}

#[test]
fn a_repeat_leaves_the_states_and_inputs_alone_that_the_op_writes() {
    for kept in [state(100), input(100)] {
        let ops: [OpData<'_>; 2] = [(1, &[0], &[0, 1]), (1, &[1], &[])];
        let tensors = [kept, temporary(100)];
        let away = [prefetch(0), launch(0), evict(1), offload(0), evict(0), again(0)];
        let steps = [&away[..], &[launch(1), evict(1)]].concat();
        let mut case = repeatable(&tensors, &ops, 2, &[], &steps);
        if kept.kind == Kind::Input {
            // Its last read is the first launch.
            assert_refused(&case, "step 3: the device has no valid copy of tensor 0");
            case.plan.steps.remove(3);
        }
        assert!(accepted(&case));
    }
    // A state that it overwrites keeps its only value.
    let ops: [OpData<'_>; 2] = [(1, &[], &[0, 1]), (1, &[1], &[])];
    let steps = [launch(0), evict(1), again(0), launch(1), evict(1), offload(0)];
    let tensors = [state(100), temporary(100)];
    assert!(accepted(&repeatable(&tensors, &ops, 2, &[copied(0)], &steps)));
}

#[test]
fn rule_4_offloads_an_earlier_value_only_where_a_later_launch_reads_it() {
    let made = [launch(0), launch(1), launch(2), again(0), offload(0)];
    let read = [&made[..], &[evict(0), prefetch(0), again(1), evict(0)]].concat();
    assert!(accepted(&updated(1, &read)));
    let unread = [&made[..], &[evict(0)]].concat();
    assert_refused(&updated(1, &unread), "step 4: the device has no valid copy of tensor 0");
}

#[test]
fn rule_5_evicts_what_the_next_launch_makes_again() {
    let ops: [OpData<'_>; 2] = [(1, &[], &[0]), (1, &[0], &[])];
    let steps = [launch(0), evict(0), again(0), launch(1), evict(0)];
    let dropped = repeatable(&[temporary(200)], &ops, 2, &[], &steps);
    assert!(accepted(&dropped));
    let mut lost = dropped.clone();
    lost.plan.steps.remove(2);
    assert_refused(&lost, "step 1: the only copy of tensor 0 would be lost");
    let mut half = dropped;
    half.plan.steps[1] = Step::Evict(part(0, 1, 1));
    assert!(accepted(&half));
}

#[test]
fn rule_5_evicts_a_value_where_the_next_launch_reads_another_one() {
    let made = [launch(0), offload(0), launch(1), evict(0), prefetch(0), again(1), launch(2)];
    assert!(accepted(&updated(1, &[&made[..], &[evict(0)]].concat())));
    // The next launch reads what is current, and that is not what is resident.
    let steps = [launch(0), launch(1), offload(0), again(0), evict(0), prefetch(0), launch(2)];
    assert!(accepted(&updated(1, &[&steps[..], &[evict(0)]].concat())));
    let read = [launch(0), launch(1), launch(2), again(0), evict(0), again(1), evict(0)];
    assert_refused(&updated(1, &read), "step 4: the only copy of tensor 0 would be lost");
    // What the host holds is another value.
    let other = [launch(0), offload(0), launch(1), evict(0), launch(2)];
    assert_refused(&updated(1, &other), "step 3: the only copy of tensor 0 would be lost");
}

#[test]
fn rule_5_a_state_keeps_its_last_value_whatever_repeats_read() {
    let ops: [OpData<'_>; 2] = [(1, &[0], &[1]), (1, &[], &[0])];
    let tensors = [state(100), temporary(100)];
    let steps = [prefetch(0), launch(0), launch(1), evict(0), prefetch(0), again(0)];
    let steps = [&steps[..], &[evict(1), evict(0)]].concat();
    let lost = repeatable(&tensors, &ops, 2, &[], &steps);
    assert_refused(&lost, "step 3: the only copy of tensor 0 would be lost");
    // What comes before the last value may be lost.
    let ops: [OpData<'_>; 3] = [(1, &[0], &[1]), (1, &[], &[0]), (1, &[], &[0])];
    let steps = [&steps[..7], &[launch(2), offload(0), evict(0)]].concat();
    assert!(accepted(&repeatable(&tensors, &ops, 2, &[], &steps)));
}

#[test]
fn rule_6_what_a_repeat_makes_is_not_resident_at_the_end() {
    let steps = [launch(0), launch(1), launch(2), evict(0), again(0)];
    assert_refused(&updated(1, &steps), "the end of the list: tensor 0 is still resident");
}

#[test]
fn a_repeat_takes_the_ops_time_and_counts_apart() {
    let steps = [launch(0), launch(1), evict(0), again(0), again(1), launch(2), evict(0)];
    let case = updated(9, &steps);
    assert_eq!([3, 4, 5].map(|step| first_start_ns(&case, step)), [30, 40, 60]);
    let prediction = measured(&case).prediction;
    assert_eq!([prediction.compute_ns, prediction.repeat_ns], [70, 30]);
    assert_eq!(prediction.period_ns, 100);
}

#[test]
fn times_of_repeats_count_towards_64_bits() {
    let ops: [OpData<'_>; 1] = [(u64::MAX / 20, &[], &[])];
    assert!(accepted(&repeatable(&[], &ops, 0, &[], &[launch(0), again(0)])));
    let many = [launch(0), again(0), again(0)];
    assert_refused(&repeatable(&[], &ops, 0, &[], &many), "exceeds 64 bits");
}

#[test]
fn a_repeat_waits_for_what_it_touches_and_for_nothing_else() {
    let ops: [OpData<'_>; 2] = [(10, &[0, 1], &[1, 2]), (1, &[2], &[])];
    let tensors = [state(100), state(1000), temporary(100)];
    let start = [copied(0), stale(1)];
    let first = [launch(0), evict(2), evict(0), prefetch(0)];
    let busy = [&first[..], &[offload(1), evict(1), prefetch(1), again(0), launch(1), evict(2)]];
    // From 10 to 110 the read state arrives, to 1010 the written one leaves, to 2010 it is back.
    let case = repeatable(&tensors, &ops, PLENTY, &start, &busy.concat());
    assert_eq!([3, 4, 6, 7].map(|step| first_start_ns(&case, step)), [10, 10, 1010, 110]);
}

#[test]
fn a_repeat_waits_for_the_offload_of_what_it_writes() {
    let steps = [launch(0), offload(0), launch(1), launch(2), again(0), evict(0)];
    let case = updated(9, &steps);
    assert_eq!(first_start_ns(&case, 2), 110);
    let steps = [launch(0), launch(1), offload(0), launch(2), again(0), evict(0)];
    assert_eq!(first_start_ns(&updated(9, &steps), 4), 130);
}

#[test]
fn an_offload_waits_for_the_repeat_that_writes_the_tensor() {
    let steps = [launch(0), launch(1), launch(2), again(0), offload(0), again(1), evict(0)];
    assert_eq!(first_start_ns(&updated(9, &steps), 4), 80);
}

#[test]
fn a_prefetch_and_an_evict_wait_for_a_repeat_that_touches_the_tensor() {
    let ops: [OpData<'_>; 2] = [(50, &[0], &[1]), (1, &[1], &[])];
    let tensors = [state(100), temporary(100)];
    let steps = [launch(0), evict(1), again(0), evict(0), prefetch(0), launch(1), evict(1)];
    let case = repeatable(&tensors, &ops, PLENTY, &[copied(0)], &steps);
    assert_eq!([3, 4].map(|step| first_start_ns(&case, step)), [100, 100]);
    // The repeat of an op that writes the state leaves it alone.
    let ops: [OpData<'_>; 2] = [(50, &[0], &[0, 1]), (1, &[1], &[])];
    let steps = [launch(0), offload(0), evict(1), again(0), evict(0), prefetch(0), launch(1)];
    let steps = [&steps[..], &[evict(1)]].concat();
    let case = repeatable(&tensors, &ops, PLENTY, &[copied(0)], &steps);
    assert_eq!([3, 4, 5].map(|step| first_start_ns(&case, step)), [50, 150, 150]);
}

#[test]
fn an_input_of_which_two_copies_exist_waits_for_repeats() {
    let ops: [OpData<'_>; 2] = [(50, &[0], &[1]), (50, &[1], &[])];
    let tensors = [input(100), temporary(100)];
    let steps = [prefetch(0), launch(0), evict(1), again(0), launch(1), evict(1), evict(0)];
    let case = repeatable(&tensors, &ops, PLENTY, &[], &steps);
    // The third value waits for the repeat that reads the first one, from 150 to 200.
    assert_eq!(starts_ns(&case, 0), [0, 100, 200]);
}

#[test]
fn a_repeat_allocates_only_what_is_missing_of_the_temporaries_it_writes() {
    let ops: [OpData<'_>; 2] = [(1, &[], &[0, 1, 2]), (1, &[1, 2], &[])];
    let tensors = [state(300), temporary(200), temporary(100)];
    let dropped = [launch(0), offload(0), evict(0), Step::Evict(part(1, 1, 1)), evict(2)];
    let steps = [&dropped[..], &[again(0), launch(1), evict(1), evict(2)]].concat();
    let mut case = repeatable(&tensors, &ops, 6, &[], &steps);
    case.graph.ops[0].workspace_bytes = 100;
    assert_refused(&case, "step 0: pool 0 never has enough free objects");
    case.plan.pools[0].count = 7;
    let judgement = measured(&case);
    assert_eq!(judgement.prediction.peak_bytes, 700);
    // Held during the repeat: three objects of temporaries, and the workspace.
    assert_eq!(judgement.waste_bytes[5], [0, 300]);
    let arrays: [&[u64]; 7] = [&[0, 1, 2], &[3, 4], &[5], &[6], &[0], &[5], &[2]];
    assert!(accepted(&placed(case.clone(), &arrays)));
    let with_state = [arrays[0], arrays[1], arrays[2], arrays[3], &[0, 1, 2], &[5], &[4]];
    assert_refused(&placed(case, &with_state), "placements[4] has 3 numbers");
}

#[test]
fn a_repeat_waits_for_the_memory_of_what_it_makes_again() {
    let ops: [OpData<'_>; 3] = [(10, &[], &[0]), (10, &[1], &[1]), (10, &[0], &[])];
    let tensors = [temporary(100), state(100)];
    let steps = [launch(0), evict(0), prefetch(1), launch(1), offload(1), evict(1), again(0)];
    let steps = [&steps[..], &[launch(2), evict(0)]].concat();
    let tight = repeatable(&tensors, &ops, 1, &[], &steps);
    assert_eq!([2, 4, 6].map(|step| first_start_ns(&tight, step)), [10, 120, 220]);
    let plenty = repeatable(&tensors, &ops, PLENTY, &[], &steps);
    assert_eq!(first_start_ns(&plenty, 6), 110);
}

/// `a` is made and read, then `b`, then `a` again.
fn alternating(steps: &[Step], offsets_bytes: [u64; 2]) -> Case {
    let ops: [OpData<'_>; 5] =
        [(1, &[], &[0]), (1, &[0], &[]), (1, &[], &[1]), (1, &[1], &[]), (1, &[0], &[])];
    let mut case = repeatable(&[temporary(100); 2], &ops, 0, &[], steps);
    case.plan.pools.clear();
    with_arena(case, 200, &[(0, offsets_bytes[0]), (1, offsets_bytes[1])])
}

#[test]
fn what_is_made_again_leaves_its_bytes_of_the_arena_to_others_in_between() {
    let kept = [launch(0), launch(1), launch(2), launch(3), launch(4)];
    assert_refused(&alternating(&kept, [0, 0]), "shares bytes with tensor 0 while both live");
    let mut made_again = kept.to_vec();
    made_again.insert(4, again(0));
    assert!(accepted(&alternating(&made_again, [0, 0])));
    assert!(accepted(&alternating(&made_again, [100, 0])));
    made_again.swap(3, 4);
    assert_refused(&alternating(&made_again, [0, 0]), "shares bytes with tensor 0 while both live");
    assert!(accepted(&alternating(&made_again, [0, 100])));
    // The last launch of a span is a repeat.
    let read_again = [&kept[..3], &[again(1)], &kept[3..4], &[again(0)], &kept[4..]].concat();
    assert_refused(&alternating(&read_again, [0, 0]), "shares bytes");
}

#[test]
fn an_update_in_place_belongs_to_the_span_in_the_arena() {
    let ops: [OpData<'_>; 4] = [(1, &[], &[0]), (1, &[0], &[0]), (1, &[], &[1]), (1, &[0], &[])];
    let of = |steps: &[Step]| {
        with_arena(repeatable(&[temporary(100); 2], &ops, 1, &[], steps), 100, &[(0, 0), (1, 0)])
    };
    let made_again = [launch(0), launch(1), launch(2), again(0), again(1), launch(3)];
    assert!(accepted(&of(&made_again)));
    let made_early = [launch(0), launch(1), again(0), launch(2), again(1), launch(3)];
    assert_refused(&of(&made_early), "shares bytes");
}

#[test]
fn an_input_in_the_arena_stops_being_resident_at_its_last_read_by_a_repeat() {
    let ops: [OpData<'_>; 2] = [(1, &[0], &[1]), (1, &[1], &[])];
    let of = |start: &[Resident], steps: &[Step]| {
        let tensors = [input(100), temporary(100)];
        with_arena(repeatable(&tensors, &ops, 1, start, steps), 100, &[(0, 0)])
    };
    let last = [again(0), launch(1), evict(1)];
    let first = [&[prefetch(0), launch(0), evict(1)], &last[..]].concat();
    assert!(accepted(&of(&[], &first)));
    let ahead = [&[launch(0), evict(1)], &last[..], &[prefetch(0)]].concat();
    assert!(accepted(&of(&[copied(0)], &ahead)));
    let too_early = [&[launch(0), evict(1), prefetch(0)], &last[..]].concat();
    assert_refused(&of(&[copied(0)], &too_early), "step 2: tensor 0 is resident already");
}

#[test]
fn a_span_on_the_host_goes_from_a_launch_first_or_again_to_one_first_or_again() {
    let span = |steps: &[Step]| {
        let case = updated(9, steps);
        assert!(accepted(&case));
        host::temporaries(&case.graph.graph().unwrap(), &case.plan.plan())[0].span
    };
    let late = [launch(0), launch(1), launch(2), evict(0), again(0), offload(0), evict(0)];
    let late = [&late[..], &[prefetch(0), again(1), again(2), evict(0)]].concat();
    assert_eq!(span(&late), (4, 9));
    let early = [launch(0), launch(1), offload(0), evict(0), prefetch(0), launch(2), again(2)];
    assert_eq!(span(&[&early[..], &[evict(0)]].concat()), (1, 6));
}
