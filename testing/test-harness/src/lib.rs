//! The `main` of test programs that need recorded data or a device, which not every machine has.
//!
//! The standard harness decides at compile time which tests to ignore. A test that does not find
//! its data can then only return, which counts as passed. This harness reports it as ignored, with
//! the reason:
//!
//! ```toml
//! [[test]]
//! name = "recorded"
//! harness = false
//! ```
//!
//! ```no_run
//! // tests/recorded.rs
//! fn main() -> std::process::ExitCode {
//!     test_harness::with_shared(&["graphs"], &[("graphs_are_read", graphs_are_read)])
//! }
//!
//! fn graphs_are_read() {
//!     assert!(std::fs::read(test_harness::shared("graphs/linear_et.graph.json.gz")).is_ok());
//! }
//! ```
#![forbid(unsafe_code)]

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// If this environment variable is set to anything but `0`, tests that find no device fail. It is
/// meant for machines that should have the device.
pub const REQUIRE_DEVICES: &str = "SPILLWAY_REQUIRE_DEVICES";

/// Whether [`REQUIRE_DEVICES`] is set.
#[must_use]
pub fn devices_are_required() -> bool {
    std::env::var_os(REQUIRE_DEVICES).is_some_and(|value| value != "0")
}

/// A path inside the folder `shared` beside the checkout. The folder holds recorded data.
#[must_use]
pub fn shared(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(path)
}

/// Checks that each file of a folder of tests is a program or a module of the program `all`, whose
/// source is given: cargo would never run a file that nothing names.
///
/// # Panics
/// A file is neither, or the folder cannot be read.
pub fn assert_every_file_is_named(folder: &Path, all: &str, programs: &[&str]) {
    for file in std::fs::read_dir(folder).expect("the folder of the tests is read") {
        let path = file.expect("the folder of the tests is read").path();
        let Some(name) = path.file_stem().and_then(|name| name.to_str()) else { continue };
        if path.extension().is_some_and(|extension| extension == "rs") && !programs.contains(&name)
        {
            assert!(all.contains(&format!("\nmod {name};\n")), "{name}");
        }
    }
}

/// Runs named tests, which take the arguments of `cargo test`. If the folder `shared` lacks one of
/// the paths, ignores all tests.
#[must_use]
pub fn with_shared(paths: &[&str], tests: &[(&'static str, fn())]) -> ExitCode {
    let missing = paths.iter().find(|path| !shared(path).exists());
    let missing = missing.map(|path| format!("no ../shared/{path} beside the checkout"));
    run(missing.as_deref(), false, tests.iter().copied())
}

/// Runs named tests, which take the arguments of `cargo test`. `missing` is the reason why there is
/// no device, if there is none. Then all tests are ignored, or fail if [`devices_are_required`].
pub fn with_device<T: FnOnce() + Send + 'static>(
    missing: Option<String>,
    tests: impl IntoIterator<Item = (&'static str, T)>,
) -> ExitCode {
    let missing = missing.map(|reason| format!("no device: {reason}"));
    run(missing.as_deref(), devices_are_required(), tests)
}

fn run<T: FnOnce() + Send + 'static>(
    missing: Option<&str>,
    is_required: bool,
    tests: impl IntoIterator<Item = (&'static str, T)>,
) -> ExitCode {
    let trial = |(name, test): (&str, T)| {
        let missing = missing.map(str::to_owned);
        Trial::ignorable_test(name, move || match missing {
            Some(reason) if is_required => Err(Failed::from(reason)),
            Some(reason) => Ok(Completion::ignored_with(reason)),
            None => {
                test();
                Ok(Completion::Completed)
            }
        })
    };
    let trials = tests.into_iter().map(trial).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
