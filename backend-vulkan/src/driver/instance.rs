//! The loader, the layers, and the physical devices of the loader.

use crate::error::{Unavailable, VulkanError};
use ash::{ext, vk};
use std::ffi::{CStr, c_void};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

const VALIDATION: &CStr = c"VK_LAYER_KHRONOS_validation";

/// The instance of all devices without validation. The first device creates it, and it lives until
/// the process ends. The loader unloads a driver with the driver's last instance, and fails to load
/// NVIDIA's driver again and again: on an H100 (driver 580.159.04), it found no driver after 29
/// devices, each with an instance of its own.
static SHARED: Mutex<Option<Arc<Instance>>> = Mutex::new(None);

/// The messages of the validation layer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Messages(Arc<Mutex<Vec<String>>>);

impl Messages {
    /// Takes all messages so far.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The entry to the driver.
pub(crate) struct Instance {
    /// The loader.
    pub(crate) entry: ash::Entry,
    pub(crate) raw: ash::Instance,
    pub(crate) extensions: Vec<&'static CStr>,
    messenger: Option<(ext::debug_utils::Instance, vk::DebugUtilsMessengerEXT)>,
    messages: Messages,
}

/// A device that can be opened, and its reported properties.
#[derive(Clone, Copy)]
pub(crate) struct Physical {
    pub(crate) raw: vk::PhysicalDevice,
    pub(crate) properties: vk::PhysicalDeviceProperties,
    pub(crate) features: vk::PhysicalDeviceFeatures,
    /// Vulkan's name of the driver, and the driver's own name and version.
    pub(crate) driver: vk::PhysicalDeviceDriverProperties<'static>,
    pub(crate) memory: vk::PhysicalDeviceMemoryProperties,
    pub(crate) max_allocation_bytes: u64,
    pub(crate) max_buffer_bytes: u64,
    /// The most bindings that are pushed at once. `None` without `VK_KHR_push_descriptor`.
    pub(crate) max_push_descriptors: Option<u32>,
}

impl Physical {
    /// The memory type for bytes that only the device uses, among the types whose bits are set.
    pub(crate) fn memory_type_of_device(&self, bits: u32) -> u32 {
        let own = vk::MemoryPropertyFlags::DEVICE_LOCAL;
        self.memory_type(bits, own, own).unwrap_or(bits.trailing_zeros())
    }

    /// The memory type that the host writes and reads, among the types whose bits are set. Cached
    /// if possible.
    pub(crate) fn memory_type_of_host(&self, bits: u32) -> Option<u32> {
        let seen = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        self.memory_type(bits, seen, seen | vk::MemoryPropertyFlags::HOST_CACHED)
    }

    /// The first type that has the required flags and, if possible, also the wanted ones.
    fn memory_type(
        &self,
        bits: u32,
        flags: vk::MemoryPropertyFlags,
        wanted: vk::MemoryPropertyFlags,
    ) -> Option<u32> {
        let first = |flags| {
            let mut types = (0..).zip(self.memory.memory_types_as_slice());
            let fits = |&(index, kind): &(u32, &vk::MemoryType)| {
                bits & (1 << index) != 0 && kind.property_flags.contains(flags)
            };
            types.find(fits).map(|(index, _)| index)
        };
        first(wanted).or_else(|| first(flags))
    }

    /// Fails if an allocation is larger than the device allows for the type.
    pub(super) fn check_allocation(&self, bytes: u64, kind: u32) -> Result<(), VulkanError> {
        let heap = self.memory.memory_types[kind as usize].heap_index;
        let most = self.memory.memory_heaps[heap as usize].size.min(self.max_allocation_bytes);
        if bytes > most { Err(out_of_memory("vkAllocateMemory")) } else { Ok(()) }
    }

    /// Fails for a buffer without bytes, or with more bytes than the device allows.
    pub(super) fn check_buffer(&self, bytes: u64) -> Result<(), VulkanError> {
        if (1..=self.max_buffer_bytes).contains(&bytes) {
            return Ok(());
        }
        Err(out_of_memory("vkCreateBuffer"))
    }

    /// The size of the memory that holds the host block.
    pub(crate) fn host_memory_bytes(&self) -> u64 {
        let kind = self.memory_type_of_host(u32::MAX);
        let heap = kind.map(|kind| self.memory.memory_types[kind as usize].heap_index);
        heap.map_or(0, |heap| self.memory.memory_heaps[heap as usize].size)
    }

    /// The size of the largest heap of the device's own memory.
    pub(crate) fn device_memory_bytes(&self) -> u64 {
        let heaps = self.memory.memory_heaps_as_slice().iter();
        let own = heaps.filter(|heap| heap.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        own.map(|heap| heap.size).max().unwrap_or(0)
    }
}

impl Instance {
    /// Returns the shared instance. With `validation`, returns a new instance, in which the validation
    /// layer checks all calls and their synchronisation. So a caller gets messages about its own calls
    /// only. The shared instance also exists then, and keeps the drivers loaded.
    pub(crate) fn load(validation: bool) -> Result<Arc<Self>, Unavailable> {
        let shared = Self::shared()?;
        if validation { Self::create(&shared.entry, true) } else { Ok(shared) }
    }

    fn shared() -> Result<Arc<Self>, Unavailable> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(instance) = &*shared {
            return Ok(Arc::clone(instance));
        }
        // SAFETY: the loader is the system's own library. To load it runs its initialisers, and to
        // use it runs the drivers and layers that it finds. `Vulkan::load` documents this.
        let entry = unsafe { ash::Entry::load() };
        let entry = entry.map_err(|error| unavailable("Vulkan cannot be loaded", error))?;
        Ok(Arc::clone(shared.insert(Self::create(&entry, false)?)))
    }

    /// A new instance.
    pub(crate) fn create(entry: &ash::Entry, validation: bool) -> Result<Arc<Self>, Unavailable> {
        if validation {
            check_layer(entry)?;
        }
        let messages = Messages::default();
        let enables = [vk::ValidationFeatureEnableEXT::SYNCHRONIZATION_VALIDATION];
        let mut features =
            vk::ValidationFeaturesEXT::default().enabled_validation_features(&enables);
        let mut messenger = messenger_info(&messages);
        let application = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_3);
        let mut extensions = wanted_extensions(entry);
        let layers = [VALIDATION.as_ptr()];
        if validation {
            extensions.extend([ext::debug_utils::NAME, ext::validation_features::NAME]);
        }
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let mut info = vk::InstanceCreateInfo::default()
            .application_info(&application)
            .enabled_extension_names(&names);
        if validation {
            info = info.enabled_layer_names(&layers);
            info = info.push_next(&mut features).push_next(&mut messenger);
        }
        // SAFETY: all that `info` points to lives until the call returns.
        let raw = unsafe { entry.create_instance(&info, None) };
        let raw = raw.map_err(|error| unavailable("Vulkan cannot be started", error))?;
        let mut instance =
            Self { entry: entry.clone(), raw, extensions, messenger: None, messages };
        if validation {
            let utils = ext::debug_utils::Instance::new(entry, &instance.raw);
            // SAFETY: the messages that the callback writes live as long as the instance.
            let raw = unsafe {
                utils.create_debug_utils_messenger(&messenger_info(&instance.messages), None)
            };
            let raw =
                raw.map_err(|error| unavailable("validation messages cannot be received", error))?;
            instance.messenger = Some((utils, raw));
        }
        Ok(Arc::new(instance))
    }

    pub(crate) fn messages(&self) -> Messages {
        self.messages.clone()
    }

    /// All devices of Vulkan 1.3 or later.
    pub(crate) fn physical_devices(&self) -> Result<Vec<Physical>, Unavailable> {
        // SAFETY: the instance is alive.
        let devices = unsafe { self.raw.enumerate_physical_devices() };
        let devices = devices
            .map_err(|error| Unavailable(format!("the devices cannot be listed: {error}")))?;
        Ok(devices.into_iter().filter_map(|raw| self.physical(raw)).collect())
    }

    fn physical(&self, raw: vk::PhysicalDevice) -> Option<Physical> {
        let mut driver = vk::PhysicalDeviceDriverProperties::default();
        let mut v11 = vk::PhysicalDeviceVulkan11Properties::default();
        let mut v13 = vk::PhysicalDeviceVulkan13Properties::default();
        let mut push = vk::PhysicalDevicePushDescriptorPropertiesKHR::default();
        // SAFETY: the device is one of this instance. Structures of Vulkan 1.2 and 1.3 are passed
        // only to devices that support them, and a device leaves the structure of an extension
        // unchanged if it lacks the extension.
        unsafe {
            if self.raw.get_physical_device_properties(raw).api_version < vk::API_VERSION_1_3 {
                return None;
            }
            let mut all = vk::PhysicalDeviceProperties2::default()
                .push_next(&mut driver)
                .push_next(&mut v11)
                .push_next(&mut v13)
                .push_next(&mut push);
            self.raw.get_physical_device_properties2(raw, &mut all);
            let properties = all.properties;
            let extensions = self.raw.enumerate_device_extension_properties(raw);
            let name = ash::khr::push_descriptor::NAME;
            let has_push_descriptors = extensions
                .unwrap_or_default()
                .iter()
                .any(|extension| extension.extension_name_as_c_str() == Ok(name));
            driver.p_next = std::ptr::null_mut();
            Some(Physical {
                raw,
                properties,
                features: self.raw.get_physical_device_features(raw),
                driver,
                memory: self.raw.get_physical_device_memory_properties(raw),
                max_allocation_bytes: v11.max_memory_allocation_size,
                max_buffer_bytes: v13.max_buffer_size,
                max_push_descriptors: has_push_descriptors.then_some(push.max_push_descriptors),
            })
        }
    }

    /// The queue families of a device: what each can do, and how many queues it has.
    pub(crate) fn queue_families(&self, physical: &Physical) -> Vec<(vk::QueueFlags, u32)> {
        // SAFETY: the device is one of this instance.
        let families =
            unsafe { self.raw.get_physical_device_queue_family_properties(physical.raw) };
        families.iter().map(|family| (family.queue_flags, family.queue_count)).collect()
    }
}

fn unavailable(what: &str, error: impl fmt::Display) -> Unavailable {
    Unavailable(format!("{what}: {error}; a Vulkan driver and its loader are needed"))
}

/// The same error that the driver would return.
const fn out_of_memory(call: &'static str) -> VulkanError {
    VulkanError::Driver { call, code: vk::Result::ERROR_OUT_OF_DEVICE_MEMORY }
}

/// The extensions of an instance that wgpu expects.
#[cfg(feature = "wgpu")]
fn wanted_extensions(entry: &ash::Entry) -> Vec<&'static CStr> {
    crate::wgpu::instance_extensions(entry)
}

#[cfg(not(feature = "wgpu"))]
fn wanted_extensions(_: &ash::Entry) -> Vec<&'static CStr> {
    Vec::new()
}

fn check_layer(entry: &ash::Entry) -> Result<(), Unavailable> {
    // SAFETY: the loader is open.
    let layers = unsafe { entry.enumerate_instance_layer_properties() }.unwrap_or_default();
    let mut names = layers.iter().map(vk::LayerProperties::layer_name_as_c_str);
    if names.any(|name| name == Ok(VALIDATION)) {
        return Ok(());
    }
    Err(Unavailable("the Vulkan validation layer is not installed".to_owned()))
}

fn messenger_info(messages: &Messages) -> vk::DebugUtilsMessengerCreateInfoEXT<'static> {
    vk::DebugUtilsMessengerCreateInfoEXT::default()
        .message_severity(
            vk::DebugUtilsMessageSeverityFlagsEXT::WARNING
                | vk::DebugUtilsMessageSeverityFlagsEXT::ERROR,
        )
        .message_type(
            vk::DebugUtilsMessageTypeFlagsEXT::VALIDATION
                | vk::DebugUtilsMessageTypeFlagsEXT::PERFORMANCE,
        )
        .pfn_user_callback(Some(heard))
        .user_data(Arc::as_ptr(&messages.0).cast_mut().cast())
}

/// The message of the layer if it loses track of a semaphore that the host signals while another
/// thread waits: "most likely a validation bug", mended in the layers of Vulkan 1.3.296.
const LOST_TRACK: &CStr = c"UNASSIGNED-VkSemaphore-state-timeout";

/// Records a message of the validation layer.
unsafe extern "system" fn heard(
    _: vk::DebugUtilsMessageSeverityFlagsEXT,
    _: vk::DebugUtilsMessageTypeFlagsEXT,
    data: *const vk::DebugUtilsMessengerCallbackDataEXT<'_>,
    messages: *mut c_void,
) -> vk::Bool32 {
    // SAFETY: the layer passes a message that is valid until this function returns, and the pointer
    // that it was given. It points to messages that live as long as the instance. Any thread may
    // call, so the messages are locked.
    unsafe {
        let name = (*data).p_message_id_name;
        if !name.is_null() && CStr::from_ptr(name) == LOST_TRACK {
            return vk::FALSE;
        }
        let text = (*data).message_as_c_str().unwrap_or(c"(no text)").to_string_lossy();
        let messages = &*messages.cast::<Mutex<Vec<String>>>();
        messages.lock().unwrap_or_else(PoisonError::into_inner).push(text.into_owned());
    }
    vk::FALSE
}

impl fmt::Debug for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Instance")
            .field("extensions", &self.extensions)
            .field("messages", &self.messages)
            .finish_non_exhaustive()
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: every object made from the instance keeps it alive, so all of them are gone.
        unsafe {
            if let Some((utils, messenger)) = self.messenger.take() {
                utils.destroy_debug_utils_messenger(messenger, None);
            }
            self.raw.destroy_instance(None);
        }
    }
}
