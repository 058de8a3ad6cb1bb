//! A short run, the same every time.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use fuzz::case::Case;
use fuzz::fault::silence_panics;
use fuzz::judge::{Verdict, judge};
use fuzz::plans::plans;
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
