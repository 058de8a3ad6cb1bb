//! What no plan can do without: the memory of running in-core, and a least period.

use crate::graph::{Graph, Kind, OpId, TensorId};
use crate::machine::{Machine, transmission_ns};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

/// Words of scratch that the functions here ask for, each.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    3 * words::<u32>(limits.tensors)
        + words::<u8>(limits.tensors)
        + 2 * words::<u64>(limits.ops + 1)
}

/// The device memory that the work takes with everything resident: the most, over the ops
/// in the given order, of all states, the inputs and temporaries between their first and
/// last touch, and the workspace. Tensors of at least half a chunk count in whole chunks.
/// O(operands).
///
/// # Errors
/// Scratch that is too small.
pub fn in_core_peak_bytes(
    graph: &Graph<'_>,
    machine: &Machine,
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let size_bytes = |tensor: TensorId| {
        let bytes = graph.tensor(tensor).bytes;
        match bytes >= machine.chunk_bytes.div_ceil(2) {
            true => machine.round_up_to_chunks(bytes).unwrap_or(bytes),
            false => bytes,
        }
    };
    let first = scratch.take(graph.tensors().len(), NONE)?;
    let last = scratch.take(graph.tensors().len(), 0u32)?;
    for op in graph.op_ids() {
        for &tensor in graph.operands_of(op) {
            first[tensor.index()] = first[tensor.index()].min(op.0);
            last[tensor.index()] = op.0;
        }
    }
    let mut alive = Alive::new(graph, &mut scratch)?;
    let mut state_bytes = 0u64;
    for tensor in graph.tensor_ids() {
        let (first, last) = (first[tensor.index()], last[tensor.index()]);
        if graph.tensor(tensor).kind == Kind::State {
            state_bytes = state_bytes.saturating_add(size_bytes(tensor));
        } else if first != NONE {
            alive.add(size_bytes(tensor), first, last);
        }
    }
    Ok(state_bytes.saturating_add(alive.peak_bytes(graph)))
}

/// A period that no plan in the given order can beat: the larger of compute and what must
/// cross each link within a budget.
///
/// At any op, the values that are alive and the states fit into the budget or lie, for the
/// excess, on the host. A temporary that is alive there has crossed the link to the host
/// and comes back; so does a state that is read, and one that is written has crossed to the
/// host (states that some op overwrites unread are left out: they may be dead there); an
/// input comes back if it was read before. Besides, each input that is read crosses once. Sizes count exactly, so pages and parts of
/// tensors are no way around it. O(operands).
///
/// # Errors
/// Scratch that is too small.
pub fn period_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    let (h2d_bytes, d2h_bytes) = link_bytes(graph, budget_bytes, scratch)?;
    let link_ns = |bytes, bytes_per_s| transmission_ns(bytes, bytes_per_s).unwrap_or(u64::MAX);
    Ok(graph
        .compute_ns()
        .max(link_ns(h2d_bytes, machine.h2d_bytes_per_s))
        .max(link_ns(d2h_bytes, machine.d2h_bytes_per_s)))
}

/// For each op, the bytes that come alive with it less those that died before it, modulo
/// 2^64: the running sum is exact, since all sizes together fit into 64 bits.
struct Alive<'a> {
    change: &'a mut [u64],
}

impl<'a> Alive<'a> {
    fn new(graph: &Graph<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        Ok(Self { change: scratch.take(graph.ops().len() + 1, 0u64)? })
    }

    fn add(&mut self, bytes: u64, first: u32, last: u32) {
        let (first, after) = (first as usize, last as usize + 1);
        self.change[first] = self.change[first].wrapping_add(bytes);
        self.change[after] = self.change[after].wrapping_sub(bytes);
    }

    /// The most bytes alive during an op, its workspace included.
    fn peak_bytes(&self, graph: &Graph<'_>) -> u64 {
        let (mut live, mut peak) = (0u64, 0u64);
        for (op, &change) in graph.ops().iter().zip(&*self.change) {
            live = live.wrapping_add(change);
            peak = peak.max(live.saturating_add(op.workspace_bytes));
        }
        peak
    }
}

/// Marks what each tensor's value is needed for, from the last op to the first.
struct Backwards<'a> {
    /// The last read of the value that a tensor holds here.
    last_read: &'a mut [u32],
    first_read: &'a mut [u32],
    read_by: &'a mut [u32],
    flags: &'a mut [u8],
}

const NONE: u32 = u32::MAX;
const WRITTEN: u8 = 1;
/// Some op overwrites the tensor without reading it: until then its value may be dead.
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

/// The least bytes that cross each link in one iteration.
fn link_bytes(
    graph: &Graph<'_>,
    budget_bytes: u64,
    scratch: &mut Scratch<'_>,
) -> Result<(u64, u64), OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let mut walk = Backwards::new(graph, &mut scratch)?;
    let mut down = Alive::new(graph, &mut scratch)?;
    let mut up = Alive::new(graph, &mut scratch)?;
    for op in graph.op_ids().rev() {
        walk.op(graph, op, |tensor, first, last| {
            let data = graph.tensor(tensor);
            if data.kind == Kind::Temporary {
                down.add(data.bytes, first, last);
                up.add(data.bytes, first, last);
            }
        });
    }
    let (mut input_bytes, mut up_states, mut down_states) = (0u64, 0u64, 0u64);
    for tensor in graph.tensor_ids() {
        let data = graph.tensor(tensor);
        let (first, last) = (walk.first_read[tensor.index()], walk.last_read[tensor.index()]);
        let flags = walk.flags[tensor.index()];
        if data.kind == Kind::Input && last != NONE {
            input_bytes += data.bytes;
            up.add(data.bytes, first, last);
        }
        if data.kind == Kind::State && flags & OVERWRITTEN == 0 {
            up_states += if last == NONE { 0 } else { data.bytes };
            down_states += if flags & WRITTEN == 0 { 0 } else { data.bytes };
        }
    }
    let excess_bytes = |alive: &Alive<'_>, states_bytes: u64| {
        alive.peak_bytes(graph).saturating_add(states_bytes).saturating_sub(budget_bytes)
    };
    let up_bytes = input_bytes.saturating_add(excess_bytes(&up, up_states));
    Ok((up_bytes, excess_bytes(&down, down_states)))
}
