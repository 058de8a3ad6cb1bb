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

/// A file that nothing names would never run.
#[test]
fn every_file_is_a_part_of_some_program() {
    let programs = ["all", "browser", "cases", "pages", "recorded", "vulkan"];
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
