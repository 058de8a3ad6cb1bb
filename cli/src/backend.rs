//! What carries a plan out.

use crate::failure::Failure;
use crate::names::Names;
use crate::{cuda, real, simulate};
use backend_cuda::Integrity as CudaDevices;
use backend_vulkan::Integrity as VulkanDevices;
use indicatif::ProgressBar;
use planner_core::Verified;
use workloads::Shown;

/// Names a part of the name of the Vulkan device that is to be used.
const VULKAN_DEVICE: &str = "SPILLWAY_VULKAN_DEVICE";

/// A backend, as the user chose it.
#[derive(Clone, Debug)]
pub(crate) enum Backend {
    /// The simulated device, in an order drawn from a seed if there is one.
    Sim(Option<u64>),
    /// A Vulkan device.
    Vulkan(VulkanDevices),
    /// A CUDA device, with iterations as graphs or not.
    Cuda { devices: CudaDevices, graph: bool },
}

/// What a run showed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outcome {
    /// Virtual ranges reserved before the first iteration.
    pub(crate) ranges: u64,
    /// Calls of `map` before the first iteration.
    pub(crate) set_up_maps: u64,
    /// Time that the host was busy with them.
    pub(crate) mapping_ns: u64,
    /// Time from one iteration to the next.
    pub(crate) period_ns: u64,
    /// Calls of `map` in one iteration, on average over all but the first.
    pub(crate) map_calls: f64,
    /// One number for all states after the last iteration.
    pub(crate) digest: u64,
}

/// Why a plan did not run to its end.
#[derive(Clone, Debug)]
pub(crate) struct Stopped {
    pub(crate) reason: String,
    /// Whether the device is too small for it.
    pub(crate) too_large: bool,
}

impl From<String> for Stopped {
    fn from(reason: String) -> Self {
        Self { reason, too_large: false }
    }
}

impl Backend {
    /// The backend of that name.
    pub(crate) fn choose(name: &str, seed: Option<u64>, graph: bool) -> Result<Self, Failure> {
        if graph && name != "cuda" {
            return Err(Failure::bad_input("--graph is for the backend cuda"));
        }
        match (name, seed) {
            ("sim", seed) => Ok(Self::Sim(seed)),
            ("vulkan", None) => Ok(Self::Vulkan(vulkan_devices())),
            ("cuda", None) => Ok(Self::Cuda { devices: cuda_devices()?, graph }),
            ("vulkan" | "cuda", Some(_)) => Err(Failure::bad_input(
                "--seed orders the simulated device; a real one orders itself",
            )),
            _ => Err(Failure::bad_input(format!(
                "there is no backend {:?}; there are sim, vulkan and cuda",
                Shown::name(name)
            ))),
        }
    }

    /// Its name.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Sim(_) => "sim",
            Self::Vulkan(_) => "vulkan",
            Self::Cuda { .. } => "cuda",
        }
    }

    /// The device, for a person; a simulated one is called after its machine.
    pub(crate) fn device(&self, machine: &str) -> Result<String, Failure> {
        match self {
            Self::Sim(_) => Ok(format!("simulated {machine}")),
            Self::Vulkan(devices) => real::device(devices).map_err(unavailable),
            Self::Cuda { devices, .. } => real::device(devices).map_err(unavailable),
        }
    }

    /// Runs a plan.
    pub(crate) fn run(
        &self,
        verified: &Verified<'_>,
        names: &Names<'_>,
        iterations: u64,
        progress: &ProgressBar,
    ) -> Result<Outcome, Stopped> {
        match self {
            Self::Sim(seed) => Ok(simulate::run(verified, names, iterations, *seed, progress)?),
            Self::Vulkan(devices) => real::run(verified, names, devices, |device, kernels| {
                real::iterate::<VulkanDevices>(verified, device, kernels, iterations, progress)
            }),
            Self::Cuda { devices, graph: false } => {
                real::run(verified, names, devices, |device, kernels| {
                    real::iterate::<CudaDevices>(verified, device, kernels, iterations, progress)
                })
            }
            Self::Cuda { devices, graph: true } => {
                let cycle = cuda::cycle(verified, iterations)?;
                real::run(verified, names, devices, |device, kernels| {
                    cuda::iterate(verified, device, kernels, cycle, iterations, progress)
                })
            }
        }
    }

    /// The period that a plan is to have, where it is another than the plan's own.
    pub(crate) fn predicted_ns(&self, verified: &Verified<'_>, iterations: u64) -> Option<u64> {
        match self {
            Self::Cuda { graph: true, .. } => {
                cuda::cycle(verified, iterations).ok()?.predicted_ns(verified)
            }
            _ => None,
        }
    }

    /// The same with work in the order in which it is submitted.
    pub(crate) fn in_order(&self) -> Self {
        match self {
            Self::Sim(_) => Self::Sim(None),
            Self::Cuda { devices, .. } => Self::Cuda { devices: devices.clone(), graph: false },
            vulkan @ Self::Vulkan(_) => vulkan.clone(),
        }
    }
}

/// What a device or its driver says.
fn unavailable(reason: String) -> Failure {
    Failure::cannot(Shown::message(reason).to_string())
}

/// The Vulkan devices of this machine, of which one may be picked from outside.
pub(crate) fn vulkan_devices() -> VulkanDevices {
    VulkanDevices { device: std::env::var(VULKAN_DEVICE).ok(), validation: false }
}

/// The CUDA device of this machine, and its driver, of which others may be picked from outside.
pub(crate) fn cuda_devices() -> Result<CudaDevices, Failure> {
    CudaDevices::from_environment()
        .map_err(|reason| Failure::bad_input(Shown::message(reason.to_string()).to_string()))
}
