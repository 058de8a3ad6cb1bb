//! The values of states and inputs, written into the host block, and the digest of all states.

use crate::value::{self, Reading, Value};
use planner_core::backend::{HostRange, Transfers};
use planner_core::{Graph, HostLayout, Kind, TensorId};

/// Bounds the memory that filling takes.
const PIECE_BYTES: u64 = 1 << 20;

/// Writes [`initial_state`](value::initial_state) into the slots of all states, in pieces of
/// at most 1 MiB. O(bytes of all states).
///
/// # Errors
/// Those of the device, after which nothing more is written.
pub fn fill_states<D: Transfers>(
    graph: &Graph<'_>,
    device: &mut D,
    layout: &HostLayout<'_>,
) -> Result<(), D::Error> {
    slots(graph, layout, Kind::State, 0)
        .try_for_each(|(state, slot)| fill(device, slot, value::initial_state(state, slot.bytes)))
}

/// Writes the [`input`](value::input) of an iteration into the slots of all inputs, in pieces
/// of at most 1 MiB. O(bytes of all inputs).
///
/// # Errors
/// Those of the device, after which nothing more is written.
pub fn fill_inputs<D: Transfers>(
    graph: &Graph<'_>,
    device: &mut D,
    iteration: u64,
    layout: &HostLayout<'_>,
) -> Result<(), D::Error> {
    slots(graph, layout, Kind::Input, HostLayout::slot(iteration)).try_for_each(|(input, slot)| {
        fill(device, slot, value::input(input, iteration, slot.bytes))
    })
}

/// The [`digest`](value::digest) of what lies in the slots of all states.
///
/// # Errors
/// Those of the device.
pub fn states_digest<D: Transfers>(
    graph: &Graph<'_>,
    device: &mut D,
    layout: &HostLayout<'_>,
) -> Result<u64, D::Error> {
    let mut readings = Vec::new();
    for (_, HostRange { offset_bytes, bytes }) in slots(graph, layout, Kind::State, 0) {
        let mut read = vec![0; bytes as usize];
        device.read_host(offset_bytes, &mut read)?;
        readings.push(Reading::of(&read));
    }
    Ok(value::digest(readings.into_iter()))
}

/// The tensors of a kind, and where one slot of each lies in the host block.
pub fn slots(
    graph: &Graph<'_>,
    layout: &HostLayout<'_>,
    kind: Kind,
    slot: u32,
) -> impl Iterator<Item = (TensorId, HostRange)> {
    graph.tensor_ids().zip(graph.tensors()).filter(move |(_, tensor)| tensor.kind == kind).map(
        move |(id, tensor)| {
            let offset_bytes = layout.offset_bytes(id, slot, 0);
            (id, HostRange { offset_bytes, bytes: tensor.bytes })
        },
    )
}

fn fill<D: Transfers>(device: &mut D, slot: HostRange, value: Value) -> Result<(), D::Error> {
    let mut piece = Vec::new();
    for first in (0..slot.bytes).step_by(PIECE_BYTES as usize) {
        piece.resize((slot.bytes - first).min(PIECE_BYTES) as usize, 0);
        value.fill(first, &mut piece);
        device.write_host(slot.offset_bytes + first, &piece)?;
    }
    Ok(())
}
