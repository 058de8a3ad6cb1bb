//! Each check as a test of its own.

use super::{Check, Failure, Outcome, checks, graph_checks};
use integrity::{Backend, Exemption, Found, Graphs};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use test_harness::devices_are_required;

/// What is said of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The backend keeps its promise; or, as is expected, does not yet.
    Passed,
    /// It does not, or a check passed that was expected to fail.
    Failed(Failure),
    /// Not checked, or not all of it, with the reason.
    Ignored(String),
}

/// Runs one check as the backend wants it run.
pub fn judge<B: Backend>(check: &Check<B>, backend: &B, found: &Result<Found, String>) -> Verdict {
    let found = match found {
        Ok(found) => found,
        Err(reason) if devices_are_required() => {
            return Verdict::Failed(Failure::new(format_args!("no device: {reason}")));
        }
        Err(reason) => return Verdict::Ignored(format!("no device: {reason}")),
    };
    let exempt = backend.exemptions().iter().find(|exemption| exemption.check() == check.name);
    match exempt {
        Some(Exemption::Unsupported { reason, .. }) => Verdict::Ignored((*reason).to_owned()),
        Some(Exemption::ExpectedFailure { reason, .. }) => match run(check, backend, found) {
            Err(failure) if failure.is_unsupported() => Verdict::Ignored(failure.to_string()),
            Err(_) => Verdict::Passed,
            Ok(()) => Verdict::Failed(Failure::new(format_args!(
                "this passes, and was expected to fail: {reason}"
            ))),
        },
        None => match (run(check, backend, found), check.blind_spot()) {
            (Err(failure), _) if failure.is_unsupported() => Verdict::Ignored(failure.to_string()),
            (Err(failure), _) => Verdict::Failed(failure),
            (Ok(()), None) => Verdict::Passed,
            (Ok(()), Some(reason)) => Verdict::Ignored(format!("it ran, but {reason}")),
        },
    }
}

/// Runs a check; a panic is a failure like others.
fn run<B: Backend>(check: &Check<B>, backend: &B, found: &Found) -> Outcome {
    let outcome = catch_unwind(AssertUnwindSafe(|| check.run(backend, found)));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(Failure::new(format_args!("panic: {}", text.unwrap_or("without a message"))))
    })
}

/// The exemptions of checks that do not exist.
fn misnamed<B: Backend>(backend: &B, names: &[&str]) -> Outcome {
    match backend.exemptions().iter().find(|exemption| !names.contains(&exemption.check())) {
        None => Ok(()),
        Some(exemption) => Err(Failure::new(format_args!(
            "{} is exempt from {}, which is no check",
            backend.name(),
            exemption.check()
        ))),
    }
}

/// The `main` of a test program that holds a backend to the suite. It takes the arguments of
/// `cargo test`.
pub fn main<B: Backend>(backend: B) -> ExitCode {
    run_all(backend, checks())
}

/// The same for a backend that captures work as graphs.
pub fn main_with_graphs<B: Graphs>(backend: B) -> ExitCode {
    run_all(backend, checks().into_iter().chain(graph_checks()).collect())
}

fn run_all<B: Backend>(backend: B, checks: Vec<Check<B>>) -> ExitCode {
    let names: Vec<_> = checks.iter().map(|check| check.name).collect();
    let found = Arc::new(backend.find());
    let backend = Arc::new(backend);
    let trials = checks.into_iter().map(|check| {
        let (backend, found) = (Arc::clone(&backend), Arc::clone(&found));
        Trial::ignorable_test(check.name, move || match judge(&check, &*backend, &found) {
            Verdict::Passed => Ok(Completion::Completed),
            Verdict::Ignored(reason) => Ok(Completion::ignored_with(reason)),
            Verdict::Failed(failure) => Err(Failed::from(failure)),
        })
    });
    let exemptions = {
        let backend = Arc::clone(&backend);
        Trial::test("exemptions_name_checks", move || Ok(misnamed(&*backend, &names)?))
    };
    let trials = trials.chain([exemptions]).collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}
