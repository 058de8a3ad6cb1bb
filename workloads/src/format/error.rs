//! Errors of files, with the location, in one line.

use crate::shown::Shown;
use std::fmt;
use std::path::{Path, PathBuf};

/// The kind of a [`FormatError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The file cannot be read or written.
    Io,
    /// The content breaks the format.
    Malformed,
    /// The content is legal, but this version cannot use it.
    Unsupported,
}

/// The reason why a file cannot be read or written. It displays as one line: the file if it is known, the
/// location in it, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatError {
    kind: ErrorKind,
    file: Option<PathBuf>,
    message: String,
}

impl FormatError {
    pub(super) fn new(kind: ErrorKind, message: impl AsRef<str>) -> Self {
        Self { kind, file: None, message: Shown::message(message.as_ref()).to_string() }
    }

    pub(super) fn malformed(message: impl AsRef<str>) -> Self {
        Self::new(ErrorKind::Malformed, message)
    }

    /// Adds the name of the file to the error.
    #[must_use]
    pub fn in_file(self, path: impl AsRef<Path>) -> Self {
        Self { file: Some(path.as_ref().to_owned()), ..self }
    }

    /// The kind of the error.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            if file == Path::new("-") {
                f.write_str("standard input: ")?;
            } else {
                write!(f, "{}: ", Shown::path(file))?;
            }
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for FormatError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_short_line() {
        let error = FormatError::malformed(format!("a\nb\r\u{2028}{}", "x".repeat(1000)));
        let shown = error.in_file("dir\n/file").to_string();
        assert!(shown.starts_with("dir\\n/file: a\\nb\\r\\u{2028}xxx"), "{shown}");
        assert!(shown.chars().count() < 450 && !shown.chars().any(char::is_control), "{shown}");
    }
}
