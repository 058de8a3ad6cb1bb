//! How long this machine takes to set up memory.
#![allow(unsafe_code, reason = "pages are touched at their addresses")]

use super::{MappedDevice, memory};
use crate::HostError;
use planner_core::backend::{Chunks, DeviceAddress, Paging};
use std::time::Instant;

const CHUNKS: u64 = 256;
const PAGES_PER_CHUNK: u64 = 16;

/// Times of this machine to set up the memory of a [`MappedDevice`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetUpCosts {
    /// Time to allocate a page of the file.
    pub create_ns_per_page: u64,
    /// Time to map a run of consecutive chunks.
    pub map_ns: u64,
    /// Time to touch a page for the first time in one of its mappings.
    pub touch_ns_per_page: u64,
}

impl SetUpCosts {
    /// Measures 16 MiB, which takes some milliseconds.
    ///
    /// # Errors
    /// The errors of the system.
    pub fn measure() -> Result<Self, HostError> {
        let page_bytes = memory::page_bytes();
        let chunk_bytes = page_bytes * PAGES_PER_CHUNK;
        let pages = CHUNKS * PAGES_PER_CHUNK;
        let mut device = MappedDevice::new(chunk_bytes, chunk_bytes * CHUNKS)?;
        let create_ns = time_ns(|| device.create(CHUNKS))?;
        let start = device.reserve(CHUNKS)?;
        // In reverse order, the system cannot join a mapping to the one before.
        let map_ns = time_ns(|| {
            (0..CHUNKS).try_for_each(|chunk| {
                let chunks = Chunks { first: CHUNKS - 1 - chunk, count: 1 };
                device.map(DeviceAddress(start.0 + chunk * chunk_bytes), chunks)
            })
        })?;
        let byte = [0u8];
        let touch_ns = time_ns(|| {
            for page in 0..pages {
                let at = start.0 + page * page_bytes;
                // SAFETY: all pages are mapped, and nothing else uses them.
                unsafe { memory::copy(byte.as_ptr() as u64, at, 1) };
            }
            Ok(())
        })?;
        Ok(Self {
            create_ns_per_page: create_ns / pages,
            map_ns: map_ns / CHUNKS,
            touch_ns_per_page: touch_ns / pages,
        })
    }

    /// The time to create a device of `device_bytes` bytes, to make `mappings` mappings of
    /// `mapped_bytes` bytes in total, and to touch each of their pages for the first time.
    #[must_use]
    pub fn time_ns(&self, device_bytes: u64, mappings: u64, mapped_bytes: u64) -> u64 {
        let pages = |bytes: u64| bytes.div_ceil(memory::page_bytes());
        let create_ns = pages(device_bytes).saturating_mul(self.create_ns_per_page);
        let touch_ns = pages(mapped_bytes).saturating_mul(self.touch_ns_per_page);
        mappings.saturating_mul(self.map_ns).saturating_add(create_ns).saturating_add(touch_ns)
    }
}

fn time_ns(run: impl FnOnce() -> Result<(), HostError>) -> Result<u64, HostError> {
    let start = Instant::now();
    run()?;
    Ok(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX))
}
