//! What can go wrong on a CUDA device.

pub use backend_checks::Unavailable;

use backend_checks::Refused;
use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use planner_core::backend::{BackendError, ErrorKind, Point};
use std::fmt;

impl From<CudaError> for Unavailable {
    fn from(error: CudaError) -> Self {
        Self(error.to_string())
    }
}

/// An error of an open device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver refuses a call, or reports that work has failed.
    Driver {
        /// What was asked for.
        call: &'static str,
        /// The driver's code.
        code: CUresult,
    },
    /// A library that an embedder's kernels call refuses.
    Library {
        /// What was asked for.
        call: &'static str,
        /// The library's code.
        status: u32,
    },
    /// More chunks are wanted than the device holds.
    OutOfDeviceMemory {
        /// Chunks wanted.
        chunks: u64,
        /// Size of the device's memory.
        device_bytes: u64,
    },
    /// More host memory is wanted than can be pinned.
    OutOfHostMemory {
        /// Bytes wanted.
        bytes: u64,
    },
    /// No virtual addresses are left for this many chunks.
    AddressSpace {
        /// Chunks wanted.
        chunks: u64,
    },
    /// The arguments of the call are wrong.
    Refused(Refused),
    /// The host asks for a point of a graph that is being captured, which no work reaches yet.
    Captured(Point),
    /// Memory is mapped or unmapped while a graph is captured.
    MappedInGraph,
    /// A capture begins while another is under way.
    CapturedTwice,
    /// A capture ends, but none is under way.
    NotCaptured,
}

/// Names the call that failed.
pub(crate) fn named<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, CudaError> {
    result.map_err(|DriverError(code)| CudaError::Driver { call, code })
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Driver { call, code } => write!(f, "{call}: {code:?} ({})", code as u32),
            Self::Library { call, status } => write!(f, "{call}: status {status}"),
            Self::OutOfDeviceMemory { chunks, device_bytes } => {
                write!(f, "the device's {device_bytes} bytes hold fewer than {chunks} chunks")
            }
            Self::OutOfHostMemory { bytes } => {
                write!(f, "the host cannot pin {bytes} bytes")
            }
            Self::AddressSpace { chunks } => {
                write!(f, "no addresses are left for {chunks} chunks")
            }
            Self::Refused(refused) => refused.fmt(f),
            Self::Captured(Point { stream, value }) => write!(
                f,
                "the host asks for signal {value} of the {stream:?} stream, which belongs to a graph that \
                 is still being captured"
            ),
            Self::MappedInGraph => {
                write!(f, "memory cannot be mapped while a graph is captured")
            }
            Self::CapturedTwice => write!(f, "a graph is being captured already"),
            Self::NotCaptured => write!(f, "no graph is being captured"),
        }
    }
}

impl std::error::Error for CudaError {}

impl From<Refused> for CudaError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl BackendError for CudaError {
    fn kind(&self) -> ErrorKind {
        match *self {
            Self::OutOfDeviceMemory { .. }
            | Self::Driver { code: CUresult::CUDA_ERROR_OUT_OF_MEMORY, .. } => {
                ErrorKind::OutOfDeviceMemory
            }
            Self::OutOfHostMemory { .. } => ErrorKind::OutOfHostMemory,
            // After these a context takes no more work.
            Self::Driver {
                code:
                    CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
                    | CUresult::CUDA_ERROR_LAUNCH_FAILED
                    | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
                    | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
                    | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
                    | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
                    | CUresult::CUDA_ERROR_INVALID_PC
                    | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
                    | CUresult::CUDA_ERROR_ASSERT
                    | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
                    | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
                    | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED,
                ..
            } => ErrorKind::Lost,
            _ => ErrorKind::Other,
        }
    }
}
