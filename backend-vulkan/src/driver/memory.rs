//! Memory and the buffers in it.

use super::{Device, named};
use crate::error::VulkanError;
use ash::vk;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How the buffers of this crate are used.
const USAGE: vk::BufferUsageFlags = vk::BufferUsageFlags::from_raw(
    vk::BufferUsageFlags::TRANSFER_SRC.as_raw()
        | vk::BufferUsageFlags::TRANSFER_DST.as_raw()
        | vk::BufferUsageFlags::STORAGE_BUFFER.as_raw()
        | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS.as_raw(),
);

/// An allocation of the driver.
#[derive(Debug)]
pub(crate) struct Memory {
    raw: vk::DeviceMemory,
    pub(crate) bytes: u64,
    /// Its address for the host, if it is mapped.
    mapped: Option<NonNull<u8>>,
    device: Arc<Device>,
}

// SAFETY: the pointer points to memory of the driver that belongs only to this value.
unsafe impl Send for Memory {}
// SAFETY: a shared reference only reads through it, since `write` takes an exclusive one.
unsafe impl Sync for Memory {}

impl Memory {
    /// Allocates memory of a type. With `mapped`, the host must be able to map the type.
    pub(crate) fn new(
        device: &Arc<Device>,
        bytes: u64,
        memory_type: u32,
        mapped: bool,
    ) -> Result<Self, VulkanError> {
        device.physical.check_allocation(bytes, memory_type)?;
        let most = device.limits().max_memory_allocation_count;
        if device.allocations.load(Ordering::Relaxed) >= most {
            return Err(VulkanError::Allocations { most });
        }
        let mut flags =
            vk::MemoryAllocateFlagsInfo::default().flags(vk::MemoryAllocateFlags::DEVICE_ADDRESS);
        let info = vk::MemoryAllocateInfo::default()
            .allocation_size(bytes)
            .memory_type_index(memory_type)
            .push_next(&mut flags);
        // SAFETY: the device is alive, has the memory type, can allocate so much of it at once, and
        // allows one more allocation.
        let raw = named("vkAllocateMemory", unsafe { device.raw.allocate_memory(&info, None) })?;
        device.allocations.fetch_add(1, Ordering::Relaxed);
        let mut memory = Self { raw, bytes, mapped: None, device: Arc::clone(device) };
        if mapped {
            // SAFETY: the caller chose a type that the host can map, and the memory is not mapped
            // yet.
            let pointer = unsafe {
                device.raw.map_memory(raw, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty())
            };
            memory.mapped = NonNull::new(named("vkMapMemory", pointer)?.cast());
        }
        Ok(memory)
    }

    /// Copies bytes into the memory, at an offset.
    pub(crate) fn write(&mut self, offset_bytes: u64, from: &[u8]) {
        let to = self.host_bytes(offset_bytes, from.len());
        // SAFETY: `to` has this many bytes inside the mapping. No other thread of the host uses
        // them, since `self` is borrowed exclusively, and no reference to them exists. If the
        // device uses them at the same time, only their value can be wrong.
        unsafe { to.copy_from_nonoverlapping(NonNull::from(from).cast(), from.len()) };
    }

    /// Copies bytes out of the memory, from an offset.
    pub(crate) fn read(&self, offset_bytes: u64, into: &mut [u8]) {
        let from = self.host_bytes(offset_bytes, into.len());
        // SAFETY: `from` has this many bytes inside the mapping. Other threads of the host can only
        // read them, and no reference to them exists. If the device writes them at the same time,
        // only the value that is read can be wrong.
        unsafe { from.copy_to_nonoverlapping(NonNull::from(&mut *into).cast(), into.len()) };
    }

    /// Its address for the host.
    pub(crate) fn address(&self) -> u64 {
        self.host_bytes(0, 0).as_ptr() as u64
    }

    fn host_bytes(&self, offset_bytes: u64, len: usize) -> NonNull<u8> {
        let end = offset_bytes.checked_add(len as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "the range is inside the memory");
        let start = self.mapped.expect("the memory is mapped");
        // SAFETY: the offset is inside the mapping.
        unsafe { start.add(offset_bytes as usize) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        let Some(device) = self.device.to_free() else { return };
        // SAFETY: whoever submitted work that uses the memory has waited for its end. To free the
        // memory also unmaps it.
        unsafe { device.free_memory(self.raw, None) };
        self.device.allocations.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A buffer, sparse or with its own memory.
#[derive(Debug)]
pub(crate) struct Buffer {
    pub(crate) raw: vk::Buffer,
    pub(crate) bytes: u64,
    device: Arc<Device>,
}

impl Buffer {
    /// Makes a buffer whose pages are bound later, some of them several times.
    pub(crate) fn sparse(device: &Arc<Device>, bytes: u64) -> Result<Self, VulkanError> {
        let flags = vk::BufferCreateFlags::SPARSE_BINDING
            | vk::BufferCreateFlags::SPARSE_RESIDENCY
            | vk::BufferCreateFlags::SPARSE_ALIASED;
        Self::new(device, bytes, flags)
    }

    /// Makes a buffer at the start of new memory. `memory_type` chooses among the types whose bits
    /// are set.
    pub(crate) fn with_memory(
        device: &Arc<Device>,
        bytes: u64,
        mapped: bool,
        memory_type: impl FnOnce(u32) -> Option<u32>,
    ) -> Result<(Self, Memory), VulkanError> {
        let buffer = Self::new(device, bytes, vk::BufferCreateFlags::empty())?;
        let requirements = buffer.requirements();
        let code = vk::Result::ERROR_FEATURE_NOT_PRESENT;
        let chosen = memory_type(requirements.memory_type_bits);
        let chosen = chosen.ok_or(VulkanError::Driver { call: "vkAllocateMemory", code })?;
        let memory = Memory::new(device, requirements.size, chosen, mapped)?;
        // SAFETY: the memory is new, and its type and size suit the buffer.
        let bound = unsafe { device.raw.bind_buffer_memory(buffer.raw, memory.raw, 0) };
        named("vkBindBufferMemory", bound)?;
        Ok((buffer, memory))
    }

    fn new(
        device: &Arc<Device>,
        bytes: u64,
        flags: vk::BufferCreateFlags,
    ) -> Result<Self, VulkanError> {
        device.physical.check_buffer(bytes)?;
        let mut info = vk::BufferCreateInfo::default().size(bytes).usage(USAGE).flags(flags);
        if device.families.len() > 1 {
            info = info.sharing_mode(vk::SharingMode::CONCURRENT);
            info = info.queue_family_indices(&device.families);
        }
        // SAFETY: the device is alive, has the features that the flags need, and allows the size.
        // All sparse buffers fit the reported address space, unless `Options::sparse_bytes` vouches
        // for more.
        let raw = named("vkCreateBuffer", unsafe { device.raw.create_buffer(&info, None) })?;
        Ok(Self { raw, bytes, device: Arc::clone(device) })
    }

    pub(crate) fn requirements(&self) -> vk::MemoryRequirements {
        // SAFETY: the buffer is alive.
        unsafe { self.device.raw.get_buffer_memory_requirements(self.raw) }
    }

    /// Its address for shaders. A buffer with memory must be bound before.
    pub(crate) fn address(&self) -> u64 {
        let info = vk::BufferDeviceAddressInfo::default().buffer(self.raw);
        // SAFETY: the buffer is alive, was made to have an address, and is sparse or bound.
        unsafe { self.device.raw.get_buffer_device_address(&info) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(device) = self.device.to_free() else { return };
        // SAFETY: whoever submitted work that uses the buffer has waited for its end.
        unsafe { device.destroy_buffer(self.raw, None) };
    }
}

/// Pages of a sparse buffer that get or lose memory.
#[derive(Clone, Copy)]
pub(crate) struct Bind {
    pub(super) buffer: vk::Buffer,
    pub(super) raw: vk::SparseMemoryBind,
}

impl Bind {
    /// Binds `bytes` bytes of the buffer from an offset on to a memory from an offset on, or to
    /// none.
    pub(crate) fn new(
        buffer: &Buffer,
        offset_bytes: u64,
        bytes: u64,
        memory: Option<(&Memory, u64)>,
    ) -> Self {
        let mut raw = vk::SparseMemoryBind::default().resource_offset(offset_bytes).size(bytes);
        if let Some((memory, offset_bytes)) = memory {
            raw = raw.memory(memory.raw).memory_offset(offset_bytes);
        }
        Self { buffer: buffer.raw, raw }
    }
}
