//! How fast copies from and to pinned memory are, by size, and what a machine file says of it.

use crate::{Bench, CHUNK_BYTES, finish, least};
use backend_cuda::{CudaDevice, DeviceInfo};
use planner_core::backend::{DeviceAddress, HostRange, Transfers};
use planner_core::{Machine, Stream};
use std::time::{Duration, Instant};

/// A device with two ends of a copy.
struct Ends<'b> {
    device: CudaDevice<'b>,
    at: DeviceAddress,
    room: HostRange,
}

impl Ends<'_> {
    /// Copies up and down on different bytes, so many times each, at the same time.
    fn copy(&mut self, bytes: u64, times: [u32; 2]) -> Duration {
        let Self { device, at, room } = self;
        let start = Instant::now();
        let half = room.bytes / 2;
        let [up, down] = times;
        for _ in 0..up {
            device.upload(HostRange { bytes, ..*room }, *at).unwrap();
        }
        for _ in 0..down {
            let to = HostRange { offset_bytes: room.offset_bytes + half, bytes, ..*room };
            device.download(DeviceAddress(at.0 + half), to).unwrap();
        }
        finish(device, Stream::Upload);
        finish(device, Stream::Download);
        start.elapsed()
    }

    /// GB/s of copies of a size: the least time of several.
    fn speed(&mut self, bytes: u64, times: [u32; 2]) -> f64 {
        let time = least(|| self.copy(bytes, times));
        bytes as f64 * f64::from(times[0].max(times[1])) / time.as_secs_f64() / 1e9
    }
}

/// Measures; what plans are made for.
pub(crate) fn measure(bench: &Bench, info: &DeviceInfo) -> Machine {
    let (device, at, room) = bench.set_up();
    let mut ends = Ends { device, at, room };
    println!("GB/s of copies from and to pinned memory, one at a time, eight at once, and eight");
    println!("each way at once (of each direction; both, and compute is busy):\n");
    println!("| size | up | down | 8 up | 8 down | both | both under load |");
    println!("|--:|--:|--:|--:|--:|--:|--:|");
    let most = bench.bytes / 2;
    for bytes in [4 << 10, 64 << 10, 256 << 10, 2 << 20, 16 << 20, most] {
        if bytes > most {
            continue;
        }
        let [up, down] = [[1, 0], [0, 1]].map(|times| ends.speed(bytes, times));
        let [ups, downs] = [[8, 0], [0, 8]].map(|times| ends.speed(bytes, times));
        let both = ends.speed(bytes, [8, 8]);
        ends.device.occupy(Stream::Compute, 50_000_000).unwrap();
        let loaded = ends.speed(bytes, [8, 8]);
        finish(&mut ends.device, Stream::Compute);
        println!(
            "| {} KiB | {up:.2} | {down:.2} | {ups:.2} | {downs:.2} | {both:.2} | {loaded:.2} |",
            bytes >> 10
        );
    }
    let small = least(|| ends.copy(4096, [1, 0]));
    let [h2d, d2h] = [[8, 0], [0, 8]].map(|times| ends.speed(most, times));
    println!("\nThe latency of a copy of 4 KiB, the host's part included: {small:.2?}\n");
    Machine {
        device_bytes: info.free_bytes / 2,
        host_bytes: info.host_bytes,
        chunk_bytes: CHUNK_BYTES,
        h2d_bytes_per_s: (h2d * 1e9) as u64,
        d2h_bytes_per_s: (d2h * 1e9) as u64,
        // What is enqueued ahead pays only the device's part, which is not known by itself.
        transfer_latency_ns: 0,
        map_ns_per_chunk: 40_000,
        unmap_ns_per_chunk: 40_000,
    }
}
