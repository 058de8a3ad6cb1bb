//! What can go wrong on a CUDA device.

use cudarc::driver::DriverError;
use cudarc::driver::sys::CUresult;
use planner_core::backend::{BackendError, DeviceAddress, ErrorKind, HostRange, Point};
use std::fmt;

/// Why a device cannot be had, for a person.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable(pub String);

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unavailable {}

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
    /// The chunks have been created already.
    CreatedTwice,
    /// No virtual addresses are left for this many chunks.
    AddressSpace {
        /// Chunks wanted.
        chunks: u64,
    },
    /// The range is not inside one reservation, or not a whole number of chunks from its
    /// start.
    NotReserved(DeviceAddress),
    /// The physical chunk does not exist.
    UnknownChunk(u64),
    /// Something is mapped in the range already.
    AlreadyMapped(DeviceAddress),
    /// Not all of the range is mapped.
    NotMapped(DeviceAddress),
    /// What is to be unmapped is a part of a mapping.
    PartOfMapping(DeviceAddress),
    /// The point has not been signalled, so that nothing may wait for it.
    Unsignalled(Point),
    /// The host asks for a point of a graph that is being captured, which no work reaches yet.
    Captured(Point),
    /// Memory is mapped or unmapped while a graph is captured.
    MappedInGraph,
    /// A graph is to be captured while another is.
    CapturedTwice,
    /// A capture is to end, and none is under way.
    NotCaptured,
    /// The host's block has been created already.
    HostCreatedTwice,
    /// The tensor does not exist, or the host's block has no such bytes.
    NoHostRange(HostRange),
    /// Bytes that the host's block does not have are to be written or read.
    NoHostBytes {
        /// The first.
        offset_bytes: u64,
        /// How many.
        bytes: u64,
    },
    /// An address is not a multiple of 4 bytes, and kernels work on words.
    Misaligned(DeviceAddress),
    /// A launch does not fit the operands that the graph gives the op.
    Operands(planner_core::OpId),
}

/// Names the call that failed.
pub(crate) fn named<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, CudaError> {
    result.map_err(|DriverError(code)| CudaError::Driver { call, code })
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Driver { call, code } => write!(f, "{call}: {code:?} ({})", code as u32),
            Self::OutOfDeviceMemory { chunks, device_bytes } => {
                write!(f, "the device's {device_bytes} bytes hold fewer than {chunks} chunks")
            }
            Self::OutOfHostMemory { bytes } => {
                write!(f, "the host has no {bytes} bytes that can be pinned")
            }
            Self::CreatedTwice => write!(f, "the device's chunks have been created already"),
            Self::AddressSpace { chunks } => {
                write!(f, "no addresses are left for {chunks} chunks")
            }
            Self::NotReserved(at) => write!(f, "address {:#x} is not reserved", at.0),
            Self::UnknownChunk(chunk) => write!(f, "chunk {chunk} does not exist"),
            Self::AlreadyMapped(at) => write!(f, "address {:#x} is mapped already", at.0),
            Self::NotMapped(at) => write!(f, "the range at {:#x} is not all mapped", at.0),
            Self::PartOfMapping(at) => {
                write!(f, "what is to be unmapped at {:#x} is a part of a mapping", at.0)
            }
            Self::Unsignalled(Point { stream, value }) => {
                write!(
                    f,
                    "signal {value} of the {stream:?} stream is awaited before it is enqueued"
                )
            }
            Self::Captured(Point { stream, value }) => write!(
                f,
                "the host asks for signal {value} of the {stream:?} stream, which a graph is to \
                 reach that is still being captured"
            ),
            Self::MappedInGraph => {
                write!(f, "memory is mapped while a graph is captured, which cannot hold that")
            }
            Self::CapturedTwice => write!(f, "a graph is being captured already"),
            Self::NotCaptured => write!(f, "no graph is being captured"),
            Self::HostCreatedTwice => write!(f, "the host's block has been created already"),
            Self::NoHostRange(HostRange { tensor, offset_bytes, bytes }) => write!(
                f,
                "the host's block has no bytes {offset_bytes}..{} for {tensor}",
                offset_bytes.saturating_add(bytes)
            ),
            Self::NoHostBytes { offset_bytes, bytes } => write!(
                f,
                "the host's block has no bytes {offset_bytes}..{}",
                offset_bytes.saturating_add(bytes)
            ),
            Self::Misaligned(at) => {
                write!(f, "address {:#x} is not a multiple of 4 bytes", at.0)
            }
            Self::Operands(op) => {
                write!(f, "the launch of {op} does not fit the operands that the graph gives it")
            }
        }
    }
}

impl std::error::Error for CudaError {}

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
