//! A backend held to the conformance suite.

use crate::output;
use conformance::chunked::Chunked;
use conformance::suite::{Verdict, checks, judge};
use indicatif::{ProgressBar, ProgressStyle};
use integrity::Backend;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The results of all checks.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) backend: &'static str,
    /// None where there is no such device.
    pub(crate) device: Option<String>,
    pub(crate) passed: Vec<&'static str>,
    pub(crate) failed: Vec<&'static str>,
    pub(crate) ignored: Vec<Ignored>,
    /// Why checks failed.
    pub(crate) failures: BTreeMap<&'static str, String>,
}

/// A check that did not run.
#[derive(Debug, Serialize)]
pub(crate) struct Ignored {
    pub(crate) name: &'static str,
    pub(crate) reason: String,
}

/// Runs all checks, with the backend's own chunks or with chunks of this many bytes.
pub(super) fn report<B: Backend>(backend: B, chunk_bytes: Option<u64>) -> Report {
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
        // Before it runs, so that whoever sees a crash knows what ran.
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
    report
}

/// Hidden unless standard error is a terminal.
fn progress(checks: u64) -> ProgressBar {
    let bar = ProgressBar::new(checks);
    let style = ProgressStyle::with_template("checking {bar:40} {pos}/{len} {msg}");
    // The template is a constant. Without it the bar only looks different.
    style.map_or_else(|_| bar.clone(), |style| bar.clone().with_style(style))
}
