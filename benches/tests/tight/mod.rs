//! How close to the capacity a packing comes.

use planner_core::packing::default_steps;
use spillway_benches::problems::{Problem, pack};

const HIGH_STEPS: u64 = 1 << 28;

/// By default within a twentieth of the capacity; with many steps, within the capacity.
pub(crate) fn assert_tight(problem: &Problem) {
    let Problem { name, capacity_bytes, items } = problem;
    let (by_default, _) = pack(items, default_steps(items.len()));
    assert!(by_default.load_bytes <= *capacity_bytes, "{name}: {by_default:?}");
    assert!(by_default.height_bytes * 100 <= capacity_bytes * 105, "{name}: {by_default:?}");
    let (high, _) = pack(items, HIGH_STEPS);
    assert!(high.height_bytes <= *capacity_bytes, "{name}: {high:?}");
}
