//! A short run, the same every time.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use fuzz::case::Case;
use fuzz::fault::silence_panics;
use fuzz::judge::{Verdict, judge};
use fuzz::plans::plans;
use planner_core::{Kind, Step};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

const SEED: u64 = 1;
const CASES: u64 = 2000;

#[test]
fn nothing_is_found() {
    silence_panics();
    let fault = |number| Some(Case { seed: SEED, number }.check()?.fault.detail);
    let faults = (0..CASES).filter_map(|number| Some(format!("case {number}: {}", fault(number)?)));
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Else what is compared is only that nobody accepts garbage.
#[test]
fn many_plans_are_valid_and_many_are_not() {
    let mut runner = TestRunner::deterministic();
    let mut verdict = || judge(&plans().new_tree(&mut runner).unwrap().current());
    let verdicts: Vec<_> = (0..200).map(|_| verdict()).collect();
    for wanted in [Verdict::Valid, Verdict::Invalid] {
        let count = verdicts.iter().filter(|verdict| **verdict == Ok(wanted)).count();
        assert!(count >= 40, "{count} plans are {wanted:?}");
    }
}

/// Else no mutation or target would touch what they stand for.
#[test]
fn valid_plans_have_ops_on_the_host_and_outputs_and_more_offloads_than_evicts() {
    let mut runner = TestRunner::deterministic();
    let mut counts = [0; 3];
    for _ in 0..300 {
        let case = plans().new_tree(&mut runner).unwrap().current();
        if judge(&case) != Ok(Verdict::Valid) {
            continue;
        }
        let count =
            |is_one: fn(&Step) -> bool| case.plan.steps.iter().filter(|it| is_one(it)).count();
        let offloads = count(|step| matches!(step, Step::Offload(_)));
        let shows = [
            count(|step| matches!(step, Step::Host(_))) > 0,
            case.graph.tensors.iter().any(|tensor| tensor.kind == Kind::Output),
            offloads > count(|step| matches!(step, Step::Evict(_))),
        ];
        counts.iter_mut().zip(shows).for_each(|(count, shows)| *count += usize::from(shows));
    }
    assert!(counts.iter().all(|&count| count >= 10), "{counts:?}");
}
