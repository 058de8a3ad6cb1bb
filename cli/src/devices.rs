//! `spillway devices`.

use crate::backend::cuda_devices;
use crate::failure::Failure;
use crate::output;
use backend_cuda::{Cuda, Integrity};
use backend_vulkan::{DeviceInfo, Unavailable, Vulkan};
use clap::Args;
use serde::Serialize;
use spillway::units::bytes;
use workloads::Shown;

/// Show the devices of this machine that plans can run on
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct Report {
    devices: Vec<Entry>,
    /// Backends without a device.
    unavailable: Vec<Missing>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Entry {
    Vulkan(Device),
    Cuda(CudaDevice),
}

/// A CUDA device, with what a plan for it has to keep to.
#[derive(Serialize)]
struct CudaDevice {
    backend: &'static str,
    name: String,
    driver: String,
    memory_bytes: u64,
    /// What nobody uses now.
    free_bytes: u64,
    /// Chunks are multiples of it.
    page_bytes: u64,
}

/// A Vulkan device, with what a plan for it has to keep to.
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
    let report = report()?;
    if arguments.json { output::print_json(&report) } else { output::print(shown(&report)) }
}

fn report() -> Result<Report, Failure> {
    let mut report = Report { devices: Vec::new(), unavailable: Vec::new() };
    match Vulkan::load(false).and_then(|vulkan| vulkan.devices()) {
        Ok(devices) if devices.is_empty() => {
            let reason = "there is no device of Vulkan 1.3 or later".to_owned();
            report.unavailable.push(Missing { backend: "vulkan", reason });
        }
        Ok(devices) => {
            report.devices.extend(devices.into_iter().map(|info| Entry::Vulkan(info.into())));
        }
        Err(Unavailable(reason)) => {
            report.unavailable.push(Missing { backend: "vulkan", reason });
        }
    }
    match cuda(&cuda_devices()?) {
        Ok(devices) => report.devices.extend(devices.into_iter().map(Entry::Cuda)),
        Err(Unavailable(reason)) => {
            report.unavailable.push(Missing { backend: "cuda", reason });
        }
    }
    Ok(report)
}

fn cuda(devices: &Integrity) -> Result<Vec<CudaDevice>, Unavailable> {
    let cuda = Cuda::load(devices.driver.as_deref())?;
    let device = |ordinal| {
        let info = cuda.device(ordinal)?;
        Ok(CudaDevice {
            backend: "cuda",
            name: info.name,
            driver: info.driver,
            memory_bytes: info.memory_bytes,
            free_bytes: info.free_bytes,
            page_bytes: info.granularity_bytes,
        })
    };
    (0..cuda.count()?).map(device).collect()
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
        text += &match device {
            Entry::Vulkan(device) => device.shown(),
            Entry::Cuda(device) => device.shown(),
        };
    }
    for Missing { backend, reason } in &report.unavailable {
        text += &format!("{backend}: none, since {}\n", Shown::message(reason));
    }
    text
}

impl CudaDevice {
    fn shown(&self) -> String {
        let backend = self.backend;
        let (name, driver) = (Shown::name(&self.name), Shown::name(&self.driver));
        format!(
            "{backend}: {name}\n    driver {driver}, memory {}, of which {} free\n    pages of {}\n",
            bytes(self.memory_bytes),
            bytes(self.free_bytes),
            bytes(self.page_bytes)
        )
    }
}

impl Device {
    fn shown(&self) -> String {
        let Self { backend, api_version, .. } = self;
        let (name, driver) = (Shown::name(&self.name), Shown::name(&self.driver));
        let mut text = format!(
            "{backend}: {name}\n    driver {driver}, Vulkan {api_version}, memory {}\n",
            bytes(self.memory_bytes)
        );
        text += &match &self.refusal {
            Some(reason) => format!("    cannot be used: {}\n", Shown::message(reason)),
            None => format!(
                "    pages of {}, {} of sparse addresses, bindings up to {}, {}\n",
                bytes(self.page_bytes),
                bytes(self.address_space_bytes),
                bytes(self.binding_bytes),
                match self.queues {
                    1 => "one queue for all".to_owned(),
                    queues => format!("{queues} queues"),
                }
            ),
        };
        text
    }
}
