//! Why a command ends without success, and with which exit status.

use serde::Serialize;
use serde_json::{Value, json};
use workloads::format::{ErrorKind, FormatError};

/// A command's failure, as the user sees it.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// What is wrong, and where, on one line. Details may follow on further lines.
    pub(crate) message: String,
    /// What is known despite the failure, as a JSON object.
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

    /// A file that cannot be read, or holds what it must not.
    pub(crate) fn reading(error: &FormatError) -> Self {
        let status = if error.kind() == ErrorKind::Unsupported { 1 } else { 2 };
        Self { status, message: error.to_string(), known: None }
    }

    /// The program was built without a feature that this takes.
    #[cfg(not(all(feature = "conformance", feature = "cuda", feature = "vulkan")))]
    pub(crate) fn without(feature: &str) -> Self {
        Self::cannot(lacks(feature))
    }

    /// Adds what is known despite the failure, an object.
    pub(crate) fn with(self, known: &impl Serialize) -> Self {
        Self { known: serde_json::to_value(known).ok(), ..self }
    }

    /// What `--json` prints of a command that was understood: what is known, with the reason;
    /// none of bad usage or a malformed file.
    pub(crate) fn report(&self) -> Option<Value> {
        let mut report = self.known.clone().unwrap_or_else(|| json!({}));
        if report["reason"].is_null() {
            report["reason"] = json!(self.message);
        }
        (self.status == 1).then_some(report)
    }
}

/// Says that the program was built without a feature, and how to get it.
#[cfg(not(all(feature = "conformance", feature = "cuda", feature = "vulkan")))]
pub(crate) fn lacks(feature: &str) -> String {
    format!(
        "this program was built without its feature \"{feature}\"; `cargo build --release -p spillway-cli \
         --features {feature}` builds it with that feature"
    )
}
