//! What can go wrong on a Vulkan device.

use ash::vk;
pub use backend_checks::Unavailable;

use backend_checks::Refused;
use planner_core::backend::{BackendError, ErrorKind};
use std::fmt;

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
    /// No virtual addresses are left for this many chunks.
    AddressSpace {
        /// Chunks wanted.
        chunks: u64,
        /// What the device has for all of its sparse buffers together.
        space_bytes: u64,
    },
    /// The arguments of the call are wrong.
    Refused(Refused),
    /// A kernel is given other bindings than it has, or more than the device allows in one.
    Bindings,
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
                write!(f, "the host has no {bytes} free bytes that the device can copy from")
            }
            Self::AddressSpace { chunks, space_bytes } => write!(
                f,
                "no addresses are left for {chunks} chunks; the device has {space_bytes} bytes of \
                 sparse addresses in all"
            ),
            Self::Refused(refused) => refused.fmt(f),
            Self::Bindings => write!(f, "the bindings do not match the kernel"),
        }
    }
}

impl std::error::Error for VulkanError {}

impl From<Refused> for VulkanError {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}

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
