//! Lists of commands for queues.

use super::{Device, Pipeline, named};
use crate::error::VulkanError;
use ash::vk;
use std::sync::Arc;

/// A list of commands that is recorded, run, and recorded again.
#[derive(Debug)]
pub(crate) struct Commands {
    raw: vk::CommandBuffer,
    pool: vk::CommandPool,
    device: Arc<Device>,
}

/// A range of bytes in a buffer. Only the device that owns the buffer accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferRange {
    /// The number of the device.
    pub(crate) device: u64,
    pub(crate) buffer: vk::Buffer,
    pub(crate) offset_bytes: u64,
    pub(crate) bytes: u64,
}

impl BufferRange {
    /// The buffer.
    #[must_use]
    pub const fn buffer(&self) -> vk::Buffer {
        self.buffer
    }

    /// The first byte, from the start of the buffer.
    #[must_use]
    pub const fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// The number of bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Commands {
    /// A list for queues of one family.
    pub(crate) fn new(device: &Arc<Device>, family: u32) -> Result<Self, VulkanError> {
        let info = vk::CommandPoolCreateInfo::default().queue_family_index(family);
        // SAFETY: the device is alive and was opened with a queue of the family.
        let pool = unsafe { device.raw.create_command_pool(&info, None) };
        let pool = named("vkCreateCommandPool", pool)?;
        let mut commands =
            Self { raw: vk::CommandBuffer::null(), pool, device: Arc::clone(device) };
        let info =
            vk::CommandBufferAllocateInfo::default().command_pool(pool).command_buffer_count(1);
        // SAFETY: the pool is alive.
        let raw = unsafe { device.raw.allocate_command_buffers(&info) };
        commands.raw = named("vkAllocateCommandBuffers", raw)?[0];
        Ok(commands)
    }

    pub(crate) const fn raw(&self) -> vk::CommandBuffer {
        self.raw
    }

    /// Clears the list and starts to record. The old commands must have run or must never have been
    /// submitted.
    pub(crate) fn begin(&mut self) -> Result<(), VulkanError> {
        let info = vk::CommandBufferBeginInfo::default()
            .flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: no queue has the commands any more, and nobody else has the pool.
        unsafe {
            let reset =
                self.device.raw.reset_command_pool(self.pool, vk::CommandPoolResetFlags::empty());
            named("vkResetCommandPool", reset)?;
            named("vkBeginCommandBuffer", self.device.raw.begin_command_buffer(self.raw, &info))
        }
    }

    pub(crate) fn end(&mut self) -> Result<(), VulkanError> {
        // SAFETY: the commands are being recorded.
        named("vkEndCommandBuffer", unsafe { self.device.raw.end_command_buffer(self.raw) })
    }

    /// Lets later commands start after all earlier commands on this queue, and see all their
    /// effects, through any alias.
    pub(crate) fn barrier(&mut self) {
        let all = vk::PipelineStageFlags2::ALL_COMMANDS;
        let barrier = vk::MemoryBarrier2::default()
            .src_stage_mask(all)
            .src_access_mask(vk::AccessFlags2::MEMORY_WRITE)
            .dst_stage_mask(all)
            .dst_access_mask(vk::AccessFlags2::MEMORY_READ | vk::AccessFlags2::MEMORY_WRITE);
        self.memory_barrier(barrier);
    }

    /// Makes the writes of copies visible to the host after it knows that the copies have ended.
    pub(crate) fn barrier_to_host(&mut self) {
        let barrier = vk::MemoryBarrier2::default()
            .src_stage_mask(vk::PipelineStageFlags2::COPY)
            .src_access_mask(vk::AccessFlags2::TRANSFER_WRITE)
            .dst_stage_mask(vk::PipelineStageFlags2::HOST)
            .dst_access_mask(vk::AccessFlags2::HOST_READ);
        self.memory_barrier(barrier);
    }

    /// Makes writes of the host visible to copies. The host may write after the commands were
    /// submitted, but before the signal for which they wait.
    pub(crate) fn barrier_from_host(&mut self) {
        let barrier = vk::MemoryBarrier2::default()
            .src_stage_mask(vk::PipelineStageFlags2::HOST)
            .src_access_mask(vk::AccessFlags2::HOST_WRITE)
            .dst_stage_mask(vk::PipelineStageFlags2::COPY)
            .dst_access_mask(vk::AccessFlags2::TRANSFER_READ);
        self.memory_barrier(barrier);
    }

    fn memory_barrier(&mut self, barrier: vk::MemoryBarrier2<'_>) {
        let barriers = [barrier];
        let info = vk::DependencyInfo::default().memory_barriers(&barriers);
        // SAFETY: the commands are being recorded.
        unsafe { self.device.raw.cmd_pipeline_barrier2(self.raw, &info) };
    }

    /// Copies as many bytes as `from` has. Both ranges must be inside their buffers and have
    /// memory.
    pub(crate) fn copy(&mut self, from: BufferRange, to: BufferRange) {
        let region = vk::BufferCopy::default()
            .src_offset(from.offset_bytes)
            .dst_offset(to.offset_bytes)
            .size(from.bytes);
        // SAFETY: the commands are being recorded, and the caller has checked the ranges.
        unsafe { self.device.raw.cmd_copy_buffer(self.raw, from.buffer, to.buffer, &[region]) };
    }

    /// Fills a range with a word. The range must belong to this device and have one or more whole
    /// words.
    pub(crate) fn fill(&mut self, range: BufferRange, word: u32) {
        let BufferRange { buffer, offset_bytes, bytes, .. } = range;
        // SAFETY: the commands are being recorded, and the caller has checked the range.
        unsafe { self.device.raw.cmd_fill_buffer(self.raw, buffer, offset_bytes, bytes, word) };
    }

    /// Runs a kernel of this device. Each binding has a range of this device inside its buffer,
    /// aligned, with at least the bytes that the kernel needs and at most the device's limits. The
    /// number of immediates must be the kernel's.
    pub(crate) fn dispatch(
        &mut self,
        pipeline: &Pipeline,
        bindings: &[BufferRange],
        immediates: &[u32],
        groups: [u32; 3],
    ) {
        let infos: Vec<_> = bindings
            .iter()
            .map(|range| {
                [vk::DescriptorBufferInfo::default()
                    .buffer(range.buffer)
                    .offset(range.offset_bytes)
                    .range(range.bytes)]
            })
            .collect();
        let writes: Vec<_> = (0..)
            .zip(&infos)
            .map(|(binding, info)| {
                vk::WriteDescriptorSet::default()
                    .dst_binding(binding)
                    .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                    .buffer_info(info)
            })
            .collect();
        let point = vk::PipelineBindPoint::COMPUTE;
        let (raw, device) = (self.raw, &self.device.raw);
        // SAFETY: the commands are being recorded for a queue that computes, and the pipeline's
        // layout has these bindings and immediates. A kernel cannot leave its bindings: each has
        // the bytes that are accessed at fixed offsets, and all other indices were compiled to stay
        // in bounds. Reads of pages that are unmapped by then return any value, and writes are
        // lost.
        unsafe {
            device.cmd_bind_pipeline(raw, point, pipeline.raw);
            let push = &self.device.push_descriptors;
            push.cmd_push_descriptor_set(raw, point, pipeline.layout, 0, &writes);
            if !immediates.is_empty() {
                let (stage, bytes) =
                    (vk::ShaderStageFlags::COMPUTE, bytemuck::cast_slice(immediates));
                device.cmd_push_constants(raw, pipeline.layout, stage, 0, bytes);
            }
            let [x, y, z] = groups;
            device.cmd_dispatch(raw, x, y, z);
        }
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        let Some(device) = self.device.to_free() else { return };
        // SAFETY: whoever submitted the commands has waited for their end.
        unsafe { device.destroy_command_pool(self.pool, None) };
    }
}
