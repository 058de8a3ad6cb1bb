//! Errors: why PTX is refused, and why a kernel fails.

use cudarc::driver::sys::CUresult;

/// Why PTX is refused when it is loaded.
#[derive(Clone, Debug)]
pub(crate) struct LoadError {
    /// From 1.
    line: usize,
    why: String,
}

impl LoadError {
    pub(super) fn new(line: usize, why: impl Into<String>) -> Self {
        Self { line, why: why.into() }
    }

    /// Returns the error as a sentence, with the line of the text.
    pub(crate) fn sentence(&self, text: &str) -> String {
        let line = text.lines().nth(self.line.saturating_sub(1)).unwrap_or_default();
        format!("line {}: `{}`: {}", self.line, line.trim(), self.why)
    }
}

/// Why a kernel fails while it runs.
#[derive(Debug)]
pub(crate) struct KernelError {
    /// The error with which the context ends.
    pub(crate) code: CUresult,
    pub(crate) why: String,
}

impl KernelError {
    pub(super) fn new(code: CUresult, why: impl Into<String>) -> Self {
        Self { code, why: why.into() }
    }
}
