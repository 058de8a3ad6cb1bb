//! The errors of a device made of host memory.

use backend_checks::{HostFailure, Refused};
use planner_core::backend::{BackendError, ErrorIds, ErrorKind};
use std::fmt;

/// What can go wrong on a device made of host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostError {
    /// The caller wants more chunks than the device holds.
    OutOfDeviceMemory,
    /// The host has too little memory for the host block.
    OutOfHostMemory {
        /// The size of the block.
        bytes: u64,
    },
    /// No virtual addresses are left.
    AddressSpace,
    /// A chunk is not a whole number of pages, so it cannot be mapped.
    ChunkBytes {
        /// The size of a chunk.
        chunk_bytes: u64,
        /// The size of a page.
        page_bytes: u64,
    },
    /// The system allows the process no more mappings.
    Mappings,
    /// The system refuses a call.
    System {
        /// The name of the call.
        call: &'static str,
        /// The system's error code.
        code: i32,
    },
    /// Values and their range differ in size.
    Size {
        /// The size of the range.
        range_bytes: u64,
        /// The size of the values.
        value_bytes: u64,
    },
    /// The embedder's kernels failed. The embedder knows why.
    Kernels,
    /// An op failed on the host.
    HostOp(HostFailure),
    /// The arguments of the call are wrong.
    Refused(Refused),
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfDeviceMemory => f.write_str("the device has too little memory"),
            Self::OutOfHostMemory { bytes } => {
                write!(f, "the host has no {bytes} bytes left for the host block")
            }
            Self::AddressSpace => f.write_str("no addresses are left"),
            Self::ChunkBytes { chunk_bytes, page_bytes } => {
                write!(f, "a chunk of {chunk_bytes} bytes is not a whole number of pages of {page_bytes} bytes")
            }
            Self::Mappings => f.write_str(
                "the process has as many mappings as the system allows (vm.max_map_count): each run of \
                 chunks of a tensor takes one, so larger chunks take fewer",
            ),
            Self::System { call, code } => {
                write!(f, "{call}: {}", std::io::Error::from_raw_os_error(*code))
            }
            Self::Size { range_bytes, value_bytes } => {
                write!(f, "the range has {range_bytes} bytes, and the values have {value_bytes}")
            }
            Self::Kernels => f.write_str("the kernels failed"),
            Self::HostOp(failure) => failure.fmt(f),
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

impl From<HostFailure> for HostError {
    fn from(failure: HostFailure) -> Self {
        Self::HostOp(failure)
    }
}

impl BackendError for HostError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfDeviceMemory => ErrorKind::OutOfDeviceMemory,
            Self::OutOfHostMemory { .. } => ErrorKind::OutOfHostMemory,
            Self::AddressSpace
            | Self::ChunkBytes { .. }
            | Self::Mappings
            | Self::System { .. }
            | Self::Size { .. }
            | Self::Kernels
            | Self::HostOp(_)
            | Self::Refused(_) => ErrorKind::Other,
        }
    }

    fn ids(&self) -> ErrorIds {
        match self {
            Self::HostOp(failure) => ErrorIds::of_op(failure.op),
            Self::Refused(refused) => refused.ids(),
            _ => ErrorIds::default(),
        }
    }
}
