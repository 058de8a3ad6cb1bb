//! Measures what mapping, submitting and copying cost on a device, as the tables of
//! `docs/research/vulkan.md`:
//!
//!     backend-vulkan/with-lavapipe cargo run --release -p spillway-backend-vulkan --example vulkan-figures
#![allow(clippy::unwrap_used, reason = "what fails here ends the measurement")]

use backend_vulkan::{Integrity, Options, Vulkan, VulkanDevice};
use planner_core::Stream;
use planner_core::backend::{Chunks, DeviceAddress, HostRange, Paging, Streams, Transfers};
use std::time::{Duration, Instant};

/// Size of the largest copy.
const BYTES: u64 = 128 << 20;
const REPEATS: u32 = 7;
const SUBMITS: u32 = 1000;

fn main() {
    let chosen = Integrity::from_environment(false).unwrap();
    let vulkan = Vulkan::load(false).unwrap();
    let info = vulkan.device(&chosen.options()).unwrap();
    println!("{} ({}, Vulkan {})\n", info.name, info.driver, info.api_version);
    let open = |chunk_bytes| {
        let options = Options { chunk_bytes: Some(chunk_bytes), ..chosen.options() };
        vulkan.open(&options).unwrap()
    };
    println!("| chunk | chunks | map, a chunk | unmap, a chunk |\n|--:|--:|--:|--:|");
    let page_bytes = info.page_bytes;
    for chunk_bytes in [page_bytes, 64 << 10, 2 << 20].iter().filter(|&&c| c >= page_bytes) {
        binds(&mut open(*chunk_bytes));
    }
    let mut device = open(2 << 20);
    println!("\nAn empty step with its signal: {:?}", submits(&mut device));
    println!("\n| copy of | up | down |\n|--:|--:|--:|");
    let at = set_up(&mut device);
    for bytes in [4 << 10, 256 << 10, 2 << 20, 16 << 20, BYTES] {
        copies(&mut device, at, HostRange { offset_bytes: 0, bytes });
    }
}

/// The least of several times.
fn least(mut run: impl FnMut() -> Duration) -> Duration {
    (0..REPEATS).map(|_| run()).min().unwrap()
}

fn finish(device: &mut VulkanDevice, stream: Stream) {
    let point = device.signal(stream).unwrap();
    device.block_until(point).unwrap();
}

/// Chunks in reverse, so that each is bound on its own.
fn binds(device: &mut VulkanDevice) {
    let chunk_bytes = device.chunk_bytes();
    let count = (BYTES / chunk_bytes).min(1000);
    device.create(count).unwrap();
    let at = device.reserve(count).unwrap();
    let address = |chunk| DeviceAddress(at.0 + chunk * chunk_bytes);
    let (mut map, mut unmap) = (Duration::MAX, Duration::MAX);
    for _ in 0..REPEATS {
        let start = Instant::now();
        for chunk in 0..count {
            device.map(address(chunk), Chunks { first: count - 1 - chunk, count: 1 }).unwrap();
        }
        finish(device, Stream::Compute);
        map = map.min(start.elapsed());
        let start = Instant::now();
        for chunk in 0..count {
            device.unmap(address(chunk), 1).unwrap();
        }
        finish(device, Stream::Compute);
        unmap = unmap.min(start.elapsed());
    }
    let [map, unmap] = [map, unmap].map(|time| time.div_f64(count as f64));
    println!("| {} KiB | {count} | {map:.2?} | {unmap:.2?} |", chunk_bytes >> 10);
}

fn submits(device: &mut VulkanDevice) -> Duration {
    least(|| {
        let start = Instant::now();
        for _ in 1..SUBMITS {
            device.signal(Stream::Compute).unwrap();
        }
        finish(device, Stream::Compute);
        start.elapsed()
    }) / SUBMITS
}

/// Creates the host block, with all bytes written, and maps a range of the same size.
fn set_up(device: &mut VulkanDevice) -> DeviceAddress {
    device.create_host(BYTES).unwrap();
    device.write_host(0, &vec![1; BYTES as usize]).unwrap();
    let count = BYTES.div_ceil(device.chunk_bytes());
    device.create(count).unwrap();
    let at = device.reserve(count).unwrap();
    device.map(at, Chunks { first: 0, count }).unwrap();
    at
}

fn copies(device: &mut VulkanDevice, at: DeviceAddress, host: HostRange) {
    let speed = |time: Duration| host.bytes as f64 / time.as_secs_f64() / 1e9;
    let up = least(|| {
        let start = Instant::now();
        device.upload(host, at).unwrap();
        finish(device, Stream::Upload);
        start.elapsed()
    });
    let down = least(|| {
        let start = Instant::now();
        device.download(at, host).unwrap();
        finish(device, Stream::Download);
        start.elapsed()
    });
    println!(
        "| {} KiB | {up:.1?}, {:.2} GB/s | {down:.1?}, {:.2} GB/s |",
        host.bytes >> 10,
        speed(up),
        speed(down)
    );
}
