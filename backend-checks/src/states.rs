use crate::Refused;
use planner_core::{Graph, HostRooms, Kind, TensorId};

/// Writes what a state holds before the first iteration: of that tensor, the bytes from an
/// offset on.
pub type StateBytes<'g> = Box<dyn FnMut(TensorId, u64, &mut [u8]) + 'g>;

/// Bounds the memory that filling a block takes beside it.
const PIECE_BYTES: u64 = 1 << 20;

/// Fills the rooms of all states, in pieces of at most 1 MiB, each given to `write` with its
/// offset in the host's block. O(bytes of all states).
///
/// # Errors
/// Those of `write`, after which nothing more is written.
pub fn fill_states(
    graph: &Graph<'_>,
    rooms: &HostRooms<'_>,
    states: &mut StateBytes<'_>,
    mut write: impl FnMut(u64, &[u8]) -> Result<(), Refused>,
) -> Result<(), Refused> {
    let mut piece = Vec::new();
    for state in graph.tensor_ids().filter(|&id| graph.tensor(id).kind == Kind::State) {
        let bytes = graph.tensor(state).bytes;
        for first in (0..bytes).step_by(PIECE_BYTES as usize) {
            piece.resize((bytes - first).min(PIECE_BYTES) as usize, 0);
            states(state, first, &mut piece);
            write(rooms.offset_bytes(state, 0, first), &piece)?;
        }
    }
    Ok(())
}
