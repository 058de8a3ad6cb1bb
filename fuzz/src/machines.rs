//! Machines, from plausible to absurd.

use crate::numbers::numbers;
use planner_core::Machine;
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

/// The machine with a change.
#[must_use]
pub const fn changed(machine: Machine, change: Change) -> Machine {
    match change {
        Change::Device(device_bytes) => Machine { device_bytes, ..machine },
        Change::Host(host_bytes) => Machine { host_bytes, ..machine },
        Change::Chunk(chunk_bytes) => Machine { chunk_bytes, ..machine },
        Change::Up(h2d_bytes_per_s) => Machine { h2d_bytes_per_s, ..machine },
        Change::Down(d2h_bytes_per_s) => Machine { d2h_bytes_per_s, ..machine },
        Change::Latency(transfer_latency_ns) => Machine { transfer_latency_ns, ..machine },
        Change::Map(map_ns_per_chunk) => Machine { map_ns_per_chunk, ..machine },
        Change::Unmap(unmap_ns_per_chunk) => Machine { unmap_ns_per_chunk, ..machine },
    }
}

/// Machines with up to all quantities changed.
pub fn machines() -> impl Strategy<Value = Machine> {
    (conformance::graphs::machines(), proptest::collection::vec(changes(), 0..=8))
        .prop_map(|(machine, changes)| changes.into_iter().fold(machine, changed))
}
