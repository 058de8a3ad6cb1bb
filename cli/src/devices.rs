//! `spillway devices`.

use crate::failure::Failure;
use crate::output;
use crate::units::bytes;
use backend_vulkan::{DeviceInfo, Unavailable, Vulkan};
use clap::Args;
use serde::Serialize;

/// Show the devices of this machine that plans can run on
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Print one JSON object and nothing else
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    devices: Vec<Device>,
    /// Backends without a device.
    unavailable: Vec<Missing>,
}

/// A device, with what a plan for it has to keep to.
#[derive(Serialize)]
struct Device {
    backend: &'static str,
    name: String,
    driver: String,
    api_version: String,
    memory_bytes: u64,
    /// Chunks are multiples of it.
    page_bytes: u64,
    /// Bounds the sum of all virtual ranges.
    address_space_bytes: u64,
    /// The most that a kernel binds at once.
    binding_bytes: u64,
    queues: usize,
    /// Why it cannot be used; none where it can.
    refusal: Option<String>,
}

#[derive(Serialize)]
struct Missing {
    backend: &'static str,
    reason: String,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let report = report();
    if arguments.json { output::print_json(&report) } else { output::print(shown(&report)) }
}

fn report() -> Report {
    match Vulkan::load(false).and_then(|vulkan| vulkan.devices()) {
        Ok(devices) => {
            let devices: Vec<_> = devices.into_iter().map(Device::from).collect();
            let reason = "there is no device of Vulkan 1.3 or later".to_owned();
            let none = devices.is_empty().then_some(Missing { backend: "vulkan", reason });
            Report { devices, unavailable: none.into_iter().collect() }
        }
        Err(Unavailable(reason)) => {
            Report { devices: Vec::new(), unavailable: vec![Missing { backend: "vulkan", reason }] }
        }
    }
}

impl From<DeviceInfo> for Device {
    fn from(info: DeviceInfo) -> Self {
        Self {
            backend: "vulkan",
            name: info.name,
            driver: info.driver,
            api_version: info.api_version,
            memory_bytes: info.memory_bytes,
            page_bytes: info.page_bytes,
            address_space_bytes: info.address_space_bytes,
            binding_bytes: info.binding_bytes,
            queues: info.queues,
            refusal: info.refusal,
        }
    }
}

fn shown(report: &Report) -> String {
    let mut text = "sim\n    a simulated device of any machine (--machine list)\n".to_owned();
    for device in &report.devices {
        let Device { backend, name, driver, api_version, .. } = device;
        text += &format!(
            "{backend}: {name}\n    driver {driver}, Vulkan {api_version}, memory {}\n",
            bytes(device.memory_bytes)
        );
        text += &match &device.refusal {
            Some(reason) => format!("    cannot be used: {reason}\n"),
            None => format!(
                "    pages of {}, {} of sparse addresses, bindings up to {}, {}\n",
                bytes(device.page_bytes),
                bytes(device.address_space_bytes),
                bytes(device.binding_bytes),
                match device.queues {
                    1 => "one queue for all".to_owned(),
                    queues => format!("{queues} queues"),
                }
            ),
        };
    }
    for Missing { backend, reason } in &report.unavailable {
        text += &format!("{backend}: none, since {reason}\n");
    }
    text
}
