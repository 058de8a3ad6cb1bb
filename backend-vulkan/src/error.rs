//! What can go wrong on a Vulkan device.

use crate::address_space::{AddressSpace, OPTION};
use ash::vk;
pub use backend_checks::Unavailable;

use backend_checks::{HostFailure, Refused};
use planner_core::backend::{BackendError, ErrorIds, ErrorKind};
use std::fmt;

impl From<VulkanError> for Unavailable {
    fn from(error: VulkanError) -> Self {
        Self(error.to_string())
    }
}

/// An error of an open device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VulkanError {
    /// The driver refuses a call.
    Driver {
        /// The name of the call.
        call: &'static str,
        /// The driver's code.
        code: vk::Result,
    },
    /// The caller wants more chunks than the device holds.
    OutOfDeviceMemory {
        /// Chunks wanted.
        chunks: u64,
        /// Size of the device's memory.
        device_bytes: u64,
    },
    /// The caller wants more host memory than the host has for copies of the device.
    OutOfHostMemory {
        /// Bytes wanted.
        bytes: u64,
    },
    /// The device allows this many memory allocations at a time, and all are in use.
    Allocations {
        /// `maxMemoryAllocationCount`.
        most: u32,
    },
    /// No virtual addresses are left for this many chunks.
    AddressSpace {
        /// Chunks wanted.
        chunks: u64,
        /// The limit of all sparse buffers of the device together.
        space: AddressSpace,
    },
    /// A virtual range is larger than a buffer of the device may be.
    Range {
        /// Size of the range.
        bytes: u64,
        /// The whole chunks in `maxBufferSize`.
        most_bytes: u64,
    },
    /// The driver refuses a call, and all sparse buffers together exceed the limit that it reports.
    BeyondReported {
        /// The name of the call.
        call: &'static str,
        /// The driver's code.
        code: vk::Result,
        /// Size of all sparse buffers together, with the refused one.
        sparse_bytes: u64,
        /// The limits.
        space: AddressSpace,
    },
    /// The arguments of the call are wrong.
    Refused(Refused),
    /// The kernel or the range belongs to another device or to a device that was dropped.
    Foreign,
    /// A launch gives a kernel the wrong number of bindings or immediates.
    Bindings,
    /// A binding of a kernel is not aligned for the device, has fewer bytes than the kernel needs
    /// or more than the device allows, or is not a whole number of words.
    Binding(u32),
    /// A launch has more groups than the device allows.
    Groups([u32; 3]),
    /// A range to fill is empty, or does not start and end at a multiple of 4 bytes.
    Fill {
        /// The first byte, from the start of the buffer.
        offset_bytes: u64,
        /// The number of bytes.
        bytes: u64,
    },
    /// The device was not opened for wgpu.
    WithoutWgpu,
    /// An op failed on the host.
    HostOp(HostFailure),
}

impl VulkanError {
    /// The same error, if the memory was for the host.
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
                write!(f, "the host has no {bytes} free bytes for copies of the device")
            }
            Self::Allocations { most } => write!(
                f,
                "the device allows {most} allocations of memory at a time \
                 (maxMemoryAllocationCount), and all are taken: use larger chunks, or fewer \
                 pieces of working memory"
            ),
            Self::AddressSpace { chunks, space } if space.bytes == space.reported_bytes => write!(
                f,
                "no addresses are left for {chunks} chunks: {space}; if it supports more than it \
                 reports, set {OPTION} to a larger limit"
            ),
            Self::AddressSpace { chunks, space } => {
                write!(f, "no addresses are left for {chunks} chunks: {space}; set it to more")
            }
            Self::Range { bytes, most_bytes } => write!(
                f,
                "a virtual range of {bytes} bytes exceeds one buffer of the device, which has at \
                 most {most_bytes} bytes (maxBufferSize): no tensor and no arena of small tensors \
                 can be larger"
            ),
            Self::BeyondReported { call, code, sparse_bytes, space } => write!(
                f,
                "{call}: {code} ({}), with sparse buffers of {sparse_bytes} bytes together: \
                 {space}; set it to less, or remove it",
                code.as_raw()
            ),
            Self::Refused(ref refused) => refused.fmt(f),
            Self::HostOp(ref failure) => failure.fmt(f),
            Self::Foreign => {
                write!(
                    f,
                    "the kernel or the range belongs to another device, and cannot be used on this"
                )
            }
            Self::Bindings => {
                write!(f, "the launch gives the kernel the wrong number of bindings or immediates")
            }
            Self::Binding(binding) => write!(
                f,
                "binding {binding} is not aligned for the device, or has fewer bytes than the \
                 kernel needs, or more than the device allows"
            ),
            Self::Groups([x, y, z]) => {
                write!(f, "{x} x {y} x {z} groups are more than the device launches at once")
            }
            Self::Fill { offset_bytes, bytes } => write!(
                f,
                "a fill of {bytes} bytes at offset {offset_bytes} is empty or not of whole words"
            ),
            Self::WithoutWgpu => write!(f, "the device was not opened for wgpu"),
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
            Self::Driver { code, .. } | Self::BeyondReported { code, .. } => match code {
                vk::Result::ERROR_OUT_OF_DEVICE_MEMORY => ErrorKind::OutOfDeviceMemory,
                vk::Result::ERROR_OUT_OF_HOST_MEMORY => ErrorKind::OutOfHostMemory,
                vk::Result::ERROR_DEVICE_LOST => ErrorKind::Lost,
                _ => ErrorKind::Other,
            },
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
