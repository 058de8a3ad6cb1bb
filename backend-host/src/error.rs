//! The errors of a device of host memory.

use backend_checks::Refused;
use planner_core::backend::{BackendError, ErrorKind};
use std::fmt;

/// What can go wrong on a device of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostError {
    /// More chunks are wanted than the device holds.
    OutOfDeviceMemory,
    /// No virtual addresses are left.
    AddressSpace,
    /// The arguments of the call are wrong.
    Refused(Refused),
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfDeviceMemory => f.write_str("the device has too little memory"),
            Self::AddressSpace => f.write_str("no addresses are left"),
            Self::Refused(refused) => refused.fmt(f),
        }
    }
}

impl std::error::Error for HostError {}

impl From<Refused> for HostError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl BackendError for HostError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfDeviceMemory => ErrorKind::OutOfDeviceMemory,
            Self::AddressSpace | Self::Refused(_) => ErrorKind::Other,
        }
    }
}
