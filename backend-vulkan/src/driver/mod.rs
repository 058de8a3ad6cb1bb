//! The driver: Vulkan's objects, which are freed when they are dropped.
//!
//! All unsafe code of this crate is here and in `wgpu`. A handle lives in the object that made it,
//! and each object keeps alive the objects from which it was made. The rest of this crate keeps the
//! rules that the driver leaves to its callers: ranges lie inside their buffers and belong to the
//! same device, and nothing is dropped while submitted work uses it, unless the device is leaked.
#![allow(unsafe_code, reason = "the driver's functions are C")]

mod commands;
mod device;
mod host;
mod instance;
mod memory;
mod pipeline;

pub use commands::BufferRange;
pub(crate) use commands::Commands;
pub(crate) use device::{Also, Device, Queue, Semaphore, Submit};
pub(crate) use host::{HostStream, HostTask, Segments};
pub(crate) use instance::{Instance, Messages, Physical};
pub(crate) use memory::{Bind, Buffer, Memory};
pub(crate) use pipeline::Pipeline;

use crate::error::VulkanError;
use ash::vk;

/// Names the call that failed.
fn named<T>(call: &'static str, result: Result<T, vk::Result>) -> Result<T, VulkanError> {
    result.map_err(|code| VulkanError::Driver { call, code })
}
