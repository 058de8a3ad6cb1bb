//! What can go wrong on the simulated device.

use planner_core::backend::{BackendError, DeviceAddress, ErrorKind, HostRange, Point};
use planner_core::{OpId, Stream, TensorId};
use std::fmt;

/// An error of the simulated device. Work is named by the point that its stream reaches
/// when it has ended. Once work has failed, every later call reports the same error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SimError {
    /// More chunks are wanted than the device holds.
    OutOfDeviceMemory {
        /// Chunks wanted.
        chunks: u64,
        /// Size of the device.
        device_bytes: u64,
    },
    /// Memory that would be there is refused: a [fault](crate::Fault::Allocations).
    AllocationFailed {
        /// Whether it was to be on the host.
        on_host: bool,
    },
    /// A copy failed, and left garbage: a [fault](crate::Fault::Copies).
    CopyFailed(Point),
    /// The device is gone: a [fault](crate::Fault::Loss).
    Lost,
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
    /// What is to be unmapped is not mapped.
    NotMapped(DeviceAddress),
    /// What is to be unmapped is a part of a mapping.
    PartOfMapping(DeviceAddress),
    /// What is to be unmapped is used by work that has not ended.
    UnmappedInUse {
        /// Start of what is to be unmapped.
        at: DeviceAddress,
        /// The work.
        work: Point,
    },
    /// The point has not been signalled, so that nothing may wait for it.
    Unsignalled(Point),
    /// The host's block has been created already.
    HostCreatedTwice,
    /// The host's block has not been created.
    NoHost,
    /// The device has no real bytes to look at.
    NoBytes,
    /// The tensor does not exist, or the host's block has no such bytes.
    NoHostRange(HostRange),
    /// The host writes where work still reads or writes.
    RoomInUse {
        /// Where it writes.
        range: HostRange,
        /// The work.
        work: Point,
    },
    /// The launch names an op that the graph does not have, or brings other numbers of
    /// addresses than the op has operands, or no workspace where the op wants one.
    Operands(OpId),
    /// Work touches an address that is not mapped.
    Unmapped {
        /// The work.
        work: Point,
        /// The range it touches.
        at: DeviceAddress,
    },
    /// A byte that an op reads does not hold that byte of that tensor.
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
    /// A byte that an op reads is of another version of the tensor than the first byte.
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
    /// Two works that overlap in time touch the same bytes, and at least one writes them;
    /// or two operands of one launch do (then both are the same).
    Race {
        /// The work that started later.
        work: Point,
        /// The work that has not ended.
        other: Point,
    },
    /// At the end, a byte of a state's host copy does not hold that byte of the state, or is
    /// of another version than the first byte.
    HostCopy {
        /// The state.
        tensor: TensorId,
        /// The byte within it.
        offset_bytes: u64,
    },
}

/// A point, as a person reads it.
struct Work(Point);

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0.stream {
            Stream::Compute => "launch",
            Stream::Upload => "upload",
            Stream::Download => "download",
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
                write!(f, "no memory on the {}", if on_host { "host" } else { "device" })
            }
            Self::CopyFailed(work) => write!(f, "{} failed", Work(work)),
            Self::Lost => write!(f, "the device is lost"),
            Self::CreatedTwice => write!(f, "the device's chunks have been created already"),
            Self::AddressSpace { chunks } => {
                write!(f, "no addresses are left for {chunks} chunks")
            }
            Self::NotReserved(at) => write!(f, "address {:#x} is not reserved", at.0),
            Self::UnknownChunk(chunk) => write!(f, "chunk {chunk} does not exist"),
            Self::AlreadyMapped(at) => write!(f, "address {:#x} is mapped already", at.0),
            Self::NotMapped(at) => write!(f, "address {:#x} is not mapped", at.0),
            Self::PartOfMapping(at) => {
                write!(f, "what is to be unmapped at {:#x} is a part of a mapping", at.0)
            }
            Self::UnmappedInUse { at, work } => {
                write!(f, "{} still uses what is to be unmapped at {:#x}", Work(work), at.0)
            }
            Self::Unsignalled(point) => {
                write!(f, "{} is awaited before it is enqueued", Work(point))
            }
            Self::HostCreatedTwice => write!(f, "the host's block has been created already"),
            Self::NoHost => write!(f, "the host's block has not been created"),
            Self::NoHostRange(HostRange { tensor, offset_bytes, bytes }) => write!(
                f,
                "the host's block has no bytes {offset_bytes}..{} for {tensor}",
                offset_bytes.saturating_add(bytes)
            ),
            Self::RoomInUse { range: HostRange { tensor, offset_bytes, bytes }, work } => write!(
                f,
                "the host writes bytes {offset_bytes}..{} of its block ({tensor}) while {} uses them",
                offset_bytes.saturating_add(bytes),
                Work(work)
            ),
            Self::NoBytes => write!(f, "the device has no real bytes"),
            Self::Operands(op) => {
                write!(f, "the launch of {op} does not fit the operands that the graph gives it")
            }
            Self::Unmapped { work, at } => {
                write!(f, "{} touches address {:#x}, not all of it mapped", Work(work), at.0)
            }
            Self::WrongContent { work, op, tensor, offset_bytes } => write!(
                f,
                "{} ({op}) reads {tensor}, but its byte {offset_bytes} is not there",
                Work(work)
            ),
            Self::MixedVersions { work, op, tensor, offset_bytes } => write!(
                f,
                "{} ({op}) reads {tensor}, but its byte {offset_bytes} is of another version",
                Work(work)
            ),
            Self::Race { work, other } if work == other => {
                write!(f, "two operands of {} share bytes, and one is written", Work(work))
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
}
