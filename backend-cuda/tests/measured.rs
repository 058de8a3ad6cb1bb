//! A measurement finds the settings of the emulated driver: the memory that the driver leaves, and
//! the times of launches, waits and ticks.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_cuda::{Cuda, CudaDevice, Measurement, Options};
use emulated_cuda::Emulated;
use planner_core::Stream;
use planner_core::backend::{BackendError, ErrorKind, Paging, Transfers};
use std::process::Command;

/// The settings of the driver, which it reads at its start: a small device with a large
/// context, links with speeds, launches and waits that take time, and a coarse timer.
const SETTINGS: [(&str, u64); 8] = [
    ("EMULATED_CUDA_MEMORY", 64 << 20),
    ("EMULATED_CUDA_GRANULARITY", 64 << 10),
    ("EMULATED_CUDA_CONTEXT_MEMORY", 16 << 20),
    ("EMULATED_CUDA_H2D_BYTES_PER_S", 20_000_000_000),
    ("EMULATED_CUDA_D2H_BYTES_PER_S", 20_000_000_000),
    ("EMULATED_CUDA_LAUNCH_NS", 3000),
    ("EMULATED_CUDA_WAIT_NS", 5000),
    ("EMULATED_CUDA_TIMER_TICK_NS", 1024),
];
const CHUNK_BYTES: u64 = 64 << 10;
const HOST_BYTES: u64 = 1 << 30;

#[test]
fn what_is_measured_holds() {
    if std::env::var_os(SETTINGS[0].0).is_some_and(|set| set == *SETTINGS[0].1.to_string()) {
        return measure();
    }
    let settings = SETTINGS.map(|(name, value)| (name, value.to_string()));
    let program = std::env::current_exe().unwrap();
    let ended = Command::new(program).envs(settings).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
}

fn measure() {
    let driver = Emulated::built_path();
    Emulated::open(&driver).unwrap();
    let cuda = Cuda::load(Some(&driver)).unwrap();
    let options = Options { ordinal: 0, chunk_bytes: Some(CHUNK_BYTES) };
    let measurement = Measurement { options, host_bytes: None };
    let measured = cuda.measure(&measurement, |_, _| ()).unwrap();
    assert!(measured.info.free_bytes <= (64 - 16) << 20, "{:?}", measured.info);
    let [launch_ns, wait_ns] = measured.costs_ns();
    assert!((3000..4000).contains(&launch_ns), "{launch_ns} ns");
    assert!((4500..5500).contains(&wait_ns), "{wait_ns} ns");
    assert_eq!(measured.costs.tick_ns, 1024);
    let host = |host_bytes| cuda.measure(&Measurement { options, host_bytes }, |_, _| ());
    assert_eq!(host(Some(1 << 20)).unwrap().machine.host_bytes, 1 << 20);
    let refused = host(Some(1 << 60)).unwrap_err().to_string();
    assert!(refused.contains("1152921504606846976 bytes cannot be pinned"), "{refused}");
    let opened = || -> CudaDevice {
        let mut device = cuda.open(&options).unwrap();
        device.create_host(HOST_BYTES).unwrap();
        device.occupy(Stream::Compute, 1).unwrap();
        device
    };
    opened().create(measured.machine.device_bytes / CHUNK_BYTES).unwrap();
    // The driver takes memory later, so not all of the free memory can be allocated.
    let all = opened().create(measured.info.free_bytes / CHUNK_BYTES).unwrap_err();
    assert_eq!(all.kind(), ErrorKind::OutOfDeviceMemory);
}
