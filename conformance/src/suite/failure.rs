//! Why a check of the suite fails.

use std::error::Error;
use std::fmt;
use std::panic::Location;

/// Why a check fails or cannot run, as text for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    reason: String,
    is_unsupported: bool,
}

/// The result of a check.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure with a reason in words.
    pub fn new(reason: impl fmt::Display) -> Self {
        Self { reason: reason.to_string(), is_unsupported: false }
    }

    /// The device lacks an optional ability, so the check cannot run.
    pub(super) fn unsupported(reason: impl fmt::Display) -> Self {
        Self { is_unsupported: true, ..Self::new(reason) }
    }

    /// Whether the check cannot run.
    #[must_use]
    pub const fn is_unsupported(&self) -> bool {
        self.is_unsupported
    }

    /// The same failure, with the place where it occurred.
    #[must_use]
    pub(super) fn context(self, context: impl fmt::Display) -> Self {
        Self { reason: format!("{context}: {}", self.reason), ..self }
    }
}

/// An error of a device fails the check that made the call. The failure names the line of the call.
impl<E: Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        let at = Location::caller();
        let file = at.file().rsplit(['/', '\\']).next().unwrap_or_default();
        Self::new(format_args!("{error} (called in {file}, line {})", at.line()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// Fails a check unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err($crate::suite::Failure::new(format_args!($($reason)+)));
        }
    };
}

pub(super) use ensure;
