//! The challenging problems of MiniMalloc.

mod tight;

use spillway_benches::problems::{RECORDED, read_folder};
use std::path::Path;
use std::process::ExitCode;
use tight::assert_tight;

fn main() -> ExitCode {
    test_harness::with_shared(
        &["data/minimalloc"],
        &[("recorded_problems_are_packed_tightly", recorded_problems_are_packed_tightly)],
    )
}

fn recorded_problems_are_packed_tightly() {
    let problems = read_folder(Path::new(RECORDED)).expect("well-formed files");
    assert_eq!(problems.len(), 11);
    problems.iter().for_each(assert_tight);
}
