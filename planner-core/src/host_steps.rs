//! The order of the ops on the host.
//!
//! Among the ops that are ready, the host runs the op whose result is needed first: earliest
//! deadline first (Jackson, "Scheduling a production line to minimize maximum tardiness", 1955).
//! After a backward pass, this op is the update of the first weights of the next forward pass; the
//! updates of later layers follow while that pass runs.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors, launches and steps are those of the sequence, and the arrays have an entry \
              for each"
)]

use crate::graph::OpId;
use crate::hosted::Hosted;
use crate::planner::heap::Heap;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::Sequence;
use bytemuck::{Pod, Zeroable};

/// An op on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct HostStep {
    /// The number of launches of the iteration that come before it in the list.
    pub(crate) after: u32,
    /// The number of launches after which it is ready: launches that it depends on, or that come
    /// before one of these.
    pub(crate) ready: u32,
    pub(crate) op: OpId,
    /// The first launch that needs its result, counted over all iterations.
    needed: u32,
}

/// The launches around the next op on the host that uses a tensor.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Neighbours {
    /// If the op reads the tensor: the number of launches before it, or the launch after it.
    to_read: u32,
    /// If the op writes the tensor.
    to_write: u32,
}

/// The number of simulated iterations. In the first iteration, the host has no work left from an
/// iteration before it.
const ITERATIONS: u32 = 3;

/// Words that the order takes.
pub(crate) const fn scratch_words(limits: &Limits) -> usize {
    words::<HostStep>(limits.ops)
}

/// Words of scratch for finding the order.
pub(crate) const fn working_words(limits: &Limits) -> usize {
    total([
        words::<HostStep>(limits.ops),
        words::<Neighbours>(limits.tensors),
        words::<u64>(limits.ops.saturating_add(1)),
        Heap::scratch_words(limits.ops),
    ])
}

/// The ops on the host, in the order in which they run. O(operands), plus sorting them.
pub(crate) fn new<'a>(
    sequence: &Sequence<'_>,
    hosted: &Hosted<'_>,
    scratch: &mut Scratch<'a>,
) -> Result<&'a [HostStep], OutOfScratch> {
    let ops = || sequence.graph().op_ids().filter(|&op| hosted.contains(op));
    let steps = scratch.take(ops().count(), HostStep::zeroed())?;
    let mut scratch = scratch.reborrow();
    let found = scratch.take(steps.len(), HostStep::zeroed())?;
    for (step, op) in found.iter_mut().zip(ops()) {
        step.op = op;
    }
    find_ready(sequence, hosted, found, &mut scratch)?;
    find_needed(sequence, hosted, found, &mut scratch)?;
    // Sorted by readiness; among equals, an op comes after the ops it depends on.
    found.sort_unstable_by_key(|step| (step.ready, step.op));
    by_need(sequence, found, steps, &mut scratch)?;
    Ok(steps)
}

/// Finds the number of launches before each op and before the ops that it depends on.
fn find_ready(
    sequence: &Sequence<'_>,
    hosted: &Hosted<'_>,
    steps: &mut [HostStep],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let graph = sequence.graph();
    let mut scratch = scratch.reborrow();
    let before = scratch.take(graph.tensors().len(), Neighbours { to_read: 0, to_write: 0 })?;
    for launch in sequence.launches() {
        let listed = launch.0.saturating_add(1);
        if !sequence.launched(launch).is_repeat {
            for tensor in sequence.writes(launch) {
                if hosted.copies(*tensor) {
                    before[tensor.index()].to_read = listed;
                }
            }
        }
        for tensor in sequence.operands_of(launch) {
            let is_renewed = hosted.makes(*tensor) && !hosted.makes_first(*tensor);
            if is_renewed || hosted.copies(*tensor) {
                before[tensor.index()].to_write = listed;
            }
        }
    }
    for step in steps {
        let reads = graph.reads(step.op).iter().map(|tensor| before[tensor.index()].to_read);
        let writes = graph.writes(step.op).iter().map(|tensor| before[tensor.index()].to_write);
        let ready = reads.chain(writes).fold(0, u32::max);
        step.ready = ready;
        for tensor in graph.reads(step.op) {
            let to_write = &mut before[tensor.index()].to_write;
            *to_write = ready.max(*to_write);
        }
        for tensor in graph.writes(step.op) {
            before[tensor.index()] = Neighbours { to_read: ready, to_write: ready };
        }
    }
    Ok(())
}

/// Finds the first launch that reads the result of each op or of an op that depends on it, or that
/// overwrites an operand of one of these.
fn find_needed(
    sequence: &Sequence<'_>,
    hosted: &Hosted<'_>,
    steps: &mut [HostStep],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    const NEVER: u32 = u32::MAX;
    let graph = sequence.graph();
    let mut scratch = scratch.reborrow();
    let after =
        scratch.take(graph.tensors().len(), Neighbours { to_read: NEVER, to_write: NEVER })?;
    for launch in sequence.launches().rev() {
        let next = launch.0.saturating_add(sequence.len() as u32);
        for tensor in sequence.reads(launch) {
            if hosted.makes(*tensor) {
                let first = hosted.makes_first(*tensor);
                after[tensor.index()].to_write = if first { launch.0 } else { next };
            }
        }
        for tensor in sequence.writes(launch) {
            if hosted.copies(*tensor) {
                after[tensor.index()] = Neighbours { to_read: next, to_write: next };
            }
        }
    }
    for step in steps.iter_mut().rev() {
        let reads = graph.reads(step.op).iter().map(|tensor| after[tensor.index()].to_read);
        let writes = graph.writes(step.op).iter().map(|tensor| after[tensor.index()].to_write);
        let needed = reads.chain(writes).fold(NEVER, u32::min);
        step.needed = needed;
        for tensor in graph.writes(step.op) {
            after[tensor.index()] = Neighbours { to_read: needed, to_write: needed };
        }
        for tensor in graph.reads(step.op) {
            let to_write = &mut after[tensor.index()].to_write;
            *to_write = needed.min(*to_write);
        }
    }
    Ok(())
}

/// Simulates launches and ops in time, without transfers. An op is ready no earlier, and needed no
/// earlier, than the ops that it depends on, so it comes after them.
fn by_need(
    sequence: &Sequence<'_>,
    found: &[HostStep],
    steps: &mut [HostStep],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let launched_ns = scratch.take(sequence.len().saturating_add(1), 0u64)?;
    let mut compute_ns = 0u64;
    for (launch, launched_ns) in sequence.launches().zip(&mut launched_ns[1..]) {
        compute_ns = compute_ns.saturating_add(sequence.time_ns(launch));
        *launched_ns = compute_ns;
    }
    let time_ns = |op: OpId| sequence.graph().op(op).host_ns.unwrap_or(0);
    let sum_ns = found.iter().fold(0, |sum: u64, step| sum.saturating_add(time_ns(step.op)));
    let period_ns = compute_ns.max(sum_ns);
    // If the host takes longer than the device, launches wait for it.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the divisor is not 0, and a product of two 64-bit numbers fits into 128 bits"
    )]
    let ready_ns = |step: &HostStep| {
        let launched_ns = u128::from(launched_ns[step.ready as usize]);
        (launched_ns * u128::from(period_ns) / u128::from(compute_ns.max(1))) as u64
    };
    let mut queue = Heap::new(found.len(), &mut scratch)?;
    let mut free_ns = 0u64;
    for _iteration in 0..ITERATIONS {
        let (mut next, mut after) = (0usize, 0);
        for step in &mut *steps {
            if queue.len() == 0 {
                free_ns = found.get(next).map_or(free_ns, |found| free_ns.max(ready_ns(found)));
            }
            while let Some(found) = found.get(next).filter(|found| ready_ns(found) <= free_ns) {
                queue.push(u64::from(found.needed) << 32 | u64::from(found.op.0), next as u32);
                next = next.saturating_add(1);
            }
            let Some((_, first)) = queue.pop() else { break };
            *step = found[first as usize];
            after = step.ready.max(after);
            step.after = after;
            free_ns = free_ns.saturating_add(time_ns(step.op));
        }
        free_ns = free_ns.saturating_sub(period_ns);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    extern crate std;

    use super::*;
    use crate::graph::{Graph, Kind, Op, Tensor, TensorId};
    use std::vec::Vec;

    /// The ops on the host, each with the number of launches before it. An op with a host time runs
    /// on the host. States come before temporaries.
    fn steps(ops: &[(Option<u64>, &[u32], &[u32])], states: u32, others: u32) -> Vec<(u32, u32)> {
        let kinds = (0..states).map(|_| Kind::State).chain((0..others).map(|_| Kind::Temporary));
        let tensors: Vec<_> = kinds.map(|kind| Tensor { bytes: 8, kind }).collect();
        let mut operands = Vec::new();
        let ops: Vec<_> = ops
            .iter()
            .map(|&(host_ns, reads, writes)| {
                let first_operand = operands.len() as u32;
                operands.extend(reads.iter().chain(writes).map(|&id| TensorId(id)));
                let (reads, writes) = (reads.len() as u32, writes.len() as u32);
                Op { time_ns: 10, host_ns, first_operand, reads, writes, ..Op::default() }
            })
            .collect();
        let mut memory = [0; 4096];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let hosted = Hosted::new(&graph, |_| true, &mut scratch).unwrap().unwrap();
        let sequence = Sequence::as_given(&graph, Some(&hosted), &mut scratch).unwrap();
        sequence.host_steps().iter().map(|step| (step.after, step.op.0)).collect()
    }

    #[test]
    fn the_op_that_is_needed_first_runs_first() {
        // A forward pass over three weights, a backward pass, and updates.
        let ops: [(Option<u64>, &[u32], &[u32]); 9] = [
            (None, &[0], &[3]),
            (None, &[1, 3], &[4]),
            (None, &[2, 4], &[5]),
            (None, &[2, 5], &[6]),
            (None, &[1, 6], &[7]),
            (None, &[0, 7], &[8]),
            (Some(5), &[0, 8], &[0]),
            (Some(5), &[1, 7], &[1]),
            (Some(5), &[2, 6], &[2]),
        ];
        assert_eq!(steps(&ops, 3, 6), [(4, 8), (5, 7), (6, 6)]);
        // The host has a backlog: the first weight comes before the second.
        let slow = ops.map(|(time, reads, writes)| (time.map(|_| 25), reads, writes));
        assert_eq!(steps(&slow, 3, 6), [(4, 8), (6, 6), (6, 7)]);
    }

    #[test]
    fn ops_run_after_their_dependencies() {
        // The last op reads the result of the one before, and is needed first.
        let ops: [(Option<u64>, &[u32], &[u32]); 5] = [
            (None, &[0], &[4]),
            (None, &[1, 4], &[3]),
            (Some(90), &[3, 1], &[1]),
            (Some(90), &[3, 2], &[2, 5]),
            (Some(90), &[5, 0], &[0]),
        ];
        assert_eq!(steps(&ops, 3, 3), [(2, 3), (2, 4), (2, 2)]);
    }
}
