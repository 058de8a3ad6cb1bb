//! The failures of commands, with their exit statuses.

use serde::Serialize;
use serde_json::{Value, json};
use workloads::format::{ErrorKind, FormatError};

/// A command's failure, as the user sees it.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// The error and its place, on one line. Details may follow on further lines.
    pub(crate) message: String,
    /// The figures known despite the failure, as a JSON object.
    known: Option<Value>,
}

impl Failure {
    /// The request is valid but cannot be fulfilled.
    pub(crate) fn cannot(message: impl Into<String>) -> Self {
        Self { status: 1, message: message.into(), known: None }
    }

    /// Bad usage, or a malformed file.
    pub(crate) fn bad_input(message: impl Into<String>) -> Self {
        Self { status: 2, message: message.into(), known: None }
    }

    /// A file cannot be read, or its content is invalid.
    pub(crate) fn reading(error: &FormatError) -> Self {
        let status = if error.kind() == ErrorKind::Unsupported { 1 } else { 2 };
        Self { status, message: error.to_string(), known: None }
    }

    /// The program was built without a feature that the command needs.
    #[cfg(not(all(feature = "conformance", feature = "cuda", feature = "vulkan")))]
    pub(crate) fn without(feature: &str) -> Self {
        Self::cannot(lacks(feature))
    }

    /// Adds the figures known despite the failure. They must serialize as an object.
    pub(crate) fn with(self, known: &impl Serialize) -> Self {
        Self { known: serde_json::to_value(known).ok(), ..self }
    }

    /// The object that `--json` prints: the known figures and the reason. `None` for bad usage or a
    /// malformed file.
    pub(crate) fn report(&self) -> Option<Value> {
        let mut report = self.known.clone().unwrap_or_else(|| json!({}));
        if report["reason"].is_null() {
            report["reason"] = json!(self.message);
        }
        (self.status == 1).then_some(report)
    }
}

/// Says that the program was built without a feature, and how to build it with the feature.
#[cfg(not(all(feature = "conformance", feature = "cuda", feature = "vulkan")))]
pub(crate) fn lacks(feature: &str) -> String {
    format!(
        "this program was built without the feature \"{feature}\"; build it with `cargo build \
         --release -p spillway-cli --features {feature}`"
    )
}
