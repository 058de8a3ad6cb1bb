//! Writes the values of states and inputs into the host block, and computes the digest of all
//! states.

use crate::value::{self, Reading, Value};
use planner_core::backend::{FillError, HostRange, InputWriter, StateWriter, Transfers};
use planner_core::{Graph, HostLayout, Kind, TensorId};

/// Limits the memory that filling takes.
const PIECE_BYTES: u64 = 1 << 20;

/// Writes [`initial_state`](value::initial_state) into the slots of all states, in pieces of
/// at most 1 MiB. O(bytes of all states).
///
/// # Errors
/// The errors of the device. After an error, nothing more is written.
pub fn fill_states<D: Transfers>(
    states: &mut StateWriter<'_, D>,
) -> Result<(), FillError<D::Error>> {
    let graph = states.graph();
    of_kind(graph, Kind::State).try_for_each(|(state, bytes)| {
        let value = value::initial_state(state, bytes);
        fill(bytes, &value, |first, piece| states.write_at(state, first, piece))
    })
}

/// Writes the [`input`](value::input) of an iteration into the slots of all inputs, in pieces
/// of at most 1 MiB. O(bytes of all inputs).
///
/// # Errors
/// The errors of the device. After an error, nothing more is written.
pub fn fill_inputs<D: Transfers>(
    inputs: &mut InputWriter<'_, D>,
) -> Result<(), FillError<D::Error>> {
    let (graph, iteration) = (inputs.graph(), inputs.iteration());
    of_kind(graph, Kind::Input).try_for_each(|(input, bytes)| {
        let value = value::input(input, iteration, bytes);
        fill(bytes, &value, |first, piece| inputs.write_at(input, first, piece))
    })
}

/// The [`digest`](value::digest) of the bytes in the slots of all states.
///
/// # Errors
/// The errors of the device.
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
    of_kind(graph, kind).map(move |(id, bytes)| {
        (id, HostRange { offset_bytes: layout.offset_bytes(id, slot, 0), bytes })
    })
}

/// The tensors of a kind, with their sizes.
fn of_kind(graph: &Graph<'_>, kind: Kind) -> impl Iterator<Item = (TensorId, u64)> {
    let tensors = graph.tensor_ids().zip(graph.tensors());
    tensors.filter(move |(_, tensor)| tensor.kind == kind).map(|(id, tensor)| (id, tensor.bytes))
}

/// Passes a value of `bytes` bytes to `write`, piece by piece.
fn fill<E>(
    bytes: u64,
    value: &Value,
    mut write: impl FnMut(u64, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let mut piece = Vec::new();
    for first in (0..bytes).step_by(PIECE_BYTES as usize) {
        piece.resize((bytes - first).min(PIECE_BYTES) as usize, 0);
        value.fill(first, &mut piece);
        write(first, &piece)?;
    }
    Ok(())
}
