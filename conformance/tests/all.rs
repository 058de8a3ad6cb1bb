//! All tests of the planner that need neither a harness of their own nor recorded data: one program, since
//! each one takes long to link.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod agreement;
mod ahead;
mod baselines;
mod bounds;
mod budgets;
mod certificates;
mod chain;
mod contiguous;
mod coverage;
mod decoders;
mod effort;
mod extremes;
mod faults;
mod figure_1;
mod generators;
mod host;
mod host_memory;
mod never_longer;
mod orders;
mod packing;
mod periods;
mod placements;
mod planners;
mod repeats;
mod runs;
mod searches;
mod sessions;
mod slabs;
mod streaming;
mod swap;
mod switch;
mod verdicts;
mod window;

#[test]
fn every_file_is_a_part_of_some_program() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let programs = ["all", "recorded", "vectors", "weights_table"];
    test_harness::assert_every_file_is_named(&folder, include_str!("all.rs"), &programs);
}
