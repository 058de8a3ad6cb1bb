//! What can go wrong on the simulated device.

use backend_checks::Refused;
use planner_core::backend::{BackendError, DeviceAddress, ErrorIds, ErrorKind, HostRange, Point};
use planner_core::{OpId, Stream, TensorId};
use std::fmt;

/// An error of the simulated device. A piece of work is named by the point that its stream reaches
/// when the work has ended. Once work has failed, every later call reports the same error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimError {
    /// The caller wants more chunks than the device holds.
    OutOfDeviceMemory {
        /// Chunks wanted.
        chunks: u64,
        /// Size of the device.
        device_bytes: u64,
    },
    /// The device refuses an allocation that would fit: a [fault](crate::Fault::Allocations).
    AllocationFailed {
        /// The allocation is on the host, not on the device.
        on_host: bool,
    },
    /// A copy failed and left garbage: a [fault](crate::Fault::Copies).
    CopyFailed(Point),
    /// An op failed on the host and left garbage: see
    /// [`SimKernels::fail_on_host`](crate::SimKernels::fail_on_host).
    HostOpFailed {
        /// The op.
        op: OpId,
        /// The iteration.
        iteration: u64,
    },
    /// The device is gone: a [fault](crate::Fault::Loss).
    Lost,
    /// No virtual addresses are left for this many chunks.
    AddressSpace {
        /// Chunks wanted.
        chunks: u64,
    },
    /// The arguments of the call are wrong.
    Refused(Refused),
    /// The range to unmap is used by work that has not ended.
    UnmappedInUse {
        /// Start of the range to unmap.
        at: DeviceAddress,
        /// The work.
        work: Point,
    },
    /// The device has no real bytes to read or write.
    NoBytes,
    /// The host writes bytes that enqueued work reads or writes.
    HostInUse {
        /// The range that the host writes.
        range: HostRange,
        /// The work.
        work: Point,
    },
    /// Work touches an address that is not mapped.
    Unmapped {
        /// The work.
        work: Point,
        /// The address of the range that the work touches.
        at: DeviceAddress,
    },
    /// A byte that an op reads does not hold the byte of the tensor at that offset.
    WrongContent {
        /// The work.
        work: Point,
        /// The op.
        op: OpId,
        /// The tensor that it reads.
        tensor: TensorId,
        /// The byte within the tensor.
        offset_bytes: u64,
    },
    /// A byte that an op reads has another version of the tensor than the first byte.
    MixedVersions {
        /// The work.
        work: Point,
        /// The op.
        op: OpId,
        /// The tensor that it reads.
        tensor: TensorId,
        /// The byte within the tensor.
        offset_bytes: u64,
    },
    /// Two works that overlap in time touch the same bytes, and at least one writes them. Or two
    /// operands of one launch share bytes, and then both works are the same.
    Race {
        /// The work that started later.
        work: Point,
        /// The work that has not ended.
        other: Point,
    },
    /// A byte of a tensor's host copy does not hold the byte of the tensor at that offset, or has
    /// another version than the first byte.
    HostCopy {
        /// The tensor.
        tensor: TensorId,
        /// The byte within it.
        offset_bytes: u64,
    },
}

/// A point as text for people.
struct Work(Point);

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0.stream {
            Stream::Compute => "launch",
            Stream::Upload => "upload",
            Stream::Download => "download",
            Stream::Host => "op on the host",
            Stream::Network => "collective",
        };
        write!(f, "{name} number {}", self.0.value)
    }
}

impl fmt::Display for SimError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::OutOfDeviceMemory { chunks, device_bytes } => {
                write!(f, "the device's {device_bytes} bytes hold fewer than {chunks} chunks")
            }
            Self::AllocationFailed { on_host } => {
                write!(f, "the {} has no memory left", if on_host { "host" } else { "device" })
            }
            Self::CopyFailed(work) => write!(f, "{} failed", Work(work)),
            Self::HostOpFailed { op, iteration } => {
                write!(f, "{op} failed on the host in iteration {iteration}")
            }
            Self::Lost => write!(f, "the device is lost"),
            Self::AddressSpace { chunks } => {
                write!(f, "no addresses are left for {chunks} chunks")
            }
            Self::Refused(refused) => refused.fmt(f),
            Self::UnmappedInUse { at, work } => {
                write!(f, "{} still uses the range to unmap at {:#x}", Work(work), at.0)
            }
            Self::HostInUse { range: HostRange { offset_bytes, bytes }, work } => write!(
                f,
                "the host writes bytes {offset_bytes}..{} of its block while {} uses them",
                offset_bytes.saturating_add(bytes),
                Work(work)
            ),
            Self::NoBytes => write!(f, "the device simulates contents and has no real bytes"),
            Self::Unmapped { work, at } => {
                write!(
                    f,
                    "{} touches the range at {:#x}, which is not completely mapped",
                    Work(work),
                    at.0
                )
            }
            Self::WrongContent { work, op, tensor, offset_bytes } => write!(
                f,
                "{} ({op}) reads {tensor}, but the memory does not hold its byte {offset_bytes}",
                Work(work)
            ),
            Self::MixedVersions { work, op, tensor, offset_bytes } => write!(
                f,
                "{} ({op}) reads {tensor}, but its byte {offset_bytes} has another version",
                Work(work)
            ),
            Self::Race { work, other } if work == other => {
                write!(f, "two operands of {} share bytes, and one of them is written", Work(work))
            }
            Self::Race { work, other } => {
                write!(f, "{} started while {} used the same bytes", Work(work), Work(other))
            }
            Self::HostCopy { tensor, offset_bytes } => {
                write!(f, "the host's copy of {tensor} is wrong at byte {offset_bytes}")
            }
        }
    }
}

impl std::error::Error for SimError {}

impl From<Refused> for SimError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

impl BackendError for SimError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::OutOfDeviceMemory { .. } | Self::AllocationFailed { on_host: false } => {
                ErrorKind::OutOfDeviceMemory
            }
            Self::AllocationFailed { on_host: true } => ErrorKind::OutOfHostMemory,
            Self::Lost => ErrorKind::Lost,
            _ => ErrorKind::Other,
        }
    }

    fn ids(&self) -> ErrorIds {
        match *self {
            Self::Refused(ref refused) => refused.ids(),
            Self::WrongContent { op, tensor, .. } | Self::MixedVersions { op, tensor, .. } => {
                ErrorIds::of_op(op).with_tensor(tensor)
            }
            Self::HostOpFailed { op, .. } => ErrorIds::of_op(op),
            Self::HostCopy { tensor, .. } => ErrorIds::of_tensor(tensor),
            // The other errors name only addresses and chunks.
            _ => ErrorIds::default(),
        }
    }
}
