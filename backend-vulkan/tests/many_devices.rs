//! A process has no more files, threads and mappings after many devices than after few. The test is
//! a program of its own, since devices of other tests would count too.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_vulkan::{Integrity, Options, Vulkan};
use integrity::Backend;
use planner_core::Stream;
use planner_core::backend::{Chunks, HostRange, Paging, Streams, Transfers};
use std::fs;
use std::process::ExitCode;

fn main() -> ExitCode {
    let chosen = Integrity::from_environment(false).unwrap();
    let missing = if cfg!(target_os = "linux") {
        chosen.find().err()
    } else {
        Some("only Linux lists the files and mappings of a process".to_owned())
    };
    let test = move || dropped_devices_leave_nothing(&chosen.options());
    test_harness::with_device(missing, [("dropped_devices_leave_nothing", test)])
}

fn dropped_devices_leave_nothing(options: &Options<'_>) {
    const DEVICES: u64 = 100;
    // The driver and the allocator keep memory after the first devices.
    (0..10).for_each(|_| use_device(options));
    let few = possessions();
    (0..DEVICES).for_each(|_| use_device(options));
    let many = possessions();
    for ((what, few), (_, many)) in few.into_iter().zip(many) {
        assert!(many < few + DEVICES / 10, "{what}: first {few}, then {many}");
    }
}

/// Opens a device, uses each of its parts, and drops it.
fn use_device(options: &Options<'_>) {
    let kernel = "@group(0) @binding(0) var<storage, read_write> x: array<u32>;
        @compute @workgroup_size(1) fn one() { x[9] = 1u; }";
    let mut device = Vulkan::load(false).unwrap().open(options).unwrap();
    let bytes = device.chunk_bytes();
    let range = HostRange { offset_bytes: 0, bytes };
    device.create(1).unwrap();
    device.create_host(bytes).unwrap();
    let at = device.reserve(1).unwrap();
    device.map(at, Chunks { first: 0, count: 1 }).unwrap();
    device.upload(range, at).unwrap();
    let uploaded = device.signal(Stream::Upload).unwrap();
    device.wait(Stream::Compute, uploaded).unwrap();
    let kernel = device.kernel(kernel, "one").unwrap();
    let bindings = [device.range(at, 64).unwrap(), device.working_memory(64).unwrap()];
    let mut compute = device.compute().unwrap();
    for binding in bindings {
        compute.dispatch(kernel, &[binding], &[], [1, 1, 1]).unwrap();
    }
    let computed = device.signal(Stream::Compute).unwrap();
    device.wait(Stream::Download, computed).unwrap();
    device.download(at, range).unwrap();
    let downloaded = device.signal(Stream::Download).unwrap();
    device.block_until(downloaded).unwrap();
}

/// The files, threads, mappings and addresses of this process.
fn possessions() -> [(&'static str, u64); 4] {
    let entries = |folder| fs::read_dir(folder).unwrap().count() as u64;
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let address_bytes = maps.lines().map(|line| {
        let (first, rest) = line.split_once('-').unwrap();
        let (end, _) = rest.split_once(' ').unwrap();
        let [first, end] = [first, end].map(|at| u64::from_str_radix(at, 16).unwrap());
        end - first
    });
    [
        ("files", entries("/proc/self/fd")),
        ("threads", entries("/proc/self/task")),
        ("mappings", maps.lines().count() as u64),
        ("MiB of addresses", address_bytes.sum::<u64>() >> 20),
    ]
}
