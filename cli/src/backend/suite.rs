//! What the conformance suite says of a backend.

#[cfg(feature = "conformance")]
mod checks;

#[cfg(feature = "conformance")]
pub(super) use checks::report;

use serde::Serialize;
use std::collections::BTreeMap;

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

/// Runs no checks: the program is built without them.
#[cfg(not(feature = "conformance"))]
pub(super) fn report<B: integrity::Backend>(
    _: B,
    _: Option<u64>,
) -> Result<Report, crate::failure::Failure> {
    Err(crate::failure::Failure::without("conformance"))
}
