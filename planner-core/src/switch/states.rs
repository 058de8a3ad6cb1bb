//! Matches the states of one graph to the states of another.

use super::error::{Side, SwitchError};
use crate::graph::{Graph, Kind, TensorId};
use crate::scratch::{Limits, Scratch, words};

/// A state that both graphs have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SharedState {
    /// Its id in the first graph.
    pub from: TensorId,
    /// Its id in the second graph.
    pub to: TensorId,
}

/// No tensor.
const NONE: u32 = u32::MAX;

/// Words of scratch that [`pair_up`] needs.
pub(super) const fn scratch_words(from: &Limits, to: &Limits) -> usize {
    words::<u32>(from.tensors).saturating_add(words::<u32>(to.tensors))
}

/// The second graph's id of each state of the first graph. Checks that each state of either graph
/// is in exactly one pair, and that the two states of a pair have one size. O(tensors).
pub(super) fn pair_up<'s>(
    from: &Graph<'_>,
    to: &Graph<'_>,
    states: &[SharedState],
    scratch: &mut Scratch<'s>,
) -> Result<&'s [u32], SwitchError> {
    let to_ids = scratch.take(from.tensors().len(), NONE)?;
    let from_ids = scratch.reborrow().take(to.tensors().len(), NONE)?;
    for state in states {
        mark(Side::From, from, to_ids, state.from, state.to)?;
        mark(Side::To, to, from_ids, state.to, state.from)?;
        let (from_bytes, to_bytes) = (from.tensor(state.from).bytes, to.tensor(state.to).bytes);
        if from_bytes != to_bytes {
            let SharedState { from, to } = *state;
            return Err(SwitchError::StateBytes { from, from_bytes, to, to_bytes });
        }
    }
    for (side, graph, partners) in [(Side::From, from, &*to_ids), (Side::To, to, from_ids)] {
        for (id, &partner) in graph.tensor_ids().zip(partners) {
            if graph.tensor(id).kind == Kind::State && partner == NONE {
                return Err(SwitchError::Unpaired(side, id));
            }
        }
    }
    Ok(to_ids)
}

fn mark(
    side: Side,
    graph: &Graph<'_>,
    partners: &mut [u32],
    tensor: TensorId,
    partner: TensorId,
) -> Result<(), SwitchError> {
    let data = graph.tensors().get(tensor.index());
    let slot = partners.get_mut(tensor.index());
    match (data, slot) {
        (Some(data), Some(slot)) if data.kind == Kind::State => {
            if *slot != NONE {
                return Err(SwitchError::PairedTwice(side, tensor));
            }
            *slot = partner.0;
            Ok(())
        }
        _ => Err(SwitchError::NotAState(side, tensor)),
    }
}
