//! The results of the conformance suite for a backend.

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
    /// `None` if the backend has no device.
    pub(crate) device: Option<String>,
    pub(crate) passed: Vec<&'static str>,
    pub(crate) failed: Vec<&'static str>,
    pub(crate) ignored: Vec<Ignored>,
    /// Why each failed check failed.
    pub(crate) failures: BTreeMap<&'static str, String>,
}

/// A check that did not run.
#[derive(Debug, Serialize)]
pub(crate) struct Ignored {
    pub(crate) name: &'static str,
    pub(crate) reason: String,
}

/// Fails, because the program is built without the conformance suite.
#[cfg(not(feature = "conformance"))]
pub(super) fn report<B: integrity::Backend>(
    _: B,
    _: Option<u64>,
) -> Result<Report, crate::failure::Failure> {
    Err(crate::failure::Failure::without("conformance"))
}
