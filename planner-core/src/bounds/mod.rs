//! The in-core peak of a graph, and lower bounds on the period of plans that run every op on the
//! device.

mod any_order;
mod chain;
mod given_order;
pub mod priced;
mod reached;
mod repeats;
mod windows;

pub(crate) use any_order::living_bytes;

use crate::graph::{Graph, Kind, OpId, TensorId};
use crate::machine::{Machine, transmission_ns};
use crate::scratch::{Limits, OutOfScratch, Scratch, larger, words};
use any_order::LinkBytes;

/// Words of scratch that each function here needs, by [`Limits::of_graph`].
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    let (given, any) = (given_order::scratch_words(limits), any_order::scratch_words(limits));
    // Each takes more words than `in_core_peak_bytes`.
    let once = larger(windows::scratch_words(limits), larger(given, any));
    larger(once, repeats::scratch_words(limits))
}

/// Returns the device memory that the work takes with everything resident: the maximum, over the
/// ops in the given order, of all states, the inputs and temporaries between their first and last
/// use, and the workspace. A tensor of at least half a chunk counts in whole chunks. If the sum of
/// all tensors exceeds 64 bits, the result is `u64::MAX`. O(operands).
///
/// # Errors
/// Too little scratch.
pub fn in_core_peak_bytes(
    graph: &Graph<'_>,
    machine: &Machine,
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let size_bytes = |tensor: TensorId| {
        let bytes = graph.tensor(tensor).bytes;
        match bytes >= machine.chunk_bytes.div_ceil(2) {
            true => machine.round_up_to_chunks(bytes).unwrap_or(u64::MAX),
            false => bytes,
        }
    };
    let all = graph.tensor_ids().map(size_bytes).try_fold(0, u64::checked_add);
    if all.is_none() {
        return Ok(u64::MAX);
    }
    let states = graph.tensor_ids().filter(|&tensor| graph.tensor(tensor).kind == Kind::State);
    let state_bytes: u64 = states.map(size_bytes).sum();
    let peak_bytes = Alive::touched(graph, size_bytes, &mut scratch)?.peak_bytes(graph);
    Ok(state_bytes.saturating_add(peak_bytes))
}

/// The plans for which a bound holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundOrder {
    /// Plans that run the ops in the given order.
    Given,
    /// All plans.
    Any,
}

/// Returns a period that no plan in such an order that runs each op once can beat. It follows from
/// the bytes that must cross each link within a budget, and from the work that compute and the
/// links must do one after the other. If the graph has collectives, it follows from the bytes and
/// from the sums of the launches alone, in any order. Sizes are exact, so the bound also holds for
/// pages and parts of tensors. O(operands + 64 tensors); `docs/research/bounds.md` has the proof.
///
/// # Errors
/// Too little scratch.
pub fn period_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
    order: BoundOrder,
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    let links = any_order::link_bytes(graph, budget_bytes, scratch)?;
    let LinkBytes { mut upload_bytes, mut download_bytes, worst } = links;
    let link_ns = |bytes, bytes_per_s| transmission_ns(bytes, bytes_per_s).unwrap_or(u64::MAX);
    let links_ns = |upload_bytes, download_bytes| {
        link_ns(upload_bytes, machine.h2d_bytes_per_s)
            .max(link_ns(download_bytes, machine.d2h_bytes_per_s))
    };
    if graph.has_collectives() {
        return Ok(launches_ns(graph).max(links_ns(upload_bytes, download_bytes)));
    }
    let windows_ns = |order, through, scratch: &mut Scratch<'_>| {
        windows::period_ns(graph, machine, budget_bytes, (order, through), scratch)
    };
    let mut period_ns = windows_ns(BoundOrder::Any, worst, scratch)?;
    if order == BoundOrder::Given {
        let (upload, download) = given_order::link_bytes(graph, budget_bytes, scratch)?;
        (upload_bytes, download_bytes) = (upload_bytes.max(upload), download_bytes.max(download));
        let most = most_alive(graph, scratch)?.unwrap_or(worst);
        period_ns = period_ns.max(windows_ns(BoundOrder::Given, most, scratch)?);
    }
    Ok(period_ns.max(links_ns(upload_bytes, download_bytes)))
}

/// The longer of the sums of all launches on the compute stream and on the network stream.
fn launches_ns(graph: &Graph<'_>) -> u64 {
    graph.launches_ns().0.into_iter().fold(0, u64::max)
}

/// Returns a period that no plan in such an order can beat, however often it repeats repeatable
/// ops. It follows from the bytes that must be uploaded or computed again because they do not fit
/// while one op runs; if the graph has collectives, from the sums of the launches alone. Without
/// collectives it is at least the compute time; without repeatable ops it is [`period_ns`].
/// O(operands + 64 tensors + tensors log tensors); `docs/research/bounds.md` has the proof.
///
/// # Errors
/// Too little scratch.
pub fn period_with_repeats_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
    order: BoundOrder,
    scratch: &mut Scratch<'_>,
) -> Result<u64, OutOfScratch> {
    if !graph.ops().iter().any(|op| op.repeatable) {
        return period_ns(graph, machine, budget_bytes, order, scratch);
    }
    if graph.has_collectives() {
        return Ok(launches_ns(graph));
    }
    let LinkBytes { worst, .. } = any_order::link_bytes(graph, budget_bytes, scratch)?;
    let around_ns = |order, around, scratch: &mut Scratch<'_>| {
        repeats::period_ns(graph, machine, budget_bytes, (order, around), scratch)
    };
    let any_ns = around_ns(BoundOrder::Any, worst, scratch)?;
    if order == BoundOrder::Any {
        return Ok(any_ns);
    }
    let most = most_alive(graph, scratch)?.unwrap_or(worst);
    Ok(any_ns.max(around_ns(BoundOrder::Given, most, scratch)?))
}

/// The op of the given order during which the most bytes are alive.
fn most_alive(graph: &Graph<'_>, scratch: &mut Scratch<'_>) -> Result<Option<OpId>, OutOfScratch> {
    let size_bytes = |tensor| graph.tensor(tensor).bytes;
    let alive = Alive::touched(graph, size_bytes, &mut scratch.reborrow())?;
    let most = graph.op_ids().zip(alive.bytes(graph)).max_by_key(|&(_, bytes)| bytes);
    Ok(most.map(|(op, _)| op))
}

/// The tensors that an op reads, recorded op by op, so that ops with many operands take no longer
/// than as many ops with one operand.
struct Reads<'a> {
    /// The last recorded op that reads each tensor.
    by: &'a mut [u32],
}

#[expect(clippy::indexing_slicing, reason = "`by` has an entry for each tensor of the graph")]
impl<'a> Reads<'a> {
    const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.tensors)
    }

    fn new(graph: &Graph<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        Ok(Self { by: scratch.take(graph.tensors().len(), u32::MAX)? })
    }

    fn note(&mut self, graph: &Graph<'_>, op: OpId) {
        graph.reads(op).iter().for_each(|tensor| self.by[tensor.index()] = op.0);
    }

    /// Returns the tensors that a recorded op writes without reading.
    fn overwrites<'g>(&self, graph: &Graph<'g>, op: OpId) -> impl Iterator<Item = TensorId> {
        let writes = graph.writes(op).iter().copied();
        writes.filter(move |tensor| self.by[tensor.index()] != op.0)
    }

    /// [`Graph::touches`] of a recorded op.
    fn touches(&self, graph: &Graph<'_>, op: OpId) -> impl Iterator<Item = TensorId> {
        graph.reads(op).iter().copied().chain(self.overwrites(graph, op))
    }
}

/// For each op, the bytes that become alive with it less the bytes that died before it, modulo
/// 2^64. The running sum is exact, since all sizes together fit into 64 bits.
struct Alive<'a> {
    change: &'a mut [u64],
}

#[expect(
    clippy::indexing_slicing,
    reason = "the arrays have an entry for each tensor, and `change` one more than there are ops"
)]
impl<'a> Alive<'a> {
    fn new(graph: &Graph<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        Ok(Self { change: scratch.take(graph.ops().len().saturating_add(1), 0u64)? })
    }

    /// The lifetimes of inputs and temporaries, each from its first use to its last.
    fn touched(
        graph: &Graph<'_>,
        size_bytes: impl Fn(TensorId) -> u64,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let mut alive = Self::new(graph, scratch)?;
        let mut scratch = scratch.reborrow();
        let first = scratch.take(graph.tensors().len(), u32::MAX)?;
        let last = scratch.take(graph.tensors().len(), 0u32)?;
        for op in graph.op_ids() {
            for tensor in graph.operands_of(op) {
                first[tensor.index()] = first[tensor.index()].min(op.0);
                last[tensor.index()] = op.0;
            }
        }
        for tensor in graph.tensor_ids() {
            let (first, last) = (first[tensor.index()], last[tensor.index()]);
            if graph.tensor(tensor).kind != Kind::State && first <= last {
                alive.add(size_bytes(tensor), first, last);
            }
        }
        Ok(alive)
    }

    const fn scratch_words(limits: &Limits) -> usize {
        words::<u64>(limits.ops.saturating_add(1))
    }

    const fn touched_scratch_words(limits: &Limits) -> usize {
        Self::scratch_words(limits).saturating_add(words::<u32>(limits.tensors).saturating_mul(2))
    }

    fn add(&mut self, bytes: u64, first: u32, last: u32) {
        let (first, after) = (first as usize, (last as usize).saturating_add(1));
        self.change[first] = self.change[first].wrapping_add(bytes);
        self.change[after] = self.change[after].wrapping_sub(bytes);
    }

    /// The bytes alive during each op, including its workspace.
    fn bytes(&self, graph: &Graph<'_>) -> impl Iterator<Item = u64> {
        let live = self.change.iter().scan(0u64, |live, &change| {
            *live = live.wrapping_add(change);
            Some(*live)
        });
        live.zip(graph.ops()).map(|(live, op)| live.saturating_add(op.workspace_bytes))
    }

    fn peak_bytes(&self, graph: &Graph<'_>) -> u64 {
        self.bytes(graph).max().unwrap_or(0)
    }
}
