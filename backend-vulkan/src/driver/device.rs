//! An open device: its queues, and the timeline semaphores that order them.

use super::memory::Bind;
use super::{Commands, Instance, Physical, named};
use crate::error::VulkanError;
use ash::{khr, vk};
use std::ffi::CStr;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// One queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    raw: vk::Queue,
    pub(crate) family: u32,
    /// Its index in the family.
    pub(crate) index: u32,
}

/// An open device.
///
/// Vulkan requires that only one thread at a time uses a queue. The only methods here that use one
/// are called by a `VulkanDevice` that is borrowed exclusively, and each device has one. If wgpu
/// also uses the compute queue, whoever opened the device for wgpu keeps it to the same thread.
pub(crate) struct Device {
    pub(super) raw: ash::Device,
    pub(super) push_descriptors: khr::push_descriptor::Device,
    /// The families of the device's queues, each once.
    pub(super) families: Vec<u32>,
    /// The device's queues, each once.
    queues: Vec<Queue>,
    is_leaked: AtomicBool,
    /// The number of memory allocations that exist.
    pub(super) allocations: AtomicU32,
    /// A number that no other device of this process has.
    pub(crate) number: u64,
    pub(crate) physical: Physical,
    pub(crate) instance: Arc<Instance>,
}

/// The number of devices that were opened.
static DEVICES: AtomicU64 = AtomicU64::new(0);

/// The requests of another user of a device.
#[derive(Clone, Default)]
pub(crate) struct Also<'a> {
    /// Structures that ask for features.
    pub(crate) info: vk::DeviceCreateInfo<'a>,
    pub(crate) extensions: Vec<&'static CStr>,
    pub(crate) features: vk::PhysicalDeviceFeatures,
}

/// The types of the structures that a request points to.
fn chain(info: &vk::DeviceCreateInfo<'_>) -> Vec<vk::StructureType> {
    let mut types = Vec::new();
    let mut next = info.p_next.cast::<vk::BaseInStructure<'_>>();
    // SAFETY: all structures of a chain begin like this one and live as long as the request.
    while let Some(structure) = unsafe { next.as_ref() } {
        types.push(structure.s_type);
        next = structure.p_next;
    }
    types
}

/// Work for a queue: its waits, its commands and its signal.
#[derive(Clone, Debug)]
pub(crate) struct Submit<'a> {
    pub(crate) waits: Vec<(&'a Semaphore, u64)>,
    pub(crate) commands: Option<&'a Commands>,
    pub(crate) signal: Option<(&'a Semaphore, u64)>,
}

impl Device {
    /// Opens a device with the requests of another user of it, and with queues, each named by its
    /// family and its index there. Returns the queues in the same order. One queue may be named
    /// several times.
    pub(crate) fn open(
        instance: &Arc<Instance>,
        physical: &Physical,
        queues: &[(u32, u32)],
        also: Also<'_>,
    ) -> Result<(Arc<Self>, Vec<Queue>), VulkanError> {
        let mut families: Vec<u32> = queues.iter().map(|&(family, _)| family).collect();
        families.sort_unstable();
        families.dedup();
        let most = queues.iter().map(|&(_, index)| index as usize + 1).max().unwrap_or(0);
        let priorities = vec![1.0; most];
        let infos: Vec<_> = families
            .iter()
            .map(|&family| {
                let of_family = queues.iter().filter(|queue| queue.0 == family);
                let count = of_family.map(|queue| queue.1 as usize + 1).max().unwrap_or(0);
                vk::DeviceQueueCreateInfo::default()
                    .queue_family_index(family)
                    .queue_priorities(&priorities[..count])
            })
            .collect();
        let Also { info, mut extensions, mut features } = also;
        features.sparse_binding = vk::TRUE;
        features.sparse_residency_buffer = vk::TRUE;
        features.sparse_residency_aliased = vk::TRUE;
        if !extensions.contains(&khr::push_descriptor::NAME) {
            extensions.push(khr::push_descriptor::NAME);
        }
        let extensions: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let mut timeline =
            vk::PhysicalDeviceTimelineSemaphoreFeatures::default().timeline_semaphore(true);
        let mut address =
            vk::PhysicalDeviceBufferDeviceAddressFeatures::default().buffer_device_address(true);
        let mut synchronization =
            vk::PhysicalDeviceSynchronization2Features::default().synchronization2(true);
        let present = chain(&info);
        let mut info = info
            .queue_create_infos(&infos)
            .enabled_features(&features)
            .enabled_extension_names(&extensions);
        // A structure may occur only once.
        if !present.contains(&timeline.s_type) {
            info = info.push_next(&mut timeline);
        }
        if !present.contains(&address.s_type) {
            info = info.push_next(&mut address);
        }
        if !present.contains(&synchronization.s_type) {
            info = info.push_next(&mut synchronization);
        }
        // SAFETY: the device is one of the instance, everything that `info` points to lives until
        // the call returns, and the device reports that it has the features and queues.
        let raw = unsafe { instance.raw.create_device(physical.raw, &info, None) };
        let raw = named("vkCreateDevice", raw)?;
        let mut device = Self {
            push_descriptors: khr::push_descriptor::Device::new(&instance.raw, &raw),
            raw,
            families,
            queues: Vec::new(),
            is_leaked: AtomicBool::new(false),
            allocations: AtomicU32::new(0),
            number: DEVICES.fetch_add(1, Ordering::Relaxed),
            physical: *physical,
            instance: Arc::clone(instance),
        };
        let queues = queues.iter().map(|&(family, index)| {
            // SAFETY: the device was opened with this queue.
            let raw = unsafe { device.raw.get_device_queue(family, index) };
            Queue { raw, family, index }
        });
        let queues: Vec<Queue> = queues.collect();
        for queue in &queues {
            if !device.queues.contains(queue) {
                device.queues.push(*queue);
            }
        }
        Ok((Arc::new(device), queues))
    }

    pub(crate) fn limits(&self) -> &vk::PhysicalDeviceLimits {
        &self.physical.properties.limits
    }

    /// Offsets of bindings must be multiples of this.
    pub(crate) fn binding_alignment_bytes(&self) -> u64 {
        self.limits().min_storage_buffer_offset_alignment.max(4)
    }

    /// The most bytes of one binding.
    pub(crate) fn most_binding_bytes(&self) -> u64 {
        self.limits().max_storage_buffer_range.into()
    }

    /// The functions of the driver.
    pub(crate) const fn raw(&self) -> &ash::Device {
        &self.raw
    }

    /// Submits work to a queue. If the driver refuses it, none of it is submitted.
    pub(crate) fn submit(&self, queue: Queue, work: &[Submit<'_>]) -> Result<(), VulkanError> {
        let stage = vk::PipelineStageFlags2::ALL_COMMANDS;
        let point = |&(semaphore, value): &(&Semaphore, u64)| {
            let info = vk::SemaphoreSubmitInfo::default().semaphore(semaphore.raw);
            info.value(value).stage_mask(stage)
        };
        let parts: Vec<_> = work
            .iter()
            .map(|submit| {
                let waits: Vec<_> = submit.waits.iter().map(point).collect();
                let commands = submit.commands.map(|commands| {
                    vk::CommandBufferSubmitInfo::default().command_buffer(commands.raw())
                });
                (waits, commands, submit.signal.as_ref().map(point))
            })
            .collect();
        let infos: Vec<_> = parts
            .iter()
            .map(|(waits, commands, signal)| {
                vk::SubmitInfo2::default()
                    .wait_semaphore_infos(waits)
                    .command_buffer_infos(commands.as_slice())
                    .signal_semaphore_infos(signal.as_slice())
            })
            .collect();
        // SAFETY: one thread at a time uses the queues: see `Device`. The recording of the commands
        // has ended, and they are not reset before they have run. Commands and semaphores live
        // until then.
        named("vkQueueSubmit2", unsafe {
            self.raw.queue_submit2(queue.raw, &infos, vk::Fence::null())
        })
    }

    /// Binds pages of sparse buffers, after `wait` and before `signal`.
    pub(crate) fn bind_sparse(
        &self,
        queue: Queue,
        binds: &[Bind],
        semaphore: &Semaphore,
        signal: u64,
    ) -> Result<(), VulkanError> {
        let (semaphores, waits, signals) = ([semaphore.raw], [signal - 1], [signal]);
        let mut timeline = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&waits)
            .signal_semaphore_values(&signals);
        // Binds of one buffer follow each other.
        let runs = binds.chunk_by(|one, next| one.buffer == next.buffer);
        let raw: Vec<(vk::Buffer, Vec<_>)> =
            runs.map(|run| (run[0].buffer, run.iter().map(|bind| bind.raw).collect())).collect();
        let buffers: Vec<_> = raw
            .iter()
            .map(|(buffer, binds)| {
                vk::SparseBufferMemoryBindInfo::default().buffer(*buffer).binds(binds)
            })
            .collect();
        let info = vk::BindSparseInfo::default()
            .wait_semaphores(&semaphores)
            .buffer_binds(&buffers)
            .signal_semaphores(&semaphores)
            .push_next(&mut timeline);
        // SAFETY: the queue can bind, and one thread at a time uses the queues: see `Device`.
        // Buffers and memory live until all work has ended. If work uses the pages meanwhile, its
        // reads return any value and nothing else changes, since the buffers are made for residency
        // (Vulkan, "Sparse Resource Features").
        named("vkQueueBindSparse", unsafe {
            self.raw.queue_bind_sparse(queue.raw, &[info], vk::Fence::null())
        })
    }

    /// Blocks until no queue has work, for each queue even if another one fails. Returns all
    /// errors.
    pub(crate) fn wait_idle(&self) -> Vec<VulkanError> {
        let wait = |queue: &Queue| {
            // SAFETY: one thread at a time uses the queues: see `Device`.
            named("vkQueueWaitIdle", unsafe { self.raw.queue_wait_idle(queue.raw) })
        };
        self.queues.iter().map(wait).filter_map(Result::err).collect()
    }

    /// Frees nothing from now on: neither the device nor any object made from it, since its work
    /// may still use all of it.
    pub(crate) fn leak(&self) {
        self.is_leaked.store(true, Ordering::Relaxed);
        mem::forget(Arc::clone(&self.instance));
    }

    /// The functions of the driver to free an object. `None` if the device is leaked.
    pub(super) fn to_free(&self) -> Option<&ash::Device> {
        (!self.is_leaked.load(Ordering::Relaxed)).then_some(&self.raw)
    }

    pub(crate) fn messages(&self) -> super::Messages {
        self.instance.messages()
    }
}

#[cfg(test)]
impl Device {
    /// Replaces functions of the driver, for tests.
    pub(crate) fn change(
        &mut self,
        change: impl FnOnce(&mut ash::DeviceFnV1_0, &mut ash::DeviceFnV1_3),
    ) {
        let (raw, v1_1, v1_2) = (&self.raw, self.raw.fp_v1_1(), self.raw.fp_v1_2());
        let (mut v1_0, mut v1_3) = (raw.fp_v1_0().clone(), raw.fp_v1_3().clone());
        change(&mut v1_0, &mut v1_3);
        let (v1_1, v1_2) = (v1_1.clone(), v1_2.clone());
        self.raw = ash::Device::from_parts_1_3(raw.handle(), v1_0, v1_1, v1_2, v1_3);
    }

    /// Adds queues to the queues that are waited for.
    pub(crate) fn add_queues(&mut self, queues: &[Queue]) {
        self.queues.extend(queues);
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("families", &self.families).finish_non_exhaustive()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let Some(raw) = self.to_free() else { return };
        // SAFETY: every object made from the device keeps it alive, so all of them are gone, and
        // all work has ended.
        unsafe { raw.destroy_device(None) };
    }
}

/// A timeline semaphore, which starts at 0.
#[derive(Debug)]
pub(crate) struct Semaphore {
    raw: vk::Semaphore,
    device: Arc<Device>,
}

impl Semaphore {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, VulkanError> {
        let mut kind =
            vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device is alive and has timeline semaphores.
        let raw = named("vkCreateSemaphore", unsafe { device.raw.create_semaphore(&info, None) })?;
        Ok(Self { raw, device: Arc::clone(device) })
    }

    #[cfg(feature = "wgpu")]
    pub(crate) const fn raw(&self) -> vk::Semaphore {
        self.raw
    }

    /// The value that the semaphore has reached.
    pub(crate) fn value(&self) -> Result<u64, VulkanError> {
        // SAFETY: the semaphore is a timeline.
        let value = unsafe { self.device.raw.get_semaphore_counter_value(self.raw) };
        named("vkGetSemaphoreCounterValue", value)
    }

    /// Sets the semaphore to a value. The value must be larger than all earlier ones, and nothing
    /// else may signal it.
    pub(crate) fn signal(&self, value: u64) -> Result<(), VulkanError> {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.raw).value(value);
        // SAFETY: the semaphore is a timeline, and only the thread of the host stream signals it.
        named("vkSignalSemaphore", unsafe { self.device.raw.signal_semaphore(&info) })
    }

    /// Blocks until the semaphore reaches a value.
    pub(crate) fn block_until(&self, value: u64) -> Result<(), VulkanError> {
        let (semaphores, values) = ([self.raw], [value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is a timeline.
        named("vkWaitSemaphores", unsafe { self.device.raw.wait_semaphores(&info, u64::MAX) })
    }
}

impl Drop for Semaphore {
    fn drop(&mut self) {
        let Some(device) = self.device.to_free() else { return };
        // SAFETY: whoever submitted work that uses the semaphore has waited for its end.
        unsafe { device.destroy_semaphore(self.raw, None) };
    }
}
