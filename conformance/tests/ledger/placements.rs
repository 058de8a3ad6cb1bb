//! Fixed physical objects.

use crate::*;
use workloads::OwnedPlacements;

/// The same case with these arrays for one iteration.
pub(crate) fn placed(case: Case, arrays: &[&[u64]]) -> Case {
    placed_for(1, case, arrays)
}

fn placed_for(iterations: u32, mut case: Case, arrays: &[&[u64]]) -> Case {
    let ends = (1..=arrays.len()).map(|at| arrays[..at].concat().len() as u32).collect();
    let objects = arrays.concat();
    case.plan.placements = Some(OwnedPlacements::new(iterations, objects, ends));
    case
}

/// `slow` leaves after a copy of 100 ns, and `quick`, listed after it, at once at 50; then
/// `x` wants one object.
fn slow_and_quick() -> Case {
    let steps = [launch(0), offload(0), evict(0), evict(1), prefetch(2), launch(1), evict(2)];
    let ops: [OpData<'_>; 2] = [(50, &[], &[0, 1]), (50, &[2], &[])];
    case(&[temporary(100), temporary(100), state(100)], &ops, 3, &[], &steps)
}

#[test]
fn an_allocation_waits_for_the_previous_holder_of_exactly_its_objects() {
    // The queue would hand out the third object at once, and never has a shortage.
    assert_eq!(first_start_ns(&slow_and_quick(), 4), 0);
    assert_eq!(first_start_ns(&placed(slow_and_quick(), &[&[0], &[1], &[0]]), 4), 150);
    assert_eq!(first_start_ns(&placed(slow_and_quick(), &[&[0], &[1], &[1]]), 4), 50);
    let apart = placed(slow_and_quick(), &[&[0], &[1], &[2]]);
    assert_eq!(first_start_ns(&apart, 4), 0);
    // The next iteration waits for this one's holders: `x` until 150, and `slow` until 150.
    assert_eq!(starts_ns(&apart, 4)[1], 150);
    assert_eq!(starts_ns(&apart, 0)[1], 150);
}

#[test]
fn a_launch_waits_for_all_of_its_objects() {
    let steps = [launch(0), offload(0), evict(0), evict(1), launch(1), evict(2), evict(3)];
    let ops: [OpData<'_>; 2] = [(50, &[], &[0, 1]), (50, &[], &[2, 3])];
    let case = case(&[temporary(100); 4], &ops, 3, &[], &steps);
    assert_eq!(first_start_ns(&placed(case.clone(), &[&[0], &[1], &[1], &[2]]), 4), 50);
    assert_eq!(first_start_ns(&placed(case, &[&[0], &[1], &[1], &[0]]), 4), 150);
}

#[test]
fn there_is_one_array_for_each_allocation_in_list_order() {
    // `a` is resident at start, then half of it leaves; a launch writes it, and `b`, with a
    // workspace.
    let steps = [Step::Evict(part(0, 0, 2)), launch(0), evict(1)];
    let ops: [OpData<'_>; 1] = [(50, &[], &[1, 0])];
    let mut case = case(&[state(300), temporary(200)], &ops, 9, &[stale(0)], &steps);
    case.graph.ops[0].workspace_bytes = 101;
    let arrays: [&[u64]; 4] = [&[0, 1, 2], &[3, 4], &[0, 1], &[5, 6]];
    assert!(try_measure(&placed(case.clone(), &arrays)).is_ok());
    let swapped = [arrays[0], arrays[1], &[1, 0], arrays[3]];
    assert_refused(&placed(case.clone(), &swapped), "in other objects than at the start");
    let short = [&arrays[0][1..], arrays[1], arrays[2], arrays[3]];
    assert_refused(&placed(case.clone(), &short), "resident_at_start[0]: placements[0] has 2");
    let long = [arrays[0], &[3, 4, 7], arrays[2], arrays[3]];
    assert_refused(&placed(case.clone(), &long), "step 1: placements[1] has 3 numbers");
    assert_refused(&placed(case.clone(), &arrays[..3]), "step 1: placements[3] has 0 numbers");
    let more = [&arrays[..], &[&[]]].concat();
    assert_refused(&placed(case, &more), "more placements than allocations");
}

#[test]
fn arena_tensors_have_no_placements() {
    let steps = [prefetch(1), launch(0), evict(1)];
    let case = case(&[state(50), state(100)], &[(1, &[0, 1], &[])], 1, &[copied(0)], &steps);
    let case = with_arena(case, 100, &[(0, 0)]);
    assert!(try_measure(&placed(case.clone(), &[&[0]])).is_ok());
    assert_refused(&placed(case, &[&[], &[0]]), "more placements than allocations");
}

#[test]
fn no_object_has_two_holders() {
    assert_refused(&placed(slow_and_quick(), &[&[0], &[0], &[1]]), "object 0 has two holders");
    let at_start = case(
        &[state(100), state(100)],
        &[(1, &[0, 1], &[])],
        2,
        &[copied(0), copied(1)],
        &[launch(0)],
    );
    assert!(try_measure(&placed(at_start.clone(), &[&[1], &[0]])).is_ok());
    assert_refused(&placed(at_start, &[&[1], &[1]]), "resident_at_start[1]: object 1 has two");
}

#[test]
fn objects_are_numbers_within_the_pool() {
    assert_refused(&placed(slow_and_quick(), &[&[0], &[3], &[1]]), "pool 0 has no object 3");
    let mut pools = placed(slow_and_quick(), &[&[0], &[0], &[1]]);
    pools.plan.pools.push(Pool { object_bytes: 100, count: 1 });
    pools.plan.tensor_pool = vec![0, 1, 0];
    assert!(try_measure(&pools).is_ok(), "the same number in another pool");
}

/// A weight comes in each iteration and stays to the end of the next.
fn turning() -> Case {
    let steps = [evict(0), launch(0), prefetch(0), launch(1)];
    let ops: [OpData<'_>; 2] = [(50, &[], &[]), (50, &[0], &[])];
    case(&[state(100)], &ops, 2, &[copied(0)], &steps)
}

#[test]
fn what_is_resident_at_the_end_lies_in_the_same_objects_as_at_the_start() {
    assert!(try_measure(&placed(turning(), &[&[1], &[1]])).is_ok());
    assert_refused(&placed(turning(), &[&[1], &[0]]), "in other objects than at the start");
}

#[test]
fn arrays_may_cover_several_iterations() {
    let arrays: [&[u64]; 3] = [&[0], &[1], &[0]];
    let two = placed_for(2, turning(), &arrays);
    assert!(try_measure(&two).is_ok());
    assert_refused(&placed_for(1, turning(), &arrays), "more placements than allocations");
    assert_refused(&placed_for(3, turning(), &arrays), "placements[3] has 0 numbers");
    let kept = case(&[state(9)], &[(1, &[0], &[])], 9, &[copied(0)], &[launch(0)]);
    assert!(try_measure(&placed_for(64, kept.clone(), &[&[0]])).is_ok());
    for iterations in [0, 65] {
        let refused = placed_for(iterations, kept.clone(), &[&[0]]);
        assert_refused(&refused, "1 to 64 iterations");
    }
    let open = placed_for(2, turning(), &[&[0], &[0], &[1]]);
    assert_refused(&open, "in other objects than at the start");
}

#[test]
fn waits_differ_from_iteration_to_iteration() {
    // Each iteration a temporary is copied out, which takes 100 ns; another one takes its
    // object at once, or one of its own.
    let steps = [launch(0), offload(0), evict(0), launch(1), evict(1)];
    let ops: [OpData<'_>; 2] = [(50, &[], &[0]), (10, &[], &[1])];
    let case = case(&[temporary(100), temporary(100)], &ops, 2, &[], &steps);
    let arrays: [&[u64]; 4] = [&[0], &[1], &[1], &[1]];
    // `a` lies in object 0, then in 1; `b` always in 1. In the second iteration, where `a`
    // is written from 150 to 200, `b` waits for its copy until 300; in the first and the
    // third it follows `a` at once.
    let starts = starts_ns(&placed_for(2, case, &arrays), 3);
    assert_eq!(starts, [50, 300, 360]);
}
