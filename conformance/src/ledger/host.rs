//! Which host memory a plan takes, and when (`docs/format.md`, 8).

use super::order;
use planner_core::{Graph, Kind, Plan, Step, TensorId};
use std::ops::Range;

/// A temporary that moves or that an op on the host touches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostUse {
    /// The temporary.
    pub tensor: TensorId,
    /// From the launch that writes the offloaded value, as a first launch or a repeat, to the last
    /// launch that touches the tensor after its last prefetch or offload, as positions in the list.
    /// The whole list if there are no such launches, or an op on the host or a collective touches the
    /// tensor.
    pub span: (usize, usize),
    /// From the first byte that moves to after the last. All bytes if an op on the host touches the
    /// tensor.
    pub bytes: Range<u64>,
}

impl HostUse {
    /// Whether the spans have a step in common.
    #[must_use]
    pub const fn meets(&self, other: &Self) -> bool {
        self.span.0 <= other.span.1 && other.span.0 <= self.span.1
    }

    const fn len_bytes(&self) -> u64 {
        self.bytes.end - self.bytes.start
    }
}

/// The temporaries that a plan moves or that its ops on the host touch.
#[must_use]
pub fn temporaries(graph: &Graph<'_>, plan: &Plan<'_>) -> Vec<HostUse> {
    let temporaries = graph.tensor_ids().filter(|&id| graph.tensor(id).kind == Kind::Temporary);
    temporaries.filter_map(|tensor| host_use(graph, plan, tensor)).collect()
}

fn host_use(graph: &Graph<'_>, plan: &Plan<'_>, tensor: TensorId) -> Option<HostUse> {
    let positions = |wanted: &dyn Fn(&Step) -> bool| -> Vec<usize> {
        (0..plan.steps.len()).filter(|&at| wanted(&plan.steps[at])).collect()
    };
    let writes = positions(
        &|step| matches!(*step, Step::Launch(it) if order::is_written(graph, it, tensor)),
    );
    let touches =
        positions(&|step| matches!(*step, Step::Launch(it) if order::touches(graph, it, tensor)));
    let offloads = positions(&|step| matches!(step, Step::Offload(part) if part.tensor == tensor));
    let prefetches =
        positions(&|step| matches!(step, Step::Prefetch(part) if part.tensor == tensor));
    let written = |offload: usize| writes.iter().copied().rfind(|&write| write < offload);
    let first = offloads.first().and_then(|&offload| written(offload));
    let last_copy = offloads.last().max(prefetches.last());
    let last = last_copy.and_then(|&copy| touches.last().copied().filter(|&touch| touch > copy));
    let pool = plan.tensor_pool.get(tensor.index()).map_or(0, |&pool| pool as usize);
    let moved = offloads.iter().chain(&prefetches).map(|&at| match plan.steps[at] {
        Step::Offload(part) | Step::Prefetch(part) if !part.is_whole() => {
            let object_bytes = plan.pools[pool].object_bytes;
            let end = (part.first + part.count) * object_bytes;
            part.first * object_bytes..end.min(graph.tensor(tensor).bytes)
        }
        _ => 0..graph.tensor(tensor).bytes,
    });
    let on_host =
        |step: &Step| matches!(*step, Step::Host(op) if graph.touches(op).any(|it| it == tensor));
    let is_on_host = plan.steps.iter().any(on_host);
    let is_exchanged = touches.iter().any(
        |&at| matches!(plan.steps[at], Step::Launch(launched) if graph.op(launched.op).collective),
    );
    let whole = is_on_host.then(|| 0..graph.tensor(tensor).bytes);
    let bytes = moved
        .chain(whole)
        .reduce(|one, other| one.start.min(other.start)..one.end.max(other.end))?;
    let known = first.zip(last).filter(|_| !is_on_host && !is_exchanged);
    let span = known.unwrap_or((0, plan.steps.len() - 1));
    Some(HostUse { tensor, span, bytes })
}

/// The most bytes in use at one step, and the bytes of all uses together.
#[must_use]
pub fn load_bytes(uses: &[HostUse]) -> (u64, u64) {
    let at = |step| uses.iter().filter(move |used| used.span.0 <= step && step <= used.span.1);
    let load = |step| at(step).map(HostUse::len_bytes).sum();
    let most = uses.iter().map(|used| load(used.span.0)).max();
    (most.unwrap_or(0), uses.iter().map(HostUse::len_bytes).sum())
}

/// Checks slots on the host, which are given by the ranges that each tensor's slots take. All must
/// lie within the block. Two may share a byte only if both belong to temporaries whose spans do not
/// overlap.
///
/// # Errors
/// The error, in a sentence.
pub fn check(
    graph: &Graph<'_>,
    uses: &[HostUse],
    block_bytes: u64,
    at: impl Fn(TensorId, u32, u64) -> u64,
) -> Result<(), String> {
    let mut slots = Vec::new();
    for tensor in graph.tensor_ids() {
        let count = match graph.tensor(tensor).kind {
            Kind::State => 1,
            Kind::Input | Kind::Output => 2,
            Kind::Temporary => 0,
        };
        for slot in 0..count {
            let start = at(tensor, slot, 0);
            slots.push((tensor, None, start..start + graph.tensor(tensor).bytes));
        }
    }
    for used in uses {
        let start = at(used.tensor, 0, used.bytes.start);
        slots.push((used.tensor, Some(used), start..start + used.len_bytes()));
    }
    for (position, (tensor, used, bytes)) in slots.iter().enumerate() {
        if bytes.end > block_bytes {
            return Err(format!("{tensor} lies in {bytes:?}, past the end at {block_bytes}"));
        }
        for (other, other_used, other_bytes) in &slots[..position] {
            let overlap = bytes.start < other_bytes.end && other_bytes.start < bytes.end;
            let apart = used.zip(*other_used).is_some_and(|(used, other)| !used.meets(other));
            if overlap && !apart {
                return Err(format!("{tensor} and {other} share bytes and are both in use"));
            }
        }
    }
    Ok(())
}
