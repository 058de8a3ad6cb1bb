//! A list schedule that frees memory early.
//!
//! Of the first few groups that are ready, in the given order, the one runs next that
//! releases most: bytes of temporaries that no other group has still to touch, less those of
//! temporaries that none has touched before. Where none releases any, the first that allocates
//! next to nothing, since others may wait for it: the correction of Adam's moments, which all
//! updates share. Else the first.

use super::groups::Groups;
use super::touches::Touches;
use crate::graph::{Graph, OpId, TensorId};
use crate::planner::heap::Heap;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

/// Ready groups that are compared: a balance of what is found and the time of each choice.
const COMPARED: usize = 64;

/// Allocations that do not matter: more than the scalars that updates share, far less than a chunk of
/// any device.
const SMALL_BYTES: i64 = 4096;

/// No group.
const NONE: u32 = u32::MAX;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Touches::scratch_words(limits),
        words::<u32>(limits.ops),
        words::<i64>(limits.ops),
        words::<u32>(limits.tensors).saturating_mul(3),
        Heap::scratch_words(limits.ops),
    ])
}

/// Writes the given op at each position. O(ops × log + operands).
pub(super) fn write(
    graph: &Graph<'_>,
    groups: &Groups<'_>,
    order: &mut [OpId],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let (ops, tensors) = (graph.ops().len(), graph.tensors().len());
    let mut scratch = scratch.reborrow();
    let mut schedule = Schedule {
        graph,
        groups,
        touches: Touches::new(graph, &mut scratch)?,
        waits: scratch.take(ops, 0u32)?,
        gain_bytes: scratch.take(ops, 0i64)?,
        seen_by: scratch.take(tensors, NONE)?,
        left: scratch.take(tensors, 0u32)?,
        mixed: scratch.take(tensors, 0u32)?,
        ready: Ready { first: heapless::Vec::new(), rest: Heap::new(ops, &mut scratch)? },
    };
    schedule.start();
    let mut order = order.iter_mut();
    while let Some(group) = schedule.next() {
        for (op, slot) in groups.ops(group).zip(&mut order) {
            *slot = op;
        }
        schedule.run(group);
    }
    Ok(())
}

struct Schedule<'s, 'g> {
    graph: &'g Graph<'g>,
    groups: &'g Groups<'g>,
    touches: Touches<'s>,
    /// What each group has still to wait for.
    waits: &'s mut [u32],
    /// What each group would release, less what it would allocate.
    gain_bytes: &'s mut [i64],
    /// The last group that was seen to touch a tensor.
    seen_by: &'s mut [u32],
    /// How many groups have still to touch a tensor, and the exclusive or of them: of one
    /// alone, that one.
    left: &'s mut [u32],
    mixed: &'s mut [u32],
    ready: Ready<'s>,
}

impl Schedule<'_, '_> {
    /// Before any group has run.
    fn start(&mut self) {
        let Self { graph, groups, .. } = *self;
        for op in graph.op_ids() {
            self.touches.pass(graph, op, |other| {
                if groups.of(other) != groups.of(op) {
                    self.waits[groups.of(other) as usize] += 1;
                }
            });
        }
        self.touches.rewind(graph);
        for group in groups.all() {
            self.visit(group, |schedule, tensor| {
                schedule.left[tensor.index()] += 1;
                schedule.mixed[tensor.index()] ^= group;
            });
        }
        self.seen_by.fill(NONE);
        for tensor in graph.tensor_ids() {
            if let Some(first) = self.touches.first(tensor) {
                self.gain(groups.of(first), tensor, -1);
            }
            self.settle(tensor);
        }
        for group in groups.all() {
            if self.waits[group as usize] == 0 {
                self.ready.insert(group);
            }
        }
    }

    /// Visits each tensor that a group touches once.
    fn visit(&mut self, group: u32, mut look: impl FnMut(&mut Self, TensorId)) {
        for op in self.groups.ops(group) {
            for &tensor in self.graph.operands_of(op) {
                if core::mem::replace(&mut self.seen_by[tensor.index()], group) != group {
                    look(self, tensor);
                }
            }
        }
    }

    /// The last group to touch a tensor releases it.
    fn settle(&mut self, tensor: TensorId) {
        if self.left[tensor.index()] == 1 {
            self.gain(self.mixed[tensor.index()], tensor, 1);
        }
    }

    fn gain(&mut self, group: u32, tensor: TensorId, sign: i64) {
        let data = self.graph.tensor(tensor);
        if data.kind.is_made() {
            let bytes = i64::try_from(data.bytes).unwrap_or(i64::MAX);
            let gain_bytes = &mut self.gain_bytes[group as usize];
            *gain_bytes = gain_bytes.saturating_add(sign * bytes);
        }
    }

    /// Takes the group that is to run next.
    fn next(&mut self) -> Option<u32> {
        let gain_bytes = |at: usize| self.gain_bytes[self.ready.first[at] as usize];
        let mut ready = 0..self.ready.first.len();
        // Of equals, the first.
        let most = ready.clone().rev().max_by_key(|&at| gain_bytes(at))?;
        let next = match gain_bytes(most) {
            1.. => most,
            _ => ready.find(|&at| gain_bytes(at) >= -SMALL_BYTES).unwrap_or(0),
        };
        Some(self.ready.take(next))
    }

    fn run(&mut self, group: u32) {
        let Self { graph, groups, .. } = *self;
        self.visit(group, |schedule, tensor| {
            schedule.left[tensor.index()] -= 1;
            schedule.mixed[tensor.index()] ^= group;
            schedule.settle(tensor);
        });
        for op in groups.ops(group) {
            self.touches.pass(graph, op, |other| {
                let other = groups.of(other);
                if other != group {
                    let waits = &mut self.waits[other as usize];
                    *waits -= 1;
                    if *waits == 0 {
                        self.ready.insert(other);
                    }
                }
            });
        }
    }
}

/// The groups that may run next.
struct Ready<'a> {
    /// The first of them, sorted.
    first: heapless::Vec<u32, COMPARED>,
    /// All others.
    rest: Heap<'a>,
}

impl Ready<'_> {
    fn insert(&mut self, group: u32) {
        let is_full = self.first.is_full();
        if is_full && self.first.last().is_some_and(|&last| last < group) {
            self.rest.push(u64::from(group), group);
            return;
        }
        if is_full && let Some(last) = self.first.pop() {
            self.rest.push(u64::from(last), last);
        }
        let at = self.first.partition_point(|&other| other < group);
        // It is not full any more.
        let _ = self.first.insert(at, group);
    }

    /// Takes the group at a position of the first ones.
    fn take(&mut self, at: usize) -> u32 {
        let group = self.first.remove(at);
        if let Some((_, next)) = self.rest.pop() {
            // All others come after the first ones.
            let _ = self.first.push(next);
        }
        group
    }
}
