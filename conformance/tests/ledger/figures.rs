//! What a plan predicts of itself.

use crate::*;

/// Two objects of a state come and go; another state stays; a temporary visits the host.
fn busy() -> Case {
    let tensors = [state(150), state(30), input(50), temporary(70)];
    let ops: [OpData<'_>; 2] = [(40, &[0, 1, 2], &[3]), (60, &[3], &[])];
    let steps = [
        Step::Prefetch(part(0, 1, 1)),
        prefetch(2),
        launch(0),
        offload(3),
        evict(3),
        Step::Evict(part(0, 1, 1)),
        evict(2),
        prefetch(3),
        launch(1),
        evict(3),
    ];
    let half = Resident { part: part(0, 0, 1), host_copy: true };
    case(&tensors, &ops, 9, &[half, copied(1)], &steps)
}

fn with_exact_figures(case: &Case) -> Case {
    let mut case = case.clone();
    case.plan.predicted = measured(&case).prediction;
    case
}

/// Judges a case with its predictions, and has the fast code come to the same verdict.
fn judged(case: &Case) -> Result<Judgement, Violation> {
    let (graph, plan) = (case.graph.graph().unwrap(), case.plan.plan());
    let slow = judge(&graph, &case.machine, &plan);
    let fast = verified(case).and_then(|()| {
        let schedule = planning::schedule(&graph, &case.machine, &plan)?;
        planning::check_prediction(&graph, &case.machine, &plan, &schedule.schedule())?;
        Ok(())
    });
    assert_eq!(slow.is_ok(), fast.is_ok(), "{:?} {fast:?}", slow.as_ref().err());
    slow
}

#[test]
fn the_figures_of_a_busy_plan() {
    let judgement = measured(&busy());
    let prediction = judgement.prediction;
    assert_eq!(prediction.compute_ns, 100);
    assert_eq!(prediction.h2d_bytes, 50 + 50 + 70);
    assert_eq!(prediction.d2h_bytes, 70);
    // At launch 0: both objects of tensor 0, and one each of tensors 1, 2 and 3.
    assert_eq!(prediction.peak_bytes, 500);
    assert_eq!(judgement.first_peak_step, 2);
    assert_eq!(judgement.requested_bytes_at_peak, 150 + 30 + 50 + 70);
    // The copies in take 170 ns and wait for launch 0, which ends at 140, once, for the copy
    // out until 210: 280, launch 1 until 340. The next 50 + 50 bytes may follow at once.
    assert_eq!(prediction.period_ns, 280);
    assert!(judged(&with_exact_figures(&busy())).is_ok());
}

#[test]
fn the_period_is_at_least_the_time_of_each_link() {
    // Nothing waits for these copies, so only the links bound the period.
    let read_nothing: OpData<'_> = (10, &[], &[]);
    let steps = [prefetch(0), evict(0), launch(0)];
    let upload = case(&[state(100)], &[read_nothing], PLENTY, &[], &steps);
    assert_eq!(measured(&upload).prediction.period_ns, 100);
    let steps = [offload(0), launch(0)];
    let mut download = case(&[state(100)], &[read_nothing], 1, &[stale(0)], &steps);
    assert_eq!(measured(&download).prediction.period_ns, 100);
    change_machine(&mut download, |machine| machine.d2h_bytes_per_s *= 100);
    assert_eq!(measured(&download).prediction.period_ns, 10);
}

#[test]
fn the_first_of_several_peaks_counts() {
    let ops: [OpData<'_>; 2] = [(1, &[], &[0]), (1, &[], &[1])];
    let steps = [launch(0), evict(0), launch(1), evict(1)];
    let judgement = measured(&case(&[temporary(9), temporary(8)], &ops, 9, &[], &steps));
    assert_eq!((judgement.first_peak_step, judgement.requested_bytes_at_peak), (0, 9));
    assert_eq!(judgement.prediction.peak_bytes, 100);
}

#[test]
fn a_launch_counts_its_workspace() {
    let mut case = busy();
    case.graph.ops[1].workspace_bytes = 401;
    let judgement = measured(&case);
    // At launch 1: one object each of tensors 0, 1 and 3, and five of the workspace.
    assert_eq!(judgement.prediction.peak_bytes, 800);
    assert_eq!(judgement.first_peak_step, 8);
    assert_eq!(judgement.requested_bytes_at_peak, 100 + 30 + 70 + 401);
}

#[test]
fn predictions_are_exact() {
    let exact = with_exact_figures(&busy());
    for corrupt in [
        |case: &mut Case| case.plan.predicted.period_ns += 1,
        |case: &mut Case| case.plan.predicted.compute_ns -= 1,
        |case: &mut Case| case.plan.predicted.peak_bytes += 1,
        |case: &mut Case| case.plan.predicted.h2d_bytes -= 1,
        |case: &mut Case| case.plan.predicted.d2h_bytes += 1,
    ] {
        let mut case = exact.clone();
        corrupt(&mut case);
        assert!(judged(&case).unwrap_err().message.starts_with("predicted is"));
    }
}

#[test]
fn host_bytes_lies_between_what_is_moved_and_all_that_may_be() {
    let mut case = with_exact_figures(&busy());
    // Of the 150 bytes, one half is moved.
    assert_eq!(measured(&case).accepted_host_bytes, (50 + 50, 150 + 30 + 50 + 70));
    assert_eq!(case.plan.predicted.host_bytes, 150 + 50 + 70);
    for (host_bytes, accepted) in [(99, false), (100, true), (300, true), (301, false)] {
        case.plan.predicted.host_bytes = host_bytes;
        assert_eq!(judged(&case).is_ok(), accepted, "{host_bytes}");
    }
}

#[test]
fn host_bytes_may_count_only_the_parts_that_are_moved() {
    let steps = [Step::Prefetch(part(0, 1, 1)), launch(0), Step::Evict(part(0, 1, 1))];
    let kept = Resident { part: part(0, 0, 1), host_copy: true };
    let mut case = with_exact_figures(&case(&[state(150)], &[(9, &[0], &[])], 9, &[kept], &steps));
    assert_eq!(measured(&case).accepted_host_bytes, (50, 150));
    for (host_bytes, accepted) in [(49, false), (50, true), (150, true), (151, false)] {
        case.plan.predicted.host_bytes = host_bytes;
        assert_eq!(judged(&case).is_ok(), accepted, "{host_bytes}");
    }
}

#[test]
fn host_bytes_is_at_most_the_machines() {
    let mut case = with_exact_figures(&busy());
    case.machine = case.machine.with_host_bytes(case.plan.predicted.host_bytes);
    assert!(judged(&case).is_ok());
    case.plan.predicted.host_bytes += 1;
    assert!(judged(&case).unwrap_err().message.contains("more host memory"));
}

#[test]
fn the_host_holds_all_that_moves_whatever_the_plan_states() {
    let mut case = with_exact_figures(&busy());
    case.plan.predicted.host_bytes = 200;
    case.machine = case.machine.with_host_bytes(150 + 50 + 70);
    assert!(judged(&case).is_ok());
    case.machine = case.machine.with_host_bytes(case.machine.host_bytes - 1);
    assert_refused(&case, "too little pinned host memory");
}

#[test]
fn what_leaves_after_its_last_launch_shares_no_host_memory() {
    let ops: [OpData<'_>; 4] = [(9, &[], &[0]), (9, &[0], &[]), (9, &[], &[1]), (9, &[1], &[])];
    let away = |tensor| [offload(tensor), evict(tensor), prefetch(tensor)];
    let with = |after: &[Step]| {
        let [first, second] = [away(0), away(1)];
        let steps = [&[launch(0)][..], &first, &[launch(1), launch(2)], &second[..2], after];
        let steps = [&steps.concat(), &second[2..], &[launch(3), evict(0), evict(1)]].concat();
        case(&[temporary(8); 2], &ops, 9, &[], &steps)
    };
    let with_host = |mut case: Case, host_bytes| {
        case.machine = case.machine.with_host_bytes(host_bytes);
        case
    };
    let measured_bytes = |case: &Case| measured(case).host_layout_bytes;
    assert_eq!(measured_bytes(&with(&[])), (8, 16));
    assert_eq!(measured_bytes(&with_host(with(&[]), 8)), (8, 16));
    assert_refused(&with_host(with(&[]), 7), "too little pinned host memory");
    // Once more, while the other value is away.
    let trailing = [offload(0)];
    assert_eq!(measured_bytes(&with_host(with(&trailing), 16)), (16, 16));
    assert_refused(&with_host(with(&trailing), 15), "too little pinned host memory");
}

#[test]
fn sums_over_eight_iterations_are_checked_for_overflow() {
    let with_time = |time_ns| case(&[], &[(time_ns, &[], &[])], 0, &[], &[launch(0)]);
    let most_ns = u64::MAX / 8;
    assert_eq!(measured(&with_time(most_ns)).prediction.period_ns, most_ns);
    assert_refused(&with_time(most_ns + 1), "exceeds 64 bits");
    let steps = [launch(0), prefetch(0), evict(0)];
    let mut slow = case(&[state(100)], &[(1, &[], &[])], 9, &[], &steps);
    change_machine(&mut slow, |machine| {
        machine.h2d_bytes_per_s = 1;
        machine.chunk_bytes = 1 << 40;
        machine.device_bytes = u64::MAX;
        machine.host_bytes = u64::MAX;
    });
    slow.graph.tensors[0].bytes = 1 << 40;
    slow.plan.budget_bytes = u64::MAX;
    slow.plan.pools[0].object_bytes = 1 << 40;
    assert_refused(&slow, "exceeds 64 bits");
}

/// Work that runs at the same time counts in full.
#[test]
fn the_sum_is_that_of_all_streams() {
    let long_ns = 3 << 59;
    let op: OpData<'_> = (long_ns, &[], &[]);
    let mut case = case(&[state(100)], &[op], 1, &[], &[prefetch(0), launch(0), evict(0)]);
    assert_eq!(measured(&case).prediction.compute_ns, long_ns);
    change_machine(&mut case, |machine| machine.transfer_latency_ns = long_ns);
    assert_refused(&case, "exceeds 64 bits");
}

/// States and inputs that no step moves have their bytes on the host, too.
#[test]
fn the_host_block_may_come_to_64_bits() {
    let huge = Tensor::new(u64::MAX / 2, Kind::Input);
    let op: OpData<'_> = (1, &[], &[]);
    let mut case = case(&[huge], &[op], 0, &[], &[launch(0)]);
    case.plan.pools[0].object_bytes = 1 << 63;
    assert!(try_measure(&case).is_ok());
}
