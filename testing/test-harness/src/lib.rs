//! The `main` of test programs that need what not every machine has: recorded data, a device.
//!
//! The standard harness decides what to ignore when it compiles, so a test that finds its data
//! missing can only return, which counts as passed. Here it is reported as ignored, with the
//! reason:
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

/// Where this environment variable is set to anything but `0`, tests fail that find no device:
/// for machines that are meant to have it.
pub const REQUIRE_DEVICES: &str = "SPILLWAY_REQUIRE_DEVICES";

/// Whether [`REQUIRE_DEVICES`] is set.
#[must_use]
pub fn devices_are_required() -> bool {
    std::env::var_os(REQUIRE_DEVICES).is_some_and(|value| value != "0")
}

/// A path inside the folder `shared` beside the checkout, which holds recorded data.
#[must_use]
pub fn shared(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(path)
}

/// Runs named tests, which take the arguments of `cargo test`. Ignores all of them where the
/// folder `shared` lacks one of the paths.
#[must_use]
pub fn with_shared(paths: &[&str], tests: &[(&'static str, fn())]) -> ExitCode {
    let missing = paths.iter().find(|path| !shared(path).exists());
    let missing = missing.map(|path| format!("no ../shared/{path} beside the checkout"));
    run(missing.as_deref(), false, tests.iter().copied())
}

/// Runs named tests, which take the arguments of `cargo test`. Where there is no device, for
/// the reason that `missing` gives, ignores all of them, or fails them if
/// [`devices_are_required`].
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
