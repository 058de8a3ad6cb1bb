//! The bytes that must cross each link in the given order of the ops.

#![expect(
    clippy::indexing_slicing,
    reason = "ops and tensors are those of the checked graph, and the arrays have an entry for \
              each"
)]

use super::Alive;
use crate::graph::{Graph, Kind, OpId, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        words::<u32>(limits.tensors).saturating_mul(3),
        words::<u8>(limits.tensors),
        Alive::scratch_words(limits).saturating_mul(2),
    ])
}

/// The least bytes that cross each link in one iteration.
///
/// At any op, the values that are alive and the states fit into the budget, or the excess is on the
/// host. Bytes of a temporary that are on the host have crossed the link to the host, and come
/// back. Bytes of a state come back if the state is read, and have crossed to the host if it is
/// written. States that an op overwrites unread do not count, since they may be dead there. An
/// input comes back if it was read before. In addition, each input that is read crosses once.
pub(super) fn link_bytes(
    graph: &Graph<'_>,
    budget_bytes: u64,
    scratch: &mut Scratch<'_>,
) -> Result<(u64, u64), OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let mut walk = Backwards::new(graph, &mut scratch)?;
    let mut download = Alive::new(graph, &mut scratch)?;
    let mut upload = Alive::new(graph, &mut scratch)?;
    for op in graph.op_ids().rev() {
        walk.op(graph, op, |tensor, first, last| {
            let data = graph.tensor(tensor);
            if data.kind.is_made() {
                download.add(data.bytes, first, last);
                upload.add(data.bytes, first, last);
            }
        });
    }
    let (mut input_bytes, mut upload_states, mut download_states) = (0u64, 0u64, 0u64);
    for tensor in graph.tensor_ids() {
        let data = graph.tensor(tensor);
        let (first, last) = (walk.first_read[tensor.index()], walk.last_read[tensor.index()]);
        let flags = walk.flags[tensor.index()];
        if data.kind == Kind::Input && last != NONE {
            input_bytes = input_bytes.saturating_add(data.bytes);
            upload.add(data.bytes, first, last);
        }
        if data.kind == Kind::State && flags & OVERWRITTEN == 0 {
            let bytes_if = |moves| if moves { data.bytes } else { 0 };
            upload_states = upload_states.saturating_add(bytes_if(last != NONE));
            download_states = download_states.saturating_add(bytes_if(flags & WRITTEN != 0));
        }
    }
    let excess_bytes = |alive: &Alive<'_>, states_bytes: u64| {
        alive.peak_bytes(graph).saturating_add(states_bytes).saturating_sub(budget_bytes)
    };
    let upload_bytes = input_bytes.saturating_add(excess_bytes(&upload, upload_states));
    Ok((upload_bytes, excess_bytes(&download, download_states)))
}

/// Records the uses of each tensor's value, from the last op to the first.
struct Backwards<'a> {
    /// The last read of the current value of each tensor.
    last_read: &'a mut [u32],
    first_read: &'a mut [u32],
    read_by: &'a mut [u32],
    flags: &'a mut [u8],
}

const NONE: u32 = u32::MAX;
const WRITTEN: u8 = 1;
/// An op overwrites the tensor without reading it; before that, its value may be dead.
const OVERWRITTEN: u8 = 2;

impl<'a> Backwards<'a> {
    fn new(graph: &Graph<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        Ok(Self {
            last_read: scratch.take(tensors, NONE)?,
            first_read: scratch.take(tensors, NONE)?,
            read_by: scratch.take(tensors, NONE)?,
            flags: scratch.take(tensors, 0u8)?,
        })
    }

    fn op(&mut self, graph: &Graph<'_>, op: OpId, mut alive: impl FnMut(TensorId, u32, u32)) {
        for &tensor in graph.reads(op) {
            self.read_by[tensor.index()] = op.0;
        }
        for &tensor in graph.writes(op) {
            self.flags[tensor.index()] |= WRITTEN;
            if self.read_by[tensor.index()] != op.0 {
                self.flags[tensor.index()] |= OVERWRITTEN;
                let last = core::mem::replace(&mut self.last_read[tensor.index()], NONE);
                if last != NONE {
                    alive(tensor, op.0, last);
                }
            }
        }
        for &tensor in graph.reads(op) {
            let last = &mut self.last_read[tensor.index()];
            *last = if *last == NONE { op.0 } else { *last };
            self.first_read[tensor.index()] = op.0;
        }
    }
}
