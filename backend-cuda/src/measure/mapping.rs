//! The time that the host needs to map, to give access and to unmap, as an executor does.

use super::fit::median;
use crate::{Cuda, Options, Unavailable};
use planner_core::Stream;
use planner_core::backend::{Chunks, Paging};
use std::time::Instant;

/// The number of chunks in a range, which get access together: a tensor of 16 MiB if chunks have 2
/// MiB.
const RANGE_CHUNKS: u64 = 8;
/// The number of ranges that are mapped. Their median counts.
const REPEATS: usize = 15;
/// How long the device is kept busy meanwhile.
const BUSY_NS: u64 = 20_000_000;

/// Time of the host per chunk, for chunks that are mapped side by side.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mapping {
    /// The size of a chunk.
    pub chunk_bytes: u64,
    /// Time to map a chunk, to give access to it, and to unmap it, while the device is idle.
    pub idle_ns: [f64; 3],
    /// The same times while the device computes.
    pub busy_ns: [f64; 3],
}

impl Mapping {
    /// Whether one of the calls waits until the device has no work.
    #[must_use]
    pub fn waits_for_work(&self) -> bool {
        let most_ns = self.busy_ns.iter().fold(0.0f64, |most, &ns| most.max(ns));
        most_ns * RANGE_CHUNKS as f64 > BUSY_NS as f64 / 2.0
    }

    /// The time that an executor needs to map and to unmap a chunk while the device computes,
    /// without the device's own compute time.
    #[must_use]
    pub fn paid_ns(&self) -> [f64; 2] {
        let [map, access, unmap] = if self.waits_for_work() { self.idle_ns } else { self.busy_ns };
        [map + access, unmap]
    }
}

/// Measures with chunks of the size in the options.
pub(super) fn measure(cuda: &Cuda, options: &Options) -> Result<Mapping, Unavailable> {
    let mut device = super::open(cuda, options)?;
    device.create(RANGE_CHUNKS)?;
    let at = device.reserve(RANGE_CHUNKS)?;
    let mut times_ns = [(); 2].map(|()| [(); 3].map(|()| Vec::new()));
    for (busy, times_ns) in times_ns.iter_mut().enumerate() {
        for _ in 0..REPEATS {
            if busy == 1 {
                device.occupy(Stream::Compute, BUSY_NS)?;
            }
            let start = Instant::now();
            device.map(at, Chunks { first: 0, count: RANGE_CHUNKS })?;
            let mapped = Instant::now();
            device.allow_access()?;
            let opened = Instant::now();
            device.unmap(at, RANGE_CHUNKS)?;
            let times = [mapped - start, opened - mapped, opened.elapsed()];
            for (all, time) in times_ns.iter_mut().zip(times) {
                all.push(time.as_nanos() as f64 / RANGE_CHUNKS as f64);
            }
            device.wait_idle()?;
        }
    }
    let [idle_ns, busy_ns] =
        times_ns.map(|kinds| kinds.map(|times| median(times).unwrap_or_default()));
    Ok(Mapping { chunk_bytes: device.chunk_bytes(), idle_ns, busy_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_device_computes_is_not_what_mapping_costs() {
        let idle_ns = [1000.0, 2000.0, 500.0];
        let busy_ns = [1100.0, 2200.0, 600.0];
        let mapping = Mapping { chunk_bytes: 4096, idle_ns, busy_ns };
        assert!(!mapping.waits_for_work());
        let paid_ns = |mapping: Mapping| mapping.paid_ns().map(|ns| ns as u64);
        assert_eq!(paid_ns(mapping), [3300, 600]);
        // The time of the whole kernel, divided by the chunks of a range.
        let busy_ns = [1100.0, 2200.0, BUSY_NS as f64 / RANGE_CHUNKS as f64];
        let mapping = Mapping { busy_ns, ..mapping };
        assert!(mapping.waits_for_work());
        assert_eq!(paid_ns(mapping), [3000, 500]);
    }
}
