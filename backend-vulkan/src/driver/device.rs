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
/// Vulkan wants one thread at a time to use a queue. The only methods here that do are called by a
/// `VulkanDevice` that is borrowed exclusively, and each device has one. Where wgpu uses the queue of
/// compute as well, whoever opened the device for it keeps it to the same thread.
pub(crate) struct Device {
    pub(super) raw: ash::Device,
    pub(super) push_descriptors: khr::push_descriptor::Device,
    /// The families of the queues it was opened with, each once.
    pub(super) families: Vec<u32>,
    /// The queues it was opened with, each once.
    queues: Vec<Queue>,
    is_leaked: AtomicBool,
    /// Allocations of memory that there are.
    pub(super) allocations: AtomicU32,
    /// No other device of this process has this number.
    pub(crate) number: u64,
    pub(crate) physical: Physical,
    pub(crate) instance: Arc<Instance>,
}

/// How many devices were opened.
static DEVICES: AtomicU64 = AtomicU64::new(0);

/// What another user of a device wants of it.
#[derive(Clone, Default)]
pub(crate) struct Also<'a> {
    /// Structures that ask for features.
    pub(crate) info: vk::DeviceCreateInfo<'a>,
    pub(crate) extensions: Vec<&'static CStr>,
    pub(crate) features: vk::PhysicalDeviceFeatures,
}

/// The structures that hang on a request.
fn chain(info: &vk::DeviceCreateInfo<'_>) -> Vec<vk::StructureType> {
    let mut types = Vec::new();
    let mut next = info.p_next.cast::<vk::BaseInStructure<'_>>();
    // SAFETY: all structures of a chain begin like this one and are alive while the request is.
    while let Some(structure) = unsafe { next.as_ref() } {
        types.push(structure.s_type);
        next = structure.p_next;
    }
    types
}

/// Work for a queue: what it waits for, what it does, and what it signals.
#[derive(Clone, Debug)]
pub(crate) struct Submit<'a> {
    pub(crate) waits: Vec<(&'a Semaphore, u64)>,
    pub(crate) commands: Option<&'a Commands>,
    pub(crate) signal: Option<(&'a Semaphore, u64)>,
}

impl Device {
    /// Opens a device, with what another user of it wants as well, and with queues, each named
    /// by its family and its index there. Returns these in the same order; the same queue may
    /// be named more than once.
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
        // A structure may be there once.
        if !present.contains(&timeline.s_type) {
            info = info.push_next(&mut timeline);
        }
        if !present.contains(&address.s_type) {
            info = info.push_next(&mut address);
        }
        if !present.contains(&synchronization.s_type) {
            info = info.push_next(&mut synchronization);
        }
        // SAFETY: the device is one of the instance, all that `info` points to lives until the
        // call returns, and the features and queues are ones that the device says it has.
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

    /// What offsets of bindings must be multiples of.
    pub(crate) fn binding_alignment_bytes(&self) -> u64 {
        self.limits().min_storage_buffer_offset_alignment.max(4)
    }

    /// The most that one binding may hold.
    pub(crate) fn most_binding_bytes(&self) -> u64 {
        self.limits().max_storage_buffer_range.into()
    }

    /// The functions of the driver.
    pub(crate) const fn raw(&self) -> &ash::Device {
        &self.raw
    }

    /// Hands work to a queue, all of it or, where the driver refuses it, none.
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
        // SAFETY: one thread at a time uses the queues: see `Device`. The commands have been ended
        // and are not reset before they are done; commands and semaphores live until then.
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
        // SAFETY: the queue can bind, and one thread at a time uses the queues: see `Device`. Buffers
        // and memory live until all work has ended. Work that uses the pages meanwhile reads
        // anything and changes nothing else, since the buffers are made for residency (Vulkan,
        // "Sparse Resource Features").
        named("vkQueueBindSparse", unsafe {
            self.raw.queue_bind_sparse(queue.raw, &[info], vk::Fence::null())
        })
    }

    /// Blocks until no queue has anything to do, each of them even if another one fails. Returns
    /// what failed.
    pub(crate) fn wait_idle(&self) -> Vec<VulkanError> {
        let wait = |queue: &Queue| {
            // SAFETY: one thread at a time uses the queues: see `Device`.
            named("vkQueueWaitIdle", unsafe { self.raw.queue_wait_idle(queue.raw) })
        };
        self.queues.iter().map(wait).filter_map(Result::err).collect()
    }

    /// From now on, nothing that was made from the device is freed, and neither is the device:
    /// its work may still use all of it.
    pub(crate) fn leak(&self) {
        self.is_leaked.store(true, Ordering::Relaxed);
        mem::forget(Arc::clone(&self.instance));
    }

    /// The functions of the driver, for whoever frees something; none where it is leaked.
    pub(super) fn to_free(&self) -> Option<&ash::Device> {
        (!self.is_leaked.load(Ordering::Relaxed)).then_some(&self.raw)
    }

    pub(crate) fn messages(&self) -> super::Messages {
        self.instance.messages()
    }
}

#[cfg(test)]
impl Device {
    /// Changes functions of the driver.
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

    /// Adds queues to those that are waited for.
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
        // SAFETY: whatever was made from the device keeps it alive, so all of it is gone, and
        // with it all work.
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

    /// The value that it has reached.
    pub(crate) fn value(&self) -> Result<u64, VulkanError> {
        // SAFETY: the semaphore is a timeline.
        let value = unsafe { self.device.raw.get_semaphore_counter_value(self.raw) };
        named("vkGetSemaphoreCounterValue", value)
    }

    /// Lets it reach a value, larger than all that it has been given, which nothing else signals.
    pub(crate) fn signal(&self, value: u64) -> Result<(), VulkanError> {
        let info = vk::SemaphoreSignalInfo::default().semaphore(self.raw).value(value);
        // SAFETY: the semaphore is a timeline, and only the thread of the host's stream signals it.
        named("vkSignalSemaphore", unsafe { self.device.raw.signal_semaphore(&info) })
    }

    /// Blocks until it reaches a value.
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
