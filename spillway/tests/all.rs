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

/// A file that nothing names would never run.
#[test]
fn every_file_is_a_part_of_some_program() {
    let programs = ["all"];
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        if path.extension().is_some_and(|extension| extension == "rs") && !programs.contains(&name)
        {
            assert!(include_str!("all.rs").contains(&format!("\nmod {name};\n")), "{name}");
        }
    }
}
