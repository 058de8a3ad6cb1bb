//! `spillway.machine.v1`.

use super::error::FormatError;
use super::json::{Document, parse};
use super::render::render;
use crate::machines::OwnedMachine;
use planner_core::{Machine, MachineParameters};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

#[derive(Serialize, Deserialize)]
struct MachineRecord<'a> {
    format: Cow<'a, str>,
    name: Cow<'a, str>,
    device_bytes: u64,
    host_bytes: u64,
    chunk_bytes: u64,
    h2d_bytes_per_s: u64,
    d2h_bytes_per_s: u64,
    transfer_latency_ns: u64,
    map_ns_per_chunk: u64,
    unmap_ns_per_chunk: u64,
    /// The speeds while the other direction is idle. A file has both or neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    one_way_h2d_bytes_per_s: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    one_way_d2h_bytes_per_s: Option<u64>,
    /// The device's time for a launch and for a wait. A file has both or neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    launch_ns: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wait_ns: Option<u64>,
}

/// Reads a machine, gzip or plain, and checks it.
///
/// # Errors
/// The bytes are not a machine file, or [`Machine::new`] rejects the machine.
pub fn read_machine(bytes: &[u8]) -> Result<OwnedMachine, FormatError> {
    let record: MachineRecord<'static> = parse(bytes, Document::Machine)?;
    let machine = Machine::new(
        MachineParameters::new()
            .with_device_bytes(record.device_bytes)
            .with_host_bytes(record.host_bytes)
            .with_chunk_bytes(record.chunk_bytes)
            .with_h2d_bytes_per_s(record.h2d_bytes_per_s)
            .with_d2h_bytes_per_s(record.d2h_bytes_per_s)
            .with_transfer_latency_ns(record.transfer_latency_ns)
            .with_map_ns_per_chunk(record.map_ns_per_chunk)
            .with_unmap_ns_per_chunk(record.unmap_ns_per_chunk),
    );
    let machine = machine.map_err(|error| FormatError::malformed(error.to_string()))?;
    let one_way = record.one_way_h2d_bytes_per_s.zip(record.one_way_d2h_bytes_per_s);
    let one_way_bytes_per_s = one_way.map(<[u64; 2]>::from);
    if one_way_bytes_per_s.is_some_and(|speeds| speeds.contains(&0)) {
        return Err(FormatError::malformed("a one-way link speed is 0"));
    }
    Ok(OwnedMachine::new(record.name.into_owned(), machine)
        .with_one_way_bytes_per_s(one_way_bytes_per_s)
        .with_costs_ns(record.launch_ns.zip(record.wait_ns).map(<[u64; 2]>::from)))
}

/// Writes a machine as JSON.
#[must_use]
pub fn write_machine(machine: &OwnedMachine) -> Vec<u8> {
    let OwnedMachine { name, machine, one_way_bytes_per_s: one_way, costs_ns } = machine;
    render(&MachineRecord {
        format: Document::Machine.format().into(),
        name: name.into(),
        device_bytes: machine.device_bytes,
        host_bytes: machine.host_bytes,
        chunk_bytes: machine.chunk_bytes,
        h2d_bytes_per_s: machine.h2d_bytes_per_s,
        d2h_bytes_per_s: machine.d2h_bytes_per_s,
        transfer_latency_ns: machine.transfer_latency_ns,
        map_ns_per_chunk: machine.map_ns_per_chunk,
        unmap_ns_per_chunk: machine.unmap_ns_per_chunk,
        one_way_h2d_bytes_per_s: one_way.map(|[h2d, _]| h2d),
        one_way_d2h_bytes_per_s: one_way.map(|[_, d2h]| d2h),
        launch_ns: costs_ns.map(|[launch_ns, _]| launch_ns),
        wait_ns: costs_ns.map(|[_, wait_ns]| wait_ns),
    })
}
