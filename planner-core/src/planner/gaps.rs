//! Which tensors leave the device between two of their uses, and how much of each.
//!
//! A *gap* is the span of ops strictly between two consecutive uses of a value, in the
//! cyclic sequence. Moving `x` objects of the tensor in the gap frees them at all those
//! ops, for an upload and, unless the host holds them already, a download. Gaps are taken
//! by density (excess that they remove, over the time of the ops, per time of transfer)
//! until no op exceeds the pool; the last one only in part.

use super::Request;
use super::builder::Stuck;
use super::heap::Heap;
use super::memory::Memory;
use super::pressure::{FULL, Pressure};
use super::tree::MinTree;
use crate::graph::{Graph, Kind, OpId};
use crate::machine::Direction;
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

/// No operand.
const NONE: u32 = u32::MAX;

/// How gaps are weighed against each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weight {
    /// Excess removed, over time, per time of transfer.
    Density,
    /// The longest first: what is used again last leaves first.
    Length,
}

/// The gap behind each operand, and what moves in it.
#[derive(Debug)]
pub(super) struct Gaps<'a> {
    /// The operand that uses the tensor next, cyclically; of an op that uses it twice, the
    /// first.
    next: &'a mut [u32],
    /// The op of each operand.
    op: &'a mut [u32],
    /// The operand that wrote the value; none where no op writes it.
    version: &'a mut [u32],
    /// Objects that move in the gap behind each operand.
    moved: &'a mut [u64],
    /// The most objects that move in any gap of a value, by the operand that wrote it.
    offloaded: &'a mut [u64],
}

/// A span of ops, cyclically.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// The first op.
    pub(super) from: usize,
    /// The op behind the last.
    pub(super) to: usize,
    /// Whether it reaches over the end of the iteration.
    pub(super) wraps: bool,
}

impl Span {
    /// The span as one or two ranges of an iteration of `ops` ops.
    pub(super) fn ranges(self, ops: usize) -> [(usize, usize); 2] {
        if self.wraps {
            [(self.from, ops), (0, self.to)]
        } else {
            [(self.from, self.to.max(self.from)), (0, 0)]
        }
    }
}

impl<'a> Gaps<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        3 * words::<u32>(limits.operands)
            + 2 * words::<u64>(limits.operands)
            + words::<u32>(limits.tensors)
            + MinTree::scratch_words(limits)
            + Heap::scratch_words(limits.operands)
            + 4 * words::<u64>(limits.ops + 1)
            + words::<u64>(limits.ops)
    }

    /// Finds the gaps. O(operands).
    pub(super) fn new(graph: &Graph<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let operands = graph.operands().len();
        let gaps = Self {
            next: scratch.take(operands, NONE)?,
            op: scratch.take(operands, 0)?,
            version: scratch.take(operands, NONE)?,
            moved: scratch.take(operands, 0)?,
            offloaded: scratch.take(operands, 0)?,
        };
        let last = scratch.reborrow().take(graph.tensors().len(), NONE)?;
        // Twice around, so that each use sees the one before it in the last iteration.
        for _lap in 0..2 {
            for op in graph.op_ids().rev() {
                let first = graph.op(op).first_operand as usize;
                let operands = graph.operands_of(op);
                for (at, &tensor) in operands.iter().enumerate().rev() {
                    let slot = first + at;
                    gaps.op[slot] = op.0;
                    gaps.next[slot] = last[tensor.index()];
                    last[tensor.index()] = slot as u32;
                }
            }
        }
        last.fill(NONE);
        for _lap in 0..2 {
            for (last, tensor) in last.iter_mut().zip(graph.tensors()) {
                // Only a state's value lives on into the next iteration.
                *last = if tensor.kind == Kind::State { *last } else { NONE };
            }
            for op in graph.op_ids() {
                let first = graph.op(op).first_operand as usize;
                let reads = graph.op(op).reads as usize;
                for (at, &tensor) in graph.operands_of(op).iter().enumerate() {
                    if at >= reads {
                        last[tensor.index()] = (first + at) as u32;
                    }
                    gaps.version[first + at] = last[tensor.index()];
                }
            }
        }
        Ok(gaps)
    }

    /// Objects that move in the gap behind an operand.
    pub(super) fn moved(&self, slot: usize) -> u64 {
        self.moved[slot]
    }

    /// Objects of the value that an operand writes that the host will need.
    pub(super) fn offloaded(&self, slot: usize) -> u64 {
        self.offloaded[slot]
    }

    /// The op that uses an operand's tensor next, and whether that is in the next iteration.
    pub(super) fn next_use(&self, slot: usize) -> (OpId, bool) {
        let next = self.next[slot];
        let op = self.op[next as usize];
        (OpId(op), next <= slot as u32)
    }

    /// The gap behind an operand in which its value lives on; none where it dies, or where
    /// the same op uses it again.
    fn span(&self, graph: &Graph<'_>, slot: usize) -> Option<Span> {
        let next = self.next[slot] as usize;
        let (from, to) = (self.op[slot] as usize + 1, self.op[next] as usize);
        let wraps = next <= slot;
        let tensor = graph.operands()[slot];
        let is_read = {
            let op = graph.op(OpId(self.op[next]));
            next < (op.first_operand + op.reads) as usize
        };
        let lives = match graph.tensor(tensor).kind {
            Kind::State => wraps || is_read,
            _ => !wraps && is_read,
        };
        let same_op = !wraps && from > to;
        (lives && !same_op).then_some(Span { from, to, wraps })
    }

    /// Chooses what moves so that every op fits, with `spare` objects left free where the op
    /// itself allows that. O(gaps × log) for each time a gap is weighed.
    pub(super) fn choose(
        &mut self,
        request: &Request<'_>,
        memory: &Memory<'_>,
        spare: u64,
        weight: Weight,
        pressure: &Pressure<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Result<(), Stuck>, OutOfScratch> {
        self.moved.fill(0);
        self.offloaded.fill(0);
        let graph = request.graph;
        let mut scratch = scratch.reborrow();
        let mut slack = self.slack(request, memory, spare, &mut scratch)?;
        let tight_ns = scratch.take(graph.ops().len() + 1, 0u64)?;
        for (at, op) in graph.ops().iter().enumerate() {
            let tight = slack.min(at, at + 1) < 0;
            // An op without a time still counts.
            tight_ns[at + 1] = tight_ns[at] + if tight { op.time_ns.max(1) } else { 0 };
        }
        let all_ns = scratch.take(graph.ops().len() + 1, 0u64)?;
        for (at, op) in graph.ops().iter().enumerate() {
            all_ns[at + 1] = all_ns[at] + op.time_ns;
        }
        let mut heap = Heap::new(self.next.len(), &mut scratch)?;
        let up = sums(pressure.up, &mut scratch)?;
        let down = sums(pressure.down, &mut scratch)?;
        let scale = Scale { request, memory, weight, tight_ns, all_ns, up, down };
        for slot in 0..self.next.len() {
            if let Some((key, _)) = self.weigh(&scale, &slack, slot) {
                heap.push(key, slot as u32);
            }
        }
        while slack.least() < 0 {
            let Some((_, slot)) = heap.pop() else { return Ok(Err(Stuck::NoRoom)) };
            let slot = slot as usize;
            let Some((key, objects)) = self.weigh(&scale, &slack, slot) else { continue };
            if heap.top().is_some_and(|(top, _)| top < key) {
                heap.push(key, slot as u32);
                continue;
            }
            self.take(graph, &mut slack, slot, objects);
            if let Some((key, _)) = self.weigh(&scale, &slack, slot) {
                heap.push(key, slot as u32);
            }
        }
        Ok(Ok(()))
    }

    fn take(&mut self, graph: &Graph<'_>, slack: &mut MinTree<'_>, slot: usize, objects: u64) {
        self.moved[slot] += objects;
        let version = self.version[slot];
        if version != NONE {
            let offloaded = &mut self.offloaded[version as usize];
            *offloaded = self.moved[slot].max(*offloaded);
        }
        if let Some(span) = self.span(graph, slot) {
            for (from, to) in span.ranges(graph.ops().len()) {
                slack.add(from, to, objects as i64);
            }
        }
    }

    /// At each op, the objects that stay free when everything moves as chosen.
    pub(super) fn planned_slack<'s>(
        &self,
        request: &Request<'_>,
        memory: &Memory<'_>,
        scratch: &mut Scratch<'s>,
    ) -> Result<MinTree<'s>, OutOfScratch> {
        let graph = request.graph;
        let mut slack = self.slack(request, memory, 0, scratch)?;
        for slot in 0..self.moved.len() {
            if let (1.., Some(span)) = (self.moved[slot], self.span(graph, slot)) {
                for (from, to) in span.ranges(graph.ops().len()) {
                    slack.add(from, to, self.moved[slot] as i64);
                }
            }
        }
        Ok(slack)
    }

    /// At each op, the pool less the spare objects and everything that is alive.
    fn slack<'s>(
        &self,
        request: &Request<'_>,
        memory: &Memory<'_>,
        spare: u64,
        scratch: &mut Scratch<'s>,
    ) -> Result<MinTree<'s>, OutOfScratch> {
        let graph = request.graph;
        let ops = graph.ops().len();
        let own = scratch.take(ops, 0u64)?;
        for (op, own) in graph.op_ids().zip(&mut *own) {
            *own = memory.workspace(request, op);
            let first = graph.op(op).first_operand as usize;
            for (slot, &tensor) in (first..).zip(graph.operands_of(op)) {
                // Of an op that uses a tensor twice, the last operand counts.
                let again =
                    self.next[slot] > slot as u32 && self.op[self.next[slot] as usize] == op.0;
                *own += if again { 0 } else { memory.objects(tensor) };
            }
        }
        let usable = memory.pool_objects.saturating_sub(spare);
        let values = own.iter().map(|&own| usable.max(own) as i64 - own as i64);
        let mut slack = MinTree::new(values, scratch)?;
        for (slot, &tensor) in graph.operands().iter().enumerate() {
            if let Some(span) = self.span(graph, slot) {
                for (from, to) in span.ranges(ops) {
                    slack.add(from, to, -(memory.objects(tensor) as i64));
                }
            }
        }
        Ok(slack)
    }

    /// A gap's key (the least is taken first) and how many objects it should still move;
    /// none where it is of no use.
    fn weigh(&self, scale: &Scale<'_>, slack: &MinTree<'_>, slot: usize) -> Option<(u64, u64)> {
        let Scale { request, memory, weight, tight_ns, all_ns, .. } = *scale;
        let graph = request.graph;
        let span = self.span(graph, slot)?;
        let tensor = graph.operands()[slot];
        let left = memory.objects(tensor) - self.moved[slot];
        let ranges = span.ranges(graph.ops().len());
        let least = ranges.map(|(from, to)| slack.min(from, to)).into_iter().min()?;
        let objects = left.min(u64::try_from(-least).ok()?);
        let covered_ns: u64 = ranges.iter().map(|&(from, to)| tight_ns[to] - tight_ns[from]).sum();
        if objects == 0 || covered_ns == 0 {
            return None;
        }
        let density = |objects: u64| {
            let cost_ns = self.cost_ns(scale, slot, span, objects);
            covered_ns as f64 * objects as f64 / cost_ns.max(1) as f64
        };
        let (gain, objects) = match weight {
            // The last object may be half empty, and so the best to move on its own.
            Weight::Density => match (density(objects), density(1)) {
                (all, one) if one > all => (one, 1),
                (all, _) => (all, objects),
            },
            Weight::Length => {
                let length_ns = ranges.iter().map(|&(from, to)| all_ns[to] - all_ns[from]);
                (length_ns.sum::<u64>() as f64, objects)
            }
        };
        // Positive numbers compare as their bits do.
        Some((!gain.to_bits(), objects))
    }

    /// Link time of moving so many more objects, weighed by the pressure on the link where
    /// the gap ends (uploads) and begins (downloads).
    fn cost_ns(&self, scale: &Scale<'_>, slot: usize, span: Span, objects: u64) -> u64 {
        let Request { graph, machine, .. } = *scale.request;
        let tensor = graph.operands()[slot];
        let (moved, all) = (self.moved[slot], scale.memory.objects(tensor));
        // Objects leave from the end.
        let time_ns = |direction, already: u64, then: u64| {
            let bytes = scale.memory.bytes(scale.request, tensor, all - then, all - already);
            match bytes {
                0 => 0,
                bytes => machine.transfer_ns(direction, bytes).unwrap_or(0),
            }
        };
        let up_ns = time_ns(Direction::HostToDevice, moved, moved + objects);
        let version = self.version[slot];
        let on_host = if version == NONE { all } else { self.offloaded[version as usize] };
        let on_host = on_host.clamp(moved, moved + objects);
        let down_ns = time_ns(Direction::DeviceToHost, on_host, moved + objects);
        let ops = graph.ops().len();
        let near = ops / NEAR + 1;
        let at_end = mean(scale.up, span.to, (span.to + 1).min(ops));
        let up = at_end.max(mean(scale.up, span.to.saturating_sub(near), span.to.min(ops)));
        let down = mean(scale.down, span.from.min(ops - 1), (span.from + near).min(ops));
        // Even where a link is idle, less to move is better.
        up_ns.saturating_mul(up + 8).saturating_add(down_ns.saturating_mul(down + 8))
    }
}

/// What gaps are weighed with.
#[derive(Clone, Copy)]
struct Scale<'s> {
    request: &'s Request<'s>,
    memory: &'s Memory<'s>,
    weight: Weight,
    /// Time of the ops so far that exceed the pool if nothing moves.
    tight_ns: &'s [u64],
    /// Time of all ops so far.
    all_ns: &'s [u64],
    /// Pressure on each link, summed over the ops so far.
    up: &'s [u64],
    down: &'s [u64],
}

/// The part of an iteration, as a fraction, over which the pressure at a gap's ends is taken.
const NEAR: usize = 32;

/// Sums up to each op.
fn sums<'s>(values: &[u8], scratch: &mut Scratch<'s>) -> Result<&'s [u64], OutOfScratch> {
    let sums = scratch.take(values.len() + 1, 0u64)?;
    for (at, &value) in values.iter().enumerate() {
        sums[at + 1] = sums[at] + u64::from(value);
    }
    Ok(sums)
}

/// The mean over a range, from sums; over an empty one, the highest pressure.
fn mean(sums: &[u64], from: usize, to: usize) -> u64 {
    let len = to.saturating_sub(from) as u64;
    (sums[to.max(from)] - sums[from]).checked_div(len).unwrap_or(u64::from(FULL))
}
