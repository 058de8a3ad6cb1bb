//! The mappings of a process are limited. The test takes all of them, so it runs in its own
//! process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use backend_host::{HostError, MappedDevice};
use planner_core::backend::{Chunks, DeviceAddress, Paging};

#[test]
fn an_error_says_that_larger_chunks_take_fewer_mappings() {
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap();
    let limit: u64 = limit.trim().parse().unwrap();
    let chunk_bytes = 4096 * 16;
    let mut device = MappedDevice::new(chunk_bytes, chunk_bytes).unwrap();
    device.create(1).unwrap();
    let at = device.reserve(limit).unwrap();
    // The chunk is mapped again next to itself, so each mapping counts on its own.
    let map = |chunk: u64| {
        let at = DeviceAddress(at.0 + chunk * chunk_bytes);
        device.map(at, Chunks { first: 0, count: 1 })
    };
    let error = (0..limit).map(map).find_map(Result::err).unwrap();
    assert_eq!(error, HostError::Mappings);
    assert!(error.to_string().contains("larger chunks take fewer"));
}
