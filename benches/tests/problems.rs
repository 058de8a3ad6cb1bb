//! The challenging problems of MiniMalloc, where the folder with them is at hand, and
//! generated ones like them.

use planner_core::packing::default_steps;
use spillway_benches::problems::{Problem, RECORDED, generate, pack, read_folder};
use std::path::Path;

const HIGH_STEPS: u64 = 1 << 28;

fn assert_tight(problem: &Problem) {
    let Problem { name, capacity_bytes, items } = problem;
    let (by_default, _) = pack(items, default_steps(items.len()));
    assert!(by_default.load_bytes <= *capacity_bytes, "{name}: {by_default:?}");
    assert!(by_default.height_bytes * 100 <= capacity_bytes * 105, "{name}: {by_default:?}");
    let (high, _) = pack(items, HIGH_STEPS);
    assert!(high.height_bytes <= *capacity_bytes, "{name}: {high:?}");
}

#[test]
fn recorded_problems_are_packed_tightly() {
    if !Path::new(RECORDED).is_dir() {
        println!("skipped: there is no folder {RECORDED}");
        return;
    }
    let problems = read_folder(Path::new(RECORDED)).expect("well-formed files");
    assert_eq!(problems.len(), 11);
    problems.iter().for_each(assert_tight);
}

#[test]
fn generated_problems_are_packed_tightly() {
    for seed in 0..16 {
        assert_tight(&generate(seed, 150 + 5 * seed as usize));
    }
}
