//! Spillway on Vulkan.
//!
//! | Spillway | Vulkan |
//! |---|---|
//! | virtual range, address | a part of a sparse buffer; the buffer's device address. A buffer has 16 GiB, or less by the limits. If no buffer has room, another is made |
//! | chunk | a part of an allocation of 1 GiB or, if it is larger, one of its own; an allocation beyond `maxMemoryAllocationCount` is an error that names the limit |
//! | `map`, `unmap` | gathered, and bound by one `vkQueueBindSparse` before the next submission |
//! | aliasing | `SPARSE_ALIASED` |
//! | stream | a timeline semaphore on a queue; up to 16 steps of a queue are submitted together. After 64 command buffers in flight, the host waits for the oldest |
//! | queues | one for each stream if the families allow it |
//!
//! If a pool is larger than a buffer, its tensors have ranges of their own. RADV, Mesa's driver for AMD,
//! reports 4 GiB for `sparseAddressSpaceSize` and `maxBufferSize`, and does not check the first;
//! lavapipe reports 2 GiB for the first and supports more.
//!
//! [`Vulkan::open`] returns a [`VulkanDevice`], which implements the traits of
//! [`planner_core::backend`]. An embedder's kernels record their commands through
//! [`VulkanDevice::compute`]. A [`Kernel`] is compiled from WGSL.
//!
//! A device must have sparse binding with aliasing. Other devices are refused with the reason.
//!
//! Modules: `driver` has Vulkan's objects, the thread of ops on the host, and all unsafe code
//! except that of `wgpu`. `adapter` chooses a device, and `queues` a queue for each stream.
//! `address_space` limits virtual ranges. `paging`, `stream` and `transfer` implement the traits.
//! `kernel` runs an embedder's own commands and, with the feature `wgsl`, kernels in WGSL, which
//! `wgsl` translates. The feature `wgpu` shares the memory with wgpu. The example `vulkan-figures`
//! measures the cost of mapping, submitting and copying, and `train-wgpu` trains a network.

mod adapter;
mod address_space;
mod driver;
mod error;
mod integrity_kernels;
mod kernel;
mod paging;
mod queues;
mod shader;
mod stream;
#[cfg(test)]
mod tests;
mod transfer;
#[cfg(feature = "wgpu")]
mod wgpu;
#[cfg(feature = "wgsl")]
mod wgsl;

pub use adapter::{DeviceInfo, Options, Vulkan, default_chunk_bytes};
pub use address_space::AddressSpace;
pub use ash;
pub use backend_checks::{HostFailure, HostRead, HostRun};
pub use driver::BufferRange;
pub use error::{Unavailable, VulkanError};
pub use integrity_kernels::{Integrity, IntegrityKernels};
pub use kernel::{Compute, Kernel, KernelError};
pub use queues::{QueueIndex, Queues};

use adapter::Opened;
use driver::{Buffer, Device, HostStream, Memory};
use kernel::Compiled;
use paging::Space;
use planner_core::backend::{BackendError, ErrorKind, ErrorType};
use std::fmt;
#[cfg(feature = "wgpu")]
use std::mem;
use std::sync::Arc;
use stream::{Queued, Shared};
use transfer::HostBlock;

/// What a device has done so far, including set-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Virtual ranges reserved.
    pub ranges: u64,
    /// Calls of `map`.
    pub map_calls: u64,
    /// Calls of `unmap`.
    pub unmap_calls: u64,
    /// Chunks mapped by all calls of `map` together.
    pub chunks_mapped: u64,
    /// Calls of `vkQueueBindSparse`, each for all chunks that were mapped or unmapped since the
    /// last call.
    pub bind_calls: u64,
    /// Time that the host has spent mapping and unmapping, including calls of `vkQueueBindSparse`.
    pub mapping_ns: u64,
    /// Calls of `vkQueueSubmit2`.
    pub submits: u64,
    /// The parts of these calls, each with its own waits, commands and signal (`VkSubmitInfo2`).
    pub submitted_parts: u64,
    /// Lists of commands that were made. Each is used again once it has run.
    pub command_lists: u64,
    /// Bytes copied to the device.
    pub h2d_bytes: u64,
    /// Bytes copied to the host.
    pub d2h_bytes: u64,
}

/// An open device, with the host block that it copies from and to.
///
/// A drop waits for the device's work. If that fails on any queue, and not because the device is
/// lost, nobody knows which memory the work still uses. Then the drop leaks all memory, and reports
/// it in one line on standard error.
pub struct VulkanDevice {
    /// The same device for wgpu, if it was opened for wgpu.
    #[cfg(feature = "wgpu")]
    wgpu_device: Option<wgpu::WgpuDevice>,
    /// The four streams.
    queued: [Queued; 4],
    /// The queues of the streams.
    shared: Vec<Shared>,
    /// The thread of ops on the host.
    host_stream: HostStream,
    space: Space,
    /// The host block, once it is created.
    host: Option<HostBlock>,
    kernels: Vec<Compiled>,
    /// Memory of the device beside the chunks.
    working: Vec<(Buffer, Memory)>,
    counters: Counters,
    device: Arc<Device>,
}

impl VulkanDevice {
    fn new(opened: Opened, options: &Options<'_>) -> Result<Self, Unavailable> {
        let page_bytes = opened.page_bytes;
        let chunk_bytes = options.chunk_bytes.unwrap_or(default_chunk_bytes(page_bytes));
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(page_bytes) {
            return Err(Unavailable(format!(
                "the device maps pages of {page_bytes} bytes, of which a chunk of {chunk_bytes} \
                 bytes is no multiple"
            )));
        }
        let device = &opened.device;
        let reported_bytes = device.limits().sparse_address_space_size;
        let address_space = AddressSpace::new(reported_bytes, options.sparse_bytes, page_bytes)?;
        let (queued, shared) = stream::streams(device, opened.streams)?;
        Ok(Self {
            #[cfg(feature = "wgpu")]
            wgpu_device: None,
            queued,
            shared,
            host_stream: HostStream::start()
                .map_err(|error| Unavailable(format!("starting a thread: {error}")))?,
            space: Space::new(&opened, chunk_bytes, address_space)?,
            host: None,
            kernels: Vec::new(),
            working: Vec::new(),
            counters: Counters::default(),
            device: opened.device,
        })
    }

    /// What the device has done so far.
    #[must_use]
    pub const fn counters(&self) -> Counters {
        self.counters
    }

    /// Blocks until all work before the last signal of each stream has ended, on all queues even if
    /// one of them reports an error.
    ///
    /// # Errors
    /// The first error of the driver.
    pub fn wait_idle(&mut self) -> Result<(), VulkanError> {
        let submitted = self.submit_all();
        let errors = self.device.wait_idle();
        submitted?;
        errors.into_iter().next().map_or(Ok(()), Err)?;
        self.host_stream.check()
    }
}

impl ErrorType for VulkanDevice {
    type Error = VulkanError;
}

impl fmt::Debug for VulkanDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VulkanDevice")
            .field("queued", &self.queued)
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl Drop for VulkanDevice {
    fn drop(&mut self) {
        // Submitted work may wait for the host's thread, which waits only for submitted work.
        self.host_stream.end();
        // Submitted work uses the objects that are dropped next. A queue of a device that has
        // reported its loss uses nothing any more (Vulkan, "Lost Device").
        let errors = self.device.wait_idle();
        if let Some(error) = errors.iter().find(|error| error.kind() != ErrorKind::Lost) {
            let host_bytes = self.host.as_ref().map_or(0, HostBlock::bytes);
            eprintln!(
                "a Vulkan device is dropped, but its work cannot be waited for ({error}); its memory \
                 is not freed, nor are the {host_bytes} bytes of its host block"
            );
            self.device.leak();
            // wgpu's drop would also wait.
            #[cfg(feature = "wgpu")]
            mem::forget(self.wgpu_device.take());
        }
    }
}
