//! Runs plans on Vulkan devices.

use super::entry::{Device, Entry, Runs};
use super::real::{Mapping, Real};
use super::suite;
use crate::failure::Failure;
use backend_checks::Unavailable;
use backend_vulkan::{
    AddressSpace, DeviceInfo, Integrity, QueueIndex, Queues, Vulkan, VulkanDevice, VulkanError,
};
use planner_core::Stream;
use serde_json::json;
use spillway::units::bytes;
use std::convert::Infallible;
use workloads::Shown;

pub(super) const ENTRY: Entry = Entry {
    name: "vulkan",
    help: "A Vulkan device of this machine (SPILLWAY_VULKAN_DEVICE=NAME selects the device by a \
           part of its name; SPILLWAY_VULKAN_SPARSE_BYTES=N replaces the driver's limit of \
           virtual addresses)",
    devices: Some(devices),
    runs: Some(Runs { seeds: false, graphs: false, open: |_| Ok(Box::new(chosen(false)?)) }),
    // With the validation layer, if it is installed.
    conformance: |chunk_bytes| suite::report(chosen(Vulkan::load(true).is_ok())?, chunk_bytes),
};

/// The Vulkan device that the environment selects, or the default one.
fn chosen(validation: bool) -> Result<Integrity, Failure> {
    Integrity::from_environment(validation)
        .map_err(|reason| Failure::bad_input(Shown::message(reason.to_string()).to_string()))
}

fn devices() -> Result<Vec<Device>, Unavailable> {
    let sparse_bytes = Integrity::from_environment(false)?.sparse_bytes;
    let devices = Vulkan::load(false)?.devices(sparse_bytes)?;
    if devices.is_empty() {
        return Err(Unavailable("no device supports Vulkan 1.3 or later".to_owned()));
    }
    Ok(devices.iter().map(listed).collect())
}

/// A device with its limits, for the list of devices.
fn listed(info: &DeviceInfo) -> Device {
    let fields = json!({
        "backend": ENTRY.name,
        "name": info.name,
        "driver": info.driver,
        "api_version": info.api_version,
        "memory_bytes": info.memory_bytes,
        // The chunk size is a multiple of it.
        "page_bytes": info.page_bytes,
        // The limit on the sum of all virtual ranges.
        "address_space_bytes": info.address_space.bytes,
        // The driver's figure for it.
        "reported_address_space_bytes": info.address_space.reported_bytes,
        // The largest virtual range.
        "range_bytes": info.range_bytes,
        // The largest binding of a kernel.
        "binding_bytes": info.binding_bytes,
        "queues": info.queues.map_or(0, |queues| queues.count()),
        // The queue of each stream: its family, and its index in the family.
        "stream_queues": info.queues.map(|Queues { streams: [compute, upload, download], .. }| {
            json!({ "compute": compute, "upload": upload, "download": download })
        }),
        // Why the device cannot be used; null if it can.
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
            "    pages of {}, {} of sparse addresses{}, ranges up to {}, bindings up to {}\n{}",
            bytes(info.page_bytes),
            bytes(info.address_space.bytes),
            replaced(info.address_space),
            bytes(info.range_bytes),
            bytes(info.binding_bytes),
            info.queues.map_or_else(String::new, |queues| queues_text(&queues)),
        ),
    };
    head + &use_of_it
}

/// The driver's limit, if the environment replaces it.
fn replaced(AddressSpace { bytes: limit_bytes, reported_bytes }: AddressSpace) -> String {
    if limit_bytes == reported_bytes {
        return String::new();
    }
    format!(" (the driver reports {})", bytes(reported_bytes))
}

/// The queue of each stream, with a warning if streams share a queue.
fn queues_text(queues: &Queues) -> String {
    let named = ["compute", "upload", "download"].into_iter().zip(queues.streams);
    let shown = |(family, index): QueueIndex| format!("queue {index} of family {family}");
    let streams = named.clone().map(|(stream, queue)| format!("{stream} on {}", shown(queue)));
    let mut text = format!("    {}\n", streams.collect::<Vec<_>>().join(", "));
    let mut distinct = queues.streams.to_vec();
    distinct.sort_unstable();
    distinct.dedup();
    for queue in distinct {
        let on_it = named.clone().filter(|&(_, of)| of == queue).map(|(stream, _)| stream);
        let on_it: Vec<_> = on_it.collect();
        if on_it.len() > 1 {
            let (on_it, queue) = (on_it.join(" and "), shown(queue));
            text += &format!("    warning: {on_it} share {queue} and do not overlap\n");
        }
    }
    text
}

impl Real for Integrity {
    type Timestamp = Infallible;

    fn timestamp(_: &VulkanDevice, _: Stream) -> Result<Option<Infallible>, VulkanError> {
        Ok(None)
    }

    fn ns_between(&start: &Infallible, _: &Infallible) -> Result<f64, VulkanError> {
        match start {}
    }

    fn mapping(device: &VulkanDevice) -> Mapping {
        let counters = device.counters();
        Mapping { ranges: counters.ranges, calls: counters.map_calls, ns: counters.mapping_ns }
    }

    fn wait_idle(device: &mut VulkanDevice) -> Result<(), VulkanError> {
        device.wait_idle()
    }

    fn lacks_addresses(error: &VulkanError) -> bool {
        matches!(error, VulkanError::AddressSpace { .. } | VulkanError::Range { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_share_a_queue_are_warned_of() {
        let text = |streams| queues_text(&Queues { streams, binding: (2, 0) });
        assert_eq!(
            text([(0, 0), (1, 0), (1, 1)]),
            "    compute on queue 0 of family 0, upload on queue 0 of family 1, download on \
             queue 1 of family 1\n"
        );
        let warned = |streams| text(streams).lines().nth(1).map(str::to_owned);
        let of_copies =
            "    warning: upload and download share queue 0 of family 1 and do not overlap";
        assert_eq!(warned([(0, 0), (1, 0), (1, 0)]).as_deref(), Some(of_copies));
        let all = "    warning: compute and upload and download share queue 0 of family 0 and do not overlap";
        assert_eq!(warned([(0, 0); 3]).as_deref(), Some(all));
        for streams in [[(0, 0); 3], [(0, 0), (1, 0), (0, 0)]] {
            assert_eq!(text(streams).lines().count(), 2, "{streams:?}");
        }
    }
}
