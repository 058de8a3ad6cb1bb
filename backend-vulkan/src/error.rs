//! What can go wrong on a Vulkan device.

use ash::vk;
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

impl From<VulkanError> for Unavailable {
    fn from(error: VulkanError) -> Self {
        Self(error.to_string())
    }
}

/// An error of an open device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VulkanError {
    /// The driver refuses a call.
    Driver {
        /// The call.
        call: &'static str,
        /// The driver's code.
        code: vk::Result,
    },
    /// More chunks are wanted than the device holds.
    OutOfDeviceMemory {
        /// Chunks wanted.
        chunks: u64,
        /// Size of the device's memory.
        device_bytes: u64,
    },
    /// More host memory is wanted than there is that the device can copy from.
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
        /// What the device has for all of its sparse buffers together.
        space_bytes: u64,
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
    /// A kernel is given other bindings than it has, or more than the device allows in one.
    Bindings,
    /// An address is not a multiple of 4 bytes, and kernels work on words.
    Misaligned(DeviceAddress),
    /// A launch does not fit the operands that the graph gives the op.
    Operands(planner_core::OpId),
}

impl VulkanError {
    /// The same where the memory was to be the host's.
    pub(crate) fn on_host(self, bytes: u64) -> Self {
        match self.kind() {
            ErrorKind::OutOfDeviceMemory => Self::OutOfHostMemory { bytes },
            _ => self,
        }
    }
}

impl fmt::Display for VulkanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Driver { call, code } => write!(f, "{call}: {code} ({})", code.as_raw()),
            Self::OutOfDeviceMemory { chunks, device_bytes } => {
                write!(f, "the device's {device_bytes} bytes hold fewer than {chunks} chunks")
            }
            Self::OutOfHostMemory { bytes } => {
                write!(f, "the host has no {bytes} bytes that the device can copy from")
            }
            Self::CreatedTwice => write!(f, "the device's chunks have been created already"),
            Self::AddressSpace { chunks, space_bytes } => write!(
                f,
                "no addresses are left for {chunks} chunks; the device has {space_bytes} bytes of \
                 sparse addresses in all"
            ),
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
            Self::Bindings => write!(f, "the bindings are not those of the kernel"),
            Self::Misaligned(at) => {
                write!(f, "address {:#x} is not a multiple of 4 bytes", at.0)
            }
            Self::Operands(op) => {
                write!(f, "the launch of {op} does not fit the operands that the graph gives it")
            }
        }
    }
}

impl std::error::Error for VulkanError {}

impl BackendError for VulkanError {
    fn kind(&self) -> ErrorKind {
        match *self {
            Self::OutOfDeviceMemory { .. } => ErrorKind::OutOfDeviceMemory,
            Self::OutOfHostMemory { .. } => ErrorKind::OutOfHostMemory,
            Self::Driver { code: vk::Result::ERROR_OUT_OF_DEVICE_MEMORY, .. } => {
                ErrorKind::OutOfDeviceMemory
            }
            Self::Driver { code: vk::Result::ERROR_OUT_OF_HOST_MEMORY, .. } => {
                ErrorKind::OutOfHostMemory
            }
            Self::Driver { code: vk::Result::ERROR_DEVICE_LOST, .. } => ErrorKind::Lost,
            _ => ErrorKind::Other,
        }
    }
}
