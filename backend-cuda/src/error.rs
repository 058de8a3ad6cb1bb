//! What can go wrong on a CUDA device.

pub use backend_checks::Unavailable;

use crate::driver;
use backend_checks::{HostFailure, Refused};
use planner_core::backend::{BackendError, ErrorIds, ErrorKind, Point};
use std::fmt;

impl From<CudaError> for Unavailable {
    fn from(error: CudaError) -> Self {
        Self(error.to_string())
    }
}

/// An error of an open device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CudaError {
    /// The driver refuses a call, or reports that work has failed.
    Driver {
        /// The name of the call.
        call: &'static str,
        /// The driver's code: a `CUresult`, or a code of a newer driver.
        code: i32,
    },
    /// A library that an embedder's kernels use refuses a call.
    Library {
        /// The name of the call.
        call: &'static str,
        /// The library's code.
        status: u32,
    },
    /// The caller wants more chunks than the device holds.
    OutOfDeviceMemory {
        /// Chunks wanted.
        chunks: u64,
        /// Size of the device's memory.
        device_bytes: u64,
    },
    /// The caller wants more host memory than can be pinned.
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
    /// The host asks for a point of a graph that is being captured. No work reaches this point yet.
    Captured(Point),
    /// Memory is mapped or unmapped while a graph is captured.
    MappedInGraph,
    /// A capture begins while another is under way.
    CapturedTwice,
    /// A capture ends, but no capture is under way.
    NotCaptured,
    /// The graph belongs to another device or to a device that was dropped.
    ForeignGraph,
    /// A graph is launched, but memory has been unmapped since it was captured.
    LateGraph,
    /// An op failed on the host.
    HostOp(HostFailure),
    /// The system cannot start a thread for ops on the host, for this reason.
    Thread(String),
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// `CUDA_ERROR_NOT_FOUND`, also for a function that the driver does not have.
pub(crate) const NOT_FOUND: i32 = 500;

/// After these codes, a context accepts no more work and the process has to restart (CUDA Driver
/// API, `CUresult`).
const LOST: [i32; 21] = [
    4,   // DEINITIALIZED
    46,  // DEVICE_UNAVAILABLE
    214, // ECC_UNCORRECTABLE
    220, // NVLINK_UNCORRECTABLE
    226, // CONTAINED
    304, // OPERATING_SYSTEM
    // LOSSY_QUERY belongs to queries of graphs. This crate makes no such query, so a driver that
    // returns this code means something else, and the state of the context is unknown.
    402, 700, // ILLEGAL_ADDRESS
    702, // LAUNCH_TIMEOUT
    709, // CONTEXT_IS_DESTROYED
    710, // ASSERT
    714, // HARDWARE_STACK_ERROR
    715, // ILLEGAL_INSTRUCTION
    716, // MISALIGNED_ADDRESS
    717, // INVALID_ADDRESS_SPACE
    718, // INVALID_PC
    719, // LAUNCH_FAILED
    721, // TENSOR_MEMORY_LEAK
    810, // MPS_CLIENT_TERMINATED
    911, // EXTERNAL_DEVICE
    999, // UNKNOWN
];

impl CudaError {
    /// Turns a code of the driver into a result. `None` stands for a function that the driver does
    /// not have.
    ///
    /// # Errors
    /// Every code except 0.
    pub fn check(call: &'static str, code: Option<i32>) -> Result<(), Self> {
        // Names of later versions of a function differ by a suffix.
        let call = call.strip_suffix("_v2").unwrap_or(call);
        match code.unwrap_or(NOT_FOUND) {
            0 => Ok(()),
            code => Err(Self::Driver { call, code }),
        }
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Driver { call, code } => match driver::error_name(code) {
                Some(name) => write!(f, "{call}: {name} ({code})"),
                None => write!(f, "{call}: error {code} of the driver, which has no name"),
            },
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
            Self::Refused(ref refused) => refused.fmt(f),
            Self::HostOp(ref failure) => failure.fmt(f),
            Self::Thread(ref error) => {
                write!(f, "the thread for ops on the host cannot start: {error}")
            }
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
            Self::ForeignGraph => {
                write!(
                    f,
                    "the graph was captured on another device, and cannot be launched on this"
                )
            }
            Self::LateGraph => write!(
                f,
                "memory has been unmapped since the graph was captured, so it cannot be launched"
            ),
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
            Self::OutOfDeviceMemory { .. } | Self::Driver { code: OUT_OF_MEMORY, .. } => {
                ErrorKind::OutOfDeviceMemory
            }
            Self::OutOfHostMemory { .. } => ErrorKind::OutOfHostMemory,
            Self::Driver { code, .. } if LOST.contains(&code) => ErrorKind::Lost,
            _ => ErrorKind::Other,
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
