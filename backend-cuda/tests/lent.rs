//! cudarc's objects can be lent while a stream of the context is captured. A test program of its own,
//! since only the first of a process might wait for the context.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

#[allow(dead_code, reason = "the driver is all that is used")]
mod common;

use integrity::Backend;
use planner_core::Stream;
use planner_core::backend::Streams;

#[test]
fn what_is_lent_first_does_not_ruin_a_capture() {
    let (_, backend, machine) = common::emulated();
    let [mut device, mut other] = [0, 1].map(|_| backend.open(machine, 0).unwrap());
    device.occupy(Stream::Compute, 1).unwrap();
    device.begin_capture().unwrap();
    device.occupy(Stream::Compute, 1).unwrap();
    let lent = other.lend(Stream::Compute).unwrap();
    lent.stream.synchronize().unwrap();
    let graph = device.end_capture().unwrap();
    device.launch_graph(&graph, 0).unwrap();
    let point = device.signal(Stream::Compute).unwrap();
    device.block_until(point).unwrap();
}
