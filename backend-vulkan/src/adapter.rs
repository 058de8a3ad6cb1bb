//! The devices of this machine, their properties, and why a device cannot be used.

use crate::VulkanDevice;
use crate::address_space::AddressSpace;
use crate::driver::{Also, Buffer, Device, Instance, Physical, Queue};
use crate::error::{Unavailable, VulkanError};
use crate::queues::{self, Queues};
use ash::vk;
use std::sync::Arc;

/// The Vulkan of this machine.
#[derive(Debug)]
pub struct Vulkan {
    instance: Arc<Instance>,
}

/// The properties of a device, for people who choose one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The device's own name.
    pub name: String,
    /// The driver's name and version.
    pub driver: String,
    /// The latest version of Vulkan that it supports.
    pub api_version: String,
    /// The size of its memory.
    pub memory_bytes: u64,
    /// The size of the memory for its host block.
    pub host_bytes: u64,
    /// The smallest unit of mapping. Chunks are multiples of it.
    pub page_bytes: u64,
    /// The most bytes of all virtual ranges together.
    pub address_space: AddressSpace,
    /// The most bytes of one virtual range, which lies in one buffer.
    pub range_bytes: u64,
    /// The most bytes of one binding of a kernel.
    pub binding_bytes: u64,
    /// The queues of the three streams and of page binding. `None` if the device cannot be used.
    pub queues: Option<Queues>,
    /// Why the device cannot be used, if so. Then the page size is 0.
    pub refusal: Option<String>,
}

/// Which device to open, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options<'a> {
    /// A part of its name, in any case. `None` for the fastest kind of device.
    pub device: Option<&'a str>,
    /// The size of a chunk, a multiple of the device's pages. `None` for [`default_chunk_bytes`].
    pub chunk_bytes: Option<u64>,
    /// The most bytes of all virtual ranges together, a multiple of the device's pages. `None` for
    /// the limit that the driver reports.
    ///
    /// Some drivers support more than they report. Vulkan does not allow an application to use more,
    /// so a driver that does not support more may fail without an error.
    pub sparse_bytes: Option<u64>,
}

/// The default size of a chunk: 2 MiB, rounded up to whole pages.
#[must_use]
pub const fn default_chunk_bytes(page_bytes: u64) -> u64 {
    (2_u64 << 20).next_multiple_of(page_bytes)
}

impl Vulkan {
    /// Loads the drivers, once for the process, which keeps them until it ends. A later call may
    /// succeed where one has failed. With `validation`, Khronos' layer checks every call, and that
    /// all accesses are synchronised. [`Vulkan::messages`] returns its messages. Layers up
    /// to 1.3.239 at least look devices up in a table without a lock, and may crash if one thread opens
    /// a device with validation while another thread uses one:
    /// <https://github.com/KhronosGroup/Vulkan-ValidationLayers/issues/4391>.
    ///
    /// This runs foreign code: the system's loader, and the drivers and layers that it finds, also
    /// through the environment.
    ///
    /// # Errors
    /// The machine has no Vulkan, or no such layer.
    pub fn load(validation: bool) -> Result<Self, Unavailable> {
        Ok(Self { instance: Instance::load(validation)? })
    }

    /// Takes all messages of the validation layer so far. Messages about the final clean-up are
    /// lost unless the devices are dropped before.
    #[must_use]
    pub fn messages(&self) -> Vec<String> {
        self.instance.messages().take()
    }

    /// All devices with Vulkan 1.3 or later, the fastest kinds first, each with the address space
    /// that it has with these [`Options::sparse_bytes`]. Opens each of them for a moment.
    ///
    /// # Errors
    /// The errors of the driver.
    pub fn devices(&self, sparse_bytes: Option<u64>) -> Result<Vec<DeviceInfo>, Unavailable> {
        let physical_devices = self.physical_devices()?;
        Ok(physical_devices.iter().map(|physical| self.info(physical, sparse_bytes)).collect())
    }

    /// Opens a device.
    ///
    /// # Errors
    /// No such device is available. The error says why.
    pub fn open(&self, options: &Options<'_>) -> Result<VulkanDevice, Unavailable> {
        let opened = self.open_raw(&self.choose(options.device)?, Also::default())?;
        VulkanDevice::new(opened, options)
    }

    /// The device that [`Vulkan::open`] opens with these options.
    ///
    /// # Errors
    /// No device can be used. The error says why.
    pub fn device(&self, options: &Options<'_>) -> Result<DeviceInfo, Unavailable> {
        let info = self.info(&self.choose(options.device)?, options.sparse_bytes);
        info.refusal.clone().map_or(Ok(info), |reason| Err(Unavailable(reason)))
    }

    fn physical_devices(&self) -> Result<Vec<Physical>, Unavailable> {
        let mut devices = self.instance.physical_devices()?;
        devices.sort_by_key(|physical| match physical.properties.device_type {
            vk::PhysicalDeviceType::DISCRETE_GPU => 0,
            vk::PhysicalDeviceType::INTEGRATED_GPU => 1,
            vk::PhysicalDeviceType::VIRTUAL_GPU => 2,
            _ => 3,
        });
        Ok(devices)
    }

    /// The first usable device with the name. Otherwise the error says why the first one cannot be
    /// used.
    pub(crate) fn choose(&self, name: Option<&str>) -> Result<Physical, Unavailable> {
        let wanted = name.unwrap_or("").to_lowercase();
        let devices = self.physical_devices()?;
        let named =
            devices.iter().filter(|device| device_name(device).to_lowercase().contains(&wanted));
        let refused = |device: &Physical| self.refusal(device);
        if let Some(device) = named.clone().find(|device| refused(device).is_none()) {
            return Ok(*device);
        }
        Err(Unavailable(match (named.clone().next(), name) {
            (Some(device), _) => {
                let reason = refused(device).unwrap_or_default();
                format!("{} cannot be used: {reason}", device_name(device))
            }
            (None, Some(name)) => format!("no Vulkan device's name contains {name:?}"),
            (None, None) => "no device supports Vulkan 1.3 or later".to_owned(),
        }))
    }

    /// Why a device cannot be used. `None` if it can.
    fn refusal(&self, physical: &Physical) -> Option<String> {
        let features = &physical.features;
        let lacks = |what: &str| Some(format!("its driver lacks {what}"));
        if features.sparse_binding == 0 || features.sparse_residency_buffer == 0 {
            return lacks("sparse binding of buffers");
        }
        if features.sparse_residency_aliased == 0 {
            return lacks("aliasing of sparse memory");
        }
        if physical.max_push_descriptors.is_none() {
            return lacks("VK_KHR_push_descriptor");
        }
        if queues::choose(&self.instance.queue_families(physical)).is_none() {
            return lacks("a queue that computes or one that binds sparse memory");
        }
        None
    }

    fn info(&self, physical: &Physical, sparse_bytes: Option<u64>) -> DeviceInfo {
        let properties = &physical.properties;
        let reported_bytes = properties.limits.sparse_address_space_size;
        let opened = match self.refusal(physical) {
            Some(reason) => Err(Unavailable(reason)),
            None => self.open_raw(physical, Also::default()).map_err(Unavailable::from),
        };
        let usable = opened.and_then(|Opened { page_bytes, queues, .. }| {
            let space = AddressSpace::new(reported_bytes, sparse_bytes, page_bytes)?;
            Ok((page_bytes, Some(queues), space))
        });
        let (page_bytes, queues, address_space) = usable.clone().unwrap_or((
            0,
            None,
            AddressSpace { bytes: reported_bytes, reported_bytes },
        ));
        let text = |text: Result<&std::ffi::CStr, _>| {
            text.map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
        };
        let (name, version) = (
            text(physical.driver.driver_name_as_c_str()),
            text(physical.driver.driver_info_as_c_str()),
        );
        let version_of = |version| {
            let (major, minor) = (vk::api_version_major(version), vk::api_version_minor(version));
            format!("{major}.{minor}.{}", vk::api_version_patch(version))
        };
        DeviceInfo {
            name: device_name(physical),
            driver: format!("{name} {version}").trim().to_owned(),
            api_version: version_of(properties.api_version),
            memory_bytes: physical.device_memory_bytes(),
            host_bytes: physical.host_memory_bytes(),
            page_bytes,
            address_space,
            range_bytes: physical.max_buffer_bytes.min(address_space.bytes),
            binding_bytes: properties.limits.max_storage_buffer_range.into(),
            queues,
            refusal: usable.err().map(|reason| reason.to_string()),
        }
    }

    /// Opens a device, with the requests of another user of it.
    pub(crate) fn open_raw(
        &self,
        physical: &Physical,
        also: Also<'_>,
    ) -> Result<Opened, VulkanError> {
        let families = self.instance.queue_families(physical);
        let chosen = queues::choose(&families).ok_or(VulkanError::Driver {
            call: "vkGetPhysicalDeviceQueueFamilyProperties",
            code: vk::Result::ERROR_FEATURE_NOT_PRESENT,
        })?;
        let [compute, upload, download] = chosen.streams;
        let wanted = [compute, upload, download, chosen.binding];
        let (device, queues) = Device::open(&self.instance, physical, &wanted, also)?;
        let page_bytes = Buffer::sparse(&device, 1)?.requirements().alignment;
        Ok(Opened {
            streams: [queues[0], queues[1], queues[2]],
            binding: queues[3],
            queues: chosen,
            page_bytes,
            memory_bytes: physical.device_memory_bytes(),
            device,
        })
    }

    #[cfg(feature = "wgpu")]
    pub(crate) const fn instance(&self) -> &Arc<Instance> {
        &self.instance
    }
}

#[cfg(test)]
impl Vulkan {
    /// With an instance that no other test uses.
    pub(crate) fn alone() -> Result<Self, Unavailable> {
        Ok(Self { instance: Instance::create(&Instance::load(false)?.entry, false)? })
    }

    /// Whether only this value uses the instance.
    pub(crate) fn is_alone(&self) -> bool {
        Arc::strong_count(&self.instance) == 1
    }
}

/// A device that has just been opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) device: Arc<Device>,
    pub(crate) streams: [Queue; 3],
    pub(crate) binding: Queue,
    /// All queues, by family and index.
    pub(crate) queues: Queues,
    pub(crate) page_bytes: u64,
    pub(crate) memory_bytes: u64,
}

fn device_name(physical: &Physical) -> String {
    let name = physical.properties.device_name_as_c_str().unwrap_or_default();
    name.to_string_lossy().into_owned()
}
