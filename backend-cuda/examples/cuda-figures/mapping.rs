//! What it costs to map a chunk, to give access to it, and to unmap it, by its size.

use crate::{Bench, CHUNK_BYTES, REPEATS};
use planner_core::backend::{Chunks, DeviceAddress, Paging};
use std::time::{Duration, Instant};

/// Chunks that are mapped, at most.
const MOST_CHUNKS: u64 = 64;

pub(crate) fn measure(bench: &Bench, granularity_bytes: u64) {
    println!("| chunk | chunks | map, a chunk | set access, a chunk | unmap, a chunk |");
    println!("|--:|--:|--:|--:|--:|");
    let mut chunk_bytes = granularity_bytes.max(CHUNK_BYTES);
    while chunk_bytes <= bench.bytes / 2 {
        at_size(bench, chunk_bytes);
        chunk_bytes *= 4;
    }
    println!();
}

/// Maps chunks one by one, and gives access to all of them at once.
fn at_size(bench: &Bench, chunk_bytes: u64) {
    let mut device = bench.open(chunk_bytes);
    let count = (bench.bytes / chunk_bytes).min(MOST_CHUNKS);
    device.create(count).unwrap();
    let at = device.reserve(count).unwrap();
    let mut least = [Duration::MAX; 3];
    for _ in 0..REPEATS {
        let start = Instant::now();
        for chunk in 0..count {
            let place = DeviceAddress(at.0 + chunk * chunk_bytes);
            device.map(place, Chunks { first: count - 1 - chunk, count: 1 }).unwrap();
        }
        let mapped = Instant::now();
        device.compute().unwrap();
        let opened = Instant::now();
        device.unmap(at, count).unwrap();
        let times = [mapped - start, opened - mapped, opened.elapsed()];
        for (least, time) in least.iter_mut().zip(times) {
            *least = time.min(*least);
        }
    }
    let [map, access, unmap] = least.map(|time| time.div_f64(count as f64));
    let kib = chunk_bytes >> 10;
    println!("| {kib} KiB | {count} | {map:.2?} | {access:.2?} | {unmap:.2?} |");
}
