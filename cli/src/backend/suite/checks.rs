//! Runs the conformance suite on a backend.

use super::{Ignored, Report};
use crate::failure::Failure;
use crate::output;
use conformance::chunked::Chunked;
use conformance::suite::{Verdict, checks, judge};
use indicatif::ProgressBar;
use integrity::Backend;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Runs all checks, with the backend's own chunks or with chunks of this many bytes.
pub(in crate::backend) fn report<B: Backend>(
    backend: B,
    chunk_bytes: Option<u64>,
) -> Result<Report, Failure> {
    let backend = &Chunked::new(Arc::new(backend), chunk_bytes);
    let found = backend.find();
    let mut report = Report {
        backend: backend.name(),
        device: found.as_ref().ok().map(|found| found.device.clone()),
        passed: Vec::new(),
        failed: Vec::new(),
        ignored: Vec::new(),
        failures: BTreeMap::new(),
    };
    let checks = checks::<Chunked<B>>();
    let progress = progress(checks.len() as u64);
    for check in &checks {
        // The name appears before the check runs, so that it is known if the check crashes.
        progress.set_message(check.name);
        if found.is_ok() && progress.is_hidden() {
            output::note(&format!("checking {}", check.name));
        }
        match judge(check, backend, &found) {
            Verdict::Passed => report.passed.push(check.name),
            Verdict::Ignored(reason) => report.ignored.push(Ignored { name: check.name, reason }),
            Verdict::Failed(failure) => {
                report.failed.push(check.name);
                report.failures.insert(check.name, failure.to_string());
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(report)
}

/// A progress bar, hidden unless standard error is a terminal.
fn progress(checks: u64) -> ProgressBar {
    crate::progress::bar(checks, "checking {bar:40} {pos}/{len} {msg}")
}
