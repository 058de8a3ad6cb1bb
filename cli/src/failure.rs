//! Why a command ends without success, and with which exit status.

use workloads::format::{ErrorKind, FormatError};

/// A command's failure, as the user sees it.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// What is wrong, and where, on one line; details may follow on more.
    pub(crate) message: String,
}

impl Failure {
    /// What was asked for is clear and cannot be done.
    pub(crate) fn cannot(message: impl Into<String>) -> Self {
        Self { status: 1, message: message.into() }
    }

    /// Bad usage, or a malformed file.
    pub(crate) fn bad_input(message: impl Into<String>) -> Self {
        Self { status: 2, message: message.into() }
    }

    /// A file that cannot be read, or holds what it must not.
    pub(crate) fn reading(error: &FormatError) -> Self {
        let status = if error.kind() == ErrorKind::Unsupported { 1 } else { 2 };
        Self { status, message: error.to_string() }
    }
}
