//! Why a call with wrong arguments is refused.

use planner_core::OpId;
use planner_core::backend::{DeviceAddress, ErrorIds, HostRange, Point};
use std::fmt;

/// Why a call with wrong arguments is refused. Its kind is
/// [`Other`](planner_core::backend::ErrorKind::Other). A refused call changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// The chunks have been created already.
    CreatedTwice,
    /// The range is not inside one reservation, or does not lie a whole number of chunks from its
    /// start.
    NotReserved(DeviceAddress),
    /// The physical chunk does not exist.
    UnknownChunk(u64),
    /// A chunk is mapped in the range already.
    AlreadyMapped(DeviceAddress),
    /// A part of the range is not mapped.
    NotMapped(DeviceAddress),
    /// A mapping lies only partly in the range to unmap.
    PartOfMapping(DeviceAddress),
    /// A wait for a point comes before the point's signal is enqueued.
    Unsignalled(Point),
    /// The point belongs to a signal that was enqueued by `signal_unawaited`.
    Unawaited(Point),
    /// The host block has been created already.
    HostCreatedTwice,
    /// The range is not inside the host block, the block does not exist yet, or a copy has no
    /// bytes.
    NoHostRange(HostRange),
    /// An address is not a multiple of 4 bytes. Kernels work on words of 4 bytes.
    Misaligned(DeviceAddress),
    /// The launch names an op that the graph does not have, or its ranges do not fit the op's
    /// operands or workspace. A repeat is also refused if it has the address of a state, input or
    /// output that the op writes.
    Operands(OpId),
    /// The launch repeats an op that is not repeatable.
    NotRepeatable(OpId),
    /// The op is launched on the host, but has no time there.
    NotOnHost(OpId),
}

impl Refused {
    /// The op that the call names.
    #[must_use]
    pub fn ids(&self) -> ErrorIds {
        match *self {
            Self::Operands(op) | Self::NotRepeatable(op) | Self::NotOnHost(op) => {
                ErrorIds::of_op(op)
            }
            // The other reasons name only addresses and chunks.
            _ => ErrorIds::default(),
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::CreatedTwice => write!(f, "the device's chunks have been created already"),
            Self::NotReserved(at) => write!(f, "address {:#x} is not reserved", at.0),
            Self::UnknownChunk(chunk) => write!(f, "chunk {chunk} does not exist"),
            Self::AlreadyMapped(at) => write!(f, "address {:#x} is mapped already", at.0),
            Self::NotMapped(at) => write!(f, "the range at {:#x} is not completely mapped", at.0),
            Self::PartOfMapping(at) => {
                write!(f, "the range to unmap at {:#x} contains only a part of a mapping", at.0)
            }
            Self::Unsignalled(Point { stream, value }) => {
                write!(
                    f,
                    "a wait for signal {value} of the {stream:?} stream comes before the signal is enqueued"
                )
            }
            Self::Unawaited(Point { stream, value }) => {
                write!(
                    f,
                    "signal {value} of the {stream:?} stream was enqueued without a point to wait for"
                )
            }
            Self::HostCreatedTwice => write!(f, "the host block has been created already"),
            Self::NoHostRange(HostRange { offset_bytes, bytes }) => {
                let end = offset_bytes.saturating_add(bytes);
                write!(f, "the host block has no bytes {offset_bytes}..{end}")
            }
            Self::Misaligned(at) => write!(f, "address {:#x} is not a multiple of 4 bytes", at.0),
            Self::Operands(op) => {
                write!(f, "the launch of {op} has operands that do not match the graph")
            }
            Self::NotRepeatable(op) => {
                write!(f, "{op} is launched as a repeat, but it is not repeatable")
            }
            Self::NotOnHost(op) => write!(f, "{op} is launched on the host, but has no time there"),
        }
    }
}

impl std::error::Error for Refused {}
