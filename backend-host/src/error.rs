use planner_core::backend::{BackendError, ErrorKind};
use std::fmt;

/// What a device of host memory refuses: what kind of error it is, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostError(pub(crate) ErrorKind, pub(crate) &'static str);

/// Why a call is refused that asks for what is not there.
pub(crate) const fn refused(why: &'static str) -> HostError {
    HostError(ErrorKind::Other, why)
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }
}

impl std::error::Error for HostError {}

impl BackendError for HostError {
    fn kind(&self) -> ErrorKind {
        self.0
    }
}
