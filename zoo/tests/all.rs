//! All tests that need neither a process of their own nor recorded data: one program, since each one takes long to
//! link.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod layers;
mod models;
mod pytorch;
mod recording;

#[test]
fn every_file_is_a_part_of_some_program() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    test_harness::assert_every_file_is_named(&folder, include_str!("all.rs"), &["all", "memory"]);
}
