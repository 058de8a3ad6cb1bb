//! A proved plan on a Vulkan device, with integrity kernels.

use crate::backend::{Outcome, Stopped};
use crate::names::Names;
use backend_vulkan::{Counters, Integrity, VulkanDevice, VulkanError};
use indicatif::ProgressBar;
use integrity::{Backend, IntegrityKernels, Rooms};
use planner_core::backend::{BackendError, ErrorKind};
use planner_core::{ExecuteError, HostRooms, Scratch, Verified};
use std::time::{Duration, Instant};
use workloads::planning;

/// The device and its driver, for a person.
pub(crate) fn device(devices: &Integrity) -> Result<String, String> {
    Ok(devices.find()?.device)
}

/// Runs a plan on a device that creates no more chunks than the plan has.
pub(crate) fn run(
    verified: &Verified<'_>,
    names: &Names<'_>,
    iterations: u64,
    devices: &Integrity,
    progress: &ProgressBar,
) -> Result<Outcome, Stopped> {
    let rooms = rooms(verified)?;
    let mut device = devices.open(*verified.graph(), *verified.machine(), 0)?;
    let mut kernels = IntegrityKernels::new(devices, &rooms);
    let ran = iterate(verified, &mut device, &mut kernels, iterations, progress);
    let (set_up, period, map_calls) = ran.map_err(|error| stopped(names, &error))?;
    let digest = rooms.digest(devices, &mut device).map_err(|error| error.to_string())?;
    let Counters { ranges, map_calls: set_up_maps, mapping_ns, .. } = set_up;
    let period_ns = period.as_nanos() as u64;
    Ok(Outcome { ranges, set_up_maps, mapping_ns, period_ns, map_calls, digest })
}

fn stopped(names: &Names<'_>, error: &ExecuteError<VulkanError>) -> Stopped {
    let too_large = match error {
        ExecuteError::Device { error: VulkanError::AddressSpace { .. }, .. } => true,
        ExecuteError::Device { error, .. } => {
            matches!(error.kind(), ErrorKind::OutOfDeviceMemory | ErrorKind::OutOfHostMemory)
        }
        _ => false,
    };
    Stopped { reason: names.vulkan_execute_error(error), too_large }
}

/// Where the host copies will lie.
fn rooms<'g>(verified: &Verified<'g>) -> Result<Rooms<'g>, String> {
    let (graph, plan) = (verified.graph(), verified.plan());
    let mut memory = vec![0; HostRooms::scratch_words(&planning::limits(graph, plan))];
    let rooms = HostRooms::new(graph, verified.machine(), plan, &mut Scratch::new(&mut memory));
    Ok(Rooms::new(*graph, &rooms.map_err(|error| error.to_string())?))
}

/// Runs all iterations; what was done before them, the period, and the map calls in one. The
/// period is that of all but the first.
fn iterate<'g>(
    verified: &Verified<'g>,
    device: &mut VulkanDevice<'g>,
    kernels: &mut IntegrityKernels<'_, 'g, Integrity>,
    iterations: u64,
    progress: &ProgressBar,
) -> Result<(Counters, Duration, f64), ExecuteError<VulkanError>> {
    planning::with_executor(verified, device, kernels, |mut executor, device, kernels| {
        let idle = |device: &mut VulkanDevice<'g>| {
            let at = planner_core::executor::Moment::End;
            device.wait_idle().map_err(|error| ExecuteError::Device { at, error })
        };
        let set_up = device.counters();
        let mut start = Instant::now();
        let mut first_maps = set_up.map_calls;
        for iteration in 1..=iterations {
            executor.run(device, kernels, 1)?;
            if iteration == 1 && iterations > 1 {
                idle(device)?;
                start = Instant::now();
                first_maps = device.counters().map_calls;
            }
            progress.inc(1);
        }
        idle(device)?;
        let steady = iterations.saturating_sub(1).max(1);
        let period = start.elapsed().div_f64(steady as f64);
        let map_calls = (device.counters().map_calls - first_maps) as f64 / steady as f64;
        executor.finish(device)?;
        Ok((set_up, period, map_calls))
    })
}
