//! All tests of the program that need neither a harness of their own nor recorded data: one program, since
//! each one takes long to link.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;
mod compare;
mod conformance;
mod cuda;
mod drawn;
mod files;
mod format;
mod json;
mod links;
mod outputs;
mod pictures;
mod plans;
mod terminal;
mod traces;
mod usage;

#[test]
fn every_file_is_a_part_of_some_program() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let programs = ["all", "browser", "cases", "pages", "recorded", "vulkan"];
    test_harness::assert_every_file_is_named(&folder, include_str!("all.rs"), &programs);
}
