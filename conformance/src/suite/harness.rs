//! Runs each check as a test.

use super::{Check, Failure, Outcome, checks, graph_checks};
use crate::chunked::Chunked;
use integrity::{Backend, Exemption, Found, Graphs};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use std::io::{Write, stderr};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;
use std::sync::Arc;
use test_harness::devices_are_required;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The backend keeps the promise, or breaks it as expected.
    Passed,
    /// The backend breaks the promise, or a check passed that was expected to fail.
    Failed(Failure),
    /// The check did not run, or not completely, for this reason.
    Ignored(String),
}

/// Runs one check with the backend's exemptions.
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
                "this check passes, but was expected to fail: {reason}"
            ))),
        },
        None => match (run(check, backend, found), check.blind_spot()) {
            (Err(failure), _) if failure.is_unsupported() => Verdict::Ignored(failure.to_string()),
            (Err(failure), _) => Verdict::Failed(failure),
            (Ok(()), None) => Verdict::Passed,
            (Ok(()), Some(reason)) => Verdict::Ignored(format!("the check ran, but {reason}")),
        },
    }
}

/// Runs a check. A panic counts as a failure.
fn run<B: Backend>(check: &Check<B>, backend: &B, found: &Found) -> Outcome {
    let outcome = catch_unwind(AssertUnwindSafe(|| check.run(backend, found)));
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        Err(Failure::new(format_args!("panic: {}", text.unwrap_or("without a message"))))
    })
}

/// Fails if an exemption names a check that does not exist.
fn misnamed<B: Backend>(backend: &B, names: &[&str]) -> Outcome {
    match backend.exemptions().iter().find(|exemption| !names.contains(&exemption.check())) {
        None => Ok(()),
        Some(exemption) => Err(Failure::new(format_args!(
            "{} has an exemption from {}, but no check has this name",
            backend.name(),
            exemption.check()
        ))),
    }
}

/// The `main` of a test program that runs the suite on a backend. It takes the arguments of `cargo
/// test`.
pub fn main<B: Backend>(backend: B) -> ExitCode {
    main_in_chunks(backend, &[])
}

/// As [`main`], with the backend's own chunks, and again with larger chunks. `chunk_bytes` are
/// multiples of the backend's chunks. Checks that measure what the process uses do not run again.
pub fn main_in_chunks<B: Backend>(backend: B, chunk_bytes: &[u64]) -> ExitCode {
    run_all(backend, chunk_bytes, checks)
}

/// As [`main_in_chunks`], for a backend that captures work as graphs.
pub fn main_with_graphs<B: Graphs>(backend: B, chunk_bytes: &[u64]) -> ExitCode {
    run_all(backend, chunk_bytes, || checks().into_iter().chain(graph_checks()).collect())
}

fn run_all<B: Backend>(
    backend: B,
    chunk_bytes: &[u64],
    checks: impl Fn() -> Vec<Check<Chunked<B>>>,
) -> ExitCode {
    let mut arguments = Arguments::from_args();
    if backend.one_at_a_time() {
        arguments.test_threads = Some(1);
    }
    let backend = Arc::new(backend);
    let names: Vec<_> = checks().iter().map(|check| check.name).collect();
    let mut trials = Vec::new();
    for chunk_bytes in [None].into_iter().chain(chunk_bytes.iter().copied().map(Some)) {
        let chunked = Arc::new(Chunked::new(Arc::clone(&backend), chunk_bytes));
        let kind = chunk_bytes.map_or_else(String::new, |bytes| format!("chunks of {bytes} bytes"));
        let checks = checks().into_iter();
        let checks = checks.filter(|check| chunk_bytes.is_none() || !check.is_alone());
        trials.extend(checks.map(|check| trial(check, &chunked, &kind)));
    }
    trials.push(Trial::test("exemptions_name_checks", move || Ok(misnamed(&*backend, &names)?)));
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A check as a test. It prints its name before it runs, so that a crash shows which check ran.
fn trial<B: Backend>(check: Check<B>, backend: &Arc<B>, kind: &str) -> Trial {
    let (backend, kind) = (Arc::clone(backend), kind.to_owned());
    let of = if kind.is_empty() { String::new() } else { format!(" in {kind}") };
    let test = Trial::ignorable_test(check.name, move || {
        // Standard error may be closed.
        let _ = writeln!(stderr(), "running {}{of}", check.name);
        match judge(&check, &*backend, &backend.find()) {
            Verdict::Passed => Ok(Completion::Completed),
            Verdict::Ignored(reason) => Ok(Completion::ignored_with(reason)),
            Verdict::Failed(failure) => Err(Failed::from(failure)),
        }
    });
    test.with_kind(kind)
}
