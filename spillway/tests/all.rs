//! All tests of the facade: one program, since each one takes long to link.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod between;
mod embedding;
mod graphs;
mod names;
mod pictures;
mod plans;
mod session;
mod states;
mod streaming;
mod streaming_shortest;
mod switch;

#[test]
fn every_file_is_a_part_of_some_program() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let programs = ["all"];
    test_harness::assert_every_file_is_named(&folder, include_str!("all.rs"), &programs);
}
