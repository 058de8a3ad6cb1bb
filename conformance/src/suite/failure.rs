//! Why a check of the suite fails.

use std::error::Error;
use std::fmt;
use std::panic::Location;

/// Why a check fails, or cannot be made, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    reason: String,
    is_unsupported: bool,
}

/// What a check returns.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure in words.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self { reason: reason.to_string(), is_unsupported: false }
    }

    /// What the device cannot do and need not do, so that the check cannot be made.
    pub(super) fn unsupported(reason: impl fmt::Display) -> Self {
        Self { is_unsupported: true, ..Self::new(reason) }
    }

    /// Whether the check cannot be made.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        self.is_unsupported
    }

    /// The same, and where it happened.
    #[must_use]
    pub(super) fn context(self, context: impl fmt::Display) -> Self {
        Self { reason: format!("{context}: {}", self.reason), ..self }
    }
}

/// Whatever a device refuses fails the check that asked for it; the failure names the line.
impl<E: Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        let at = Location::caller();
        let file = at.file().rsplit(['/', '\\']).next().unwrap_or_default();
        Self::new(format_args!("{error} (asked in {file}, line {})", at.line()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Fails a check unless something holds.
macro_rules! ensure {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err($crate::suite::Failure::new(format_args!($($reason)+)));
        }
    };
}

pub(super) use ensure;
