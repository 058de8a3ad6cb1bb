//! The same device and the same memory in wgpu. An embedder's kernels are WGSL in wgpu's pipelines,
//! on tensors that Spillway fetches and evicts.
//!
//! A `wgpu::Buffer` stands for a whole sparse buffer, and a tensor is a part of it. wgpu orders its
//! submissions by buffers. That is enough here, since every use of that buffer as `storage,
//! read_write` follows the use before. wgpu does not know of aliases and copies. Its submissions
//! therefore wait for all points for which the compute stream waits, and the next signal of that
//! stream follows on the same queue.
#![allow(unsafe_code, reason = "wgpu takes handles of the driver's")]

use crate::VulkanDevice;
use crate::adapter::{Options, Vulkan};
use crate::driver::{Also, Device, Physical};
use crate::error::{Unavailable, VulkanError};
use ash::vk;
use backend_checks::Refused;
use planner_core::Stream;
use planner_core::backend::DeviceAddress;
use std::collections::HashMap;
use std::ffi::CStr;
use std::fmt;
use std::sync::Arc;
use wgpu::hal;
use wgpu::hal::api::Vulkan as Api;

const FEATURES: wgpu::Features = wgpu::Features::empty();

/// The device as wgpu sees it.
#[derive(Debug)]
pub(crate) struct WgpuDevice {
    /// The sparse buffers that wgpu has, by number.
    buffers: HashMap<usize, wgpu::Buffer>,
    queue: wgpu::Queue,
    device: wgpu::Device,
}

/// The extensions of an instance that wgpu expects.
pub(crate) fn instance_extensions(entry: &ash::Entry) -> Vec<&'static CStr> {
    let flags = wgpu::InstanceFlags::empty();
    hal::vulkan::Instance::desired_extensions(entry, vk::API_VERSION_1_3, flags).unwrap_or_default()
}

fn refused(error: impl fmt::Display) -> Unavailable {
    Unavailable(format!("wgpu refuses the device: {error}"))
}

impl Vulkan {
    /// Opens a device like [`Vulkan::open`], and also for wgpu.
    ///
    /// # Safety
    /// No method of the device, including its drop, may run at the same time as a method of one of
    /// wgpu's objects of the device on another thread. Some of them use its queue:
    /// `Buffer::map_async`, for example, submits the writes to the buffer. Vulkan requires that
    /// only one thread at a time uses a queue.
    ///
    /// # Errors
    /// No such device is available. The error says why.
    pub unsafe fn open_with_wgpu(
        &self,
        options: &Options<'_>,
    ) -> Result<VulkanDevice, Unavailable> {
        let physical = self.choose(options.device)?;
        let (instance, exposed) = self.expose(&physical)?;
        let extensions = exposed.adapter.required_device_extensions(FEATURES);
        let mut features = exposed.adapter.physical_device_features(&extensions, FEATURES);
        let info = features.add_to_device_create(vk::DeviceCreateInfo::default());
        // SAFETY: wgpu has just set the pointer to features that outlive the request.
        let core = unsafe { info.p_enabled_features.as_ref() }.copied().unwrap_or_default();
        let also = Also { info, extensions: extensions.clone(), features: core };
        let opened = self.open_raw(&physical, also)?;
        let queue = opened.streams[Stream::Compute as usize];
        let index = (queue.family, queue.index);
        let wgpu_device = WgpuDevice::new(&opened.device, instance, exposed, &extensions, index)?;
        let mut device = VulkanDevice::new(opened, options)?;
        device.wgpu_device = Some(wgpu_device);
        Ok(device)
    }

    /// The physical device as wgpu sees it.
    fn expose(
        &self,
        physical: &Physical,
    ) -> Result<(hal::vulkan::Instance, hal::ExposedAdapter<Api>), Unavailable> {
        let kept = Arc::clone(self.instance());
        // SAFETY: the instance was made with these extensions, and the callback keeps it alive
        // until wgpu no longer needs it.
        let instance = unsafe {
            hal::vulkan::Instance::from_raw(
                kept.entry.clone(),
                kept.raw.clone(),
                vk::API_VERSION_1_3,
                0,
                None,
                kept.extensions.clone(),
                wgpu::InstanceFlags::empty(),
                wgpu::MemoryBudgetThresholds::default(),
                false,
                Some(Box::new(move || drop(kept))),
            )
        };
        let instance = instance.map_err(refused)?;
        let exposed = instance.expose_adapter(physical.raw);
        let exposed = exposed.ok_or_else(|| refused("it lacks what wgpu needs"))?;
        Ok((instance, exposed))
    }
}

impl WgpuDevice {
    fn new(
        device: &Arc<Device>,
        instance: hal::vulkan::Instance,
        exposed: hal::ExposedAdapter<Api>,
        extensions: &[&'static CStr],
        (family, index): (u32, u32),
    ) -> Result<Self, Unavailable> {
        let kept = Arc::clone(device);
        let limits = exposed.capabilities.limits.clone();
        let hints = wgpu::MemoryHints::MemoryUsage;
        // SAFETY: the device was opened from this adapter with its features, its extensions and
        // this queue, and the callback keeps it alive until wgpu no longer needs it.
        let opened = unsafe {
            exposed.adapter.device_from_raw(
                device.raw().clone(),
                Some(Box::new(move || drop(kept))),
                extensions,
                FEATURES,
                &limits,
                &hints,
                family,
                index,
            )
        };
        let opened = opened.map_err(refused)?;
        let descriptor = wgpu::DeviceDescriptor {
            required_features: FEATURES,
            required_limits: limits,
            memory_hints: hints,
            ..wgpu::DeviceDescriptor::default()
        };
        // SAFETY: adapter and device come from this instance, one from the other.
        let (device, queue) = unsafe {
            let instance = wgpu::Instance::from_hal::<Api>(instance);
            let adapter = instance.create_adapter_from_hal(exposed);
            adapter.create_device_from_hal(opened, &descriptor).map_err(refused)?
        };
        Ok(Self { buffers: HashMap::new(), queue, device })
    }
}

impl VulkanDevice {
    /// The device as wgpu sees it. `None` unless it was opened with [`Vulkan::open_with_wgpu`]. Its
    /// queue is the queue of the compute stream, on which [`VulkanDevice::submit_wgpu`] submits.
    #[must_use]
    pub fn wgpu(&self) -> Option<&wgpu::Device> {
        self.wgpu_device.as_ref().map(|wgpu_device| &wgpu_device.device)
    }

    /// Lends memory at an address to wgpu. Returns the buffer and the offset of the memory in it.
    /// Shaders must bind all such parts as `storage, read_write`, since wgpu does not track parts.
    /// Memory that is unmapped before a shader runs is undefined.
    ///
    /// # Errors
    /// The range is not completely mapped, and [`VulkanError::WithoutWgpu`] on a device that was
    /// not opened for wgpu.
    pub fn lend(
        &mut self,
        at: DeviceAddress,
        bytes: u64,
    ) -> Result<(wgpu::Buffer, u64), VulkanError> {
        let range = self.range(at, bytes)?;
        let (number, block, slabs) = self.space.block(at).ok_or(Refused::NotMapped(at))?;
        let wgpu_device = self.wgpu_device.as_mut().ok_or(VulkanError::WithoutWgpu)?;
        let buffer = wgpu_device.buffers.entry(number).or_insert_with(|| {
            let usage = wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::COPY_SRC
                | wgpu::BufferUsages::COPY_DST;
            let descriptor = wgpu::BufferDescriptor {
                label: Some("spillway"),
                size: block.bytes,
                usage,
                mapped_at_creation: false,
            };
            // SAFETY: the buffer was made with these usages, on the device that wgpu has. The
            // callback keeps the buffer and its memory alive until wgpu no longer needs them.
            unsafe {
                let raw = hal::vulkan::Buffer::from_raw_externally_owned(
                    block.raw,
                    Box::new(move || drop((block, slabs))),
                );
                wgpu_device.device.create_buffer_from_hal::<Api>(raw, &descriptor)
            }
        });
        Ok((buffer.clone(), range.offset_bytes()))
    }

    /// Enqueues the commands that wgpu has recorded on the compute stream.
    ///
    /// # Errors
    /// The errors of the driver, and [`VulkanError::WithoutWgpu`] on a device that was not opened
    /// for wgpu.
    pub fn submit_wgpu(
        &mut self,
        commands: impl IntoIterator<Item = wgpu::CommandBuffer>,
    ) -> Result<(), VulkanError> {
        self.submit_compute()?;
        let wgpu_device = self.wgpu_device.as_ref().ok_or(VulkanError::WithoutWgpu)?;
        // SAFETY: this code destroys nothing of the queue, and the semaphores live until all work
        // has ended.
        let queue = unsafe { wgpu_device.queue.as_hal::<Api>() }.ok_or(VulkanError::WithoutWgpu)?;
        for (semaphore, value) in self.compute_waits() {
            let stage = vk::PipelineStageFlags::ALL_COMMANDS;
            queue.add_wait_semaphore(semaphore.raw(), Some(value), stage);
        }
        drop(queue);
        wgpu_device.queue.submit(commands);
        let code = vk::Result::ERROR_DEVICE_LOST;
        let polled = wgpu_device.device.poll(wgpu::PollType::Poll);
        polled.map_err(|_| VulkanError::Driver { call: "wgpu::Device::poll", code })?;
        self.compute_has_waited();
        Ok(())
    }
}
