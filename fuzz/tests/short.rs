//! A short run, the same every time.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use fuzz::case::Case;
use fuzz::fault::silence_panics;

const SEED: u64 = 1;
const CASES: u64 = 2000;

#[test]
fn nothing_is_found() {
    silence_panics();
    let findings: Vec<String> = (0..CASES)
        .filter_map(|number| {
            Some(format!("case {number}: {}", Case { seed: SEED, number }.check()?.fault.detail))
        })
        .collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}
