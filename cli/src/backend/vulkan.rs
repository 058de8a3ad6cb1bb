//! Vulkan devices as real ones.

use super::entry::{Device, Entry, Runs};
use super::real::{Mapping, Real};
use super::suite;
use crate::names;
use backend_checks::Unavailable;
use backend_vulkan::{DeviceInfo, Integrity, Vulkan, VulkanDevice, VulkanError};
use serde_json::json;
use spillway::names::Mentions;
use spillway::units::bytes;
use workloads::Shown;

pub(super) const ENTRY: Entry = Entry {
    name: "vulkan",
    help: "A Vulkan device of this machine (SPILLWAY_VULKAN_DEVICE=NAME picks one by a part of \
           its name)",
    devices: Some(devices),
    runs: Some(Runs { seeds: false, graphs: false, open: |_| Ok(Box::new(chosen(false))) }),
    // With the layer that checks every call, where it is installed.
    conformance: || Ok(suite::report(&chosen(Vulkan::load(true).is_ok()))),
};

/// Names a part of the name of the Vulkan device that is to be used.
const VULKAN_DEVICE: &str = "SPILLWAY_VULKAN_DEVICE";

/// The Vulkan devices of this machine, of which one may be picked from outside.
fn chosen(validation: bool) -> Integrity {
    Integrity { device: std::env::var(VULKAN_DEVICE).ok(), validation }
}

fn devices() -> Result<Vec<Device>, Unavailable> {
    let devices = Vulkan::load(false)?.devices()?;
    if devices.is_empty() {
        return Err(Unavailable("no device supports Vulkan 1.3 or later".to_owned()));
    }
    Ok(devices.iter().map(listed).collect())
}

/// A device, with its limits for plans.
fn listed(info: &DeviceInfo) -> Device {
    let fields = json!({
        "backend": ENTRY.name,
        "name": info.name,
        "driver": info.driver,
        "api_version": info.api_version,
        "memory_bytes": info.memory_bytes,
        // Chunks are multiples of it.
        "page_bytes": info.page_bytes,
        // Bounds the sum of all virtual ranges.
        "address_space_bytes": info.address_space_bytes,
        // The most that a kernel binds at once.
        "binding_bytes": info.binding_bytes,
        "queues": info.queues,
        // Why it cannot be used; none where it can.
        "refusal": info.refusal,
    });
    Device { fields, text: text(info) }
}

fn text(info: &DeviceInfo) -> String {
    let (name, driver) = (Shown::name(&info.name), Shown::name(&info.driver));
    let head = format!(
        "{}: {name}\n    driver {driver}, Vulkan {}, memory {}\n",
        ENTRY.name,
        info.api_version,
        bytes(info.memory_bytes)
    );
    let use_of_it = match &info.refusal {
        Some(reason) => format!("    cannot be used: {}\n", Shown::message(reason)),
        None => format!(
            "    pages of {}, {} of sparse addresses, bindings up to {}, {}\n",
            bytes(info.page_bytes),
            bytes(info.address_space_bytes),
            bytes(info.binding_bytes),
            match info.queues {
                1 => "one queue for all".to_owned(),
                queues => format!("{queues} queues"),
            }
        ),
    };
    head + &use_of_it
}

impl Real for Integrity {
    fn mapping(device: &VulkanDevice) -> Mapping {
        let counters = device.counters();
        Mapping { ranges: counters.ranges, calls: counters.map_calls, ns: counters.mapping_ns }
    }

    fn wait_idle(device: &mut VulkanDevice) -> Result<(), VulkanError> {
        device.wait_idle()
    }

    fn mentioned(error: &VulkanError) -> Mentions {
        match error {
            VulkanError::Refused(refused) => names::refused_mentions(refused),
            _ => Mentions::default(),
        }
    }

    fn lacks_addresses(error: &VulkanError) -> bool {
        matches!(error, VulkanError::AddressSpace { .. })
    }
}
