//! Machines, from plausible to absurd.

use crate::numbers::numbers;
use planner_core::{Machine, MachineParameters};
use proptest::prelude::*;

/// One quantity of a machine changed.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// The memory of the device.
    Device(u64),
    /// The memory of the host.
    Host(u64),
    /// The size of a chunk.
    Chunk(u64),
    /// The speed of a link.
    Up(u64),
    /// The speed of the other link.
    Down(u64),
    /// The time that every transfer takes.
    Latency(u64),
    /// The time that it takes to map a chunk.
    Map(u64),
    /// The time that it takes to unmap a chunk.
    Unmap(u64),
}

/// Any quantity, with any number.
pub fn changes() -> impl Strategy<Value = Change> {
    (0..8usize, numbers()).prop_map(|(field, number)| {
        let change = [
            Change::Device,
            Change::Host,
            Change::Chunk,
            Change::Up,
            Change::Down,
            Change::Latency,
            Change::Map,
            Change::Unmap,
        ][field];
        change(number)
    })
}

/// The machine with a change, where it is a machine then.
#[must_use]
pub fn changed(machine: Machine, change: Change) -> Machine {
    Machine::new(with_change(*machine, change)).unwrap_or(machine)
}

const fn with_change(it: MachineParameters, change: Change) -> MachineParameters {
    match change {
        Change::Device(device_bytes) => it.with_device_bytes(device_bytes),
        Change::Host(host_bytes) => it.with_host_bytes(host_bytes),
        Change::Chunk(chunk_bytes) => it.with_chunk_bytes(chunk_bytes),
        Change::Up(h2d_bytes_per_s) => it.with_h2d_bytes_per_s(h2d_bytes_per_s),
        Change::Down(d2h_bytes_per_s) => it.with_d2h_bytes_per_s(d2h_bytes_per_s),
        Change::Latency(transfer_latency_ns) => it.with_transfer_latency_ns(transfer_latency_ns),
        Change::Map(map_ns_per_chunk) => it.with_map_ns_per_chunk(map_ns_per_chunk),
        Change::Unmap(unmap_ns_per_chunk) => it.with_unmap_ns_per_chunk(unmap_ns_per_chunk),
    }
}

/// Machines with up to all quantities changed.
pub fn machines() -> impl Strategy<Value = Machine> {
    (conformance::graphs::machines(), proptest::collection::vec(changes(), 0..=8))
        .prop_map(|(machine, changes)| changes.into_iter().fold(machine, changed))
}
