//! The challenging problems of MiniMalloc, where the folder with them is at hand.

use planner_core::packing::default_steps;
use spillway_benches::problems::{pack, read_folder};
use std::path::Path;

#[test]
fn challenging_problems_are_packed_tightly() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/minimalloc");
    if !folder.is_dir() {
        println!("skipped: there is no folder of allocation problems");
        return;
    }
    let problems = read_folder(&folder).expect("well-formed files");
    assert!(!problems.is_empty());
    for problem in problems {
        let capacity_bytes = problem.capacity_bytes;
        let height = |steps| pack(&problem.items, steps).0.height_bytes;
        let by_default = height(default_steps(problem.items.len()));
        assert!(by_default * 100 <= capacity_bytes * 105, "{}: {by_default}", problem.name);
        let at_length = height(1 << 28);
        assert!(at_length <= capacity_bytes, "{}: {at_length}", problem.name);
    }
}
