//! A list schedule that frees memory early, or that reads states together.
//!
//! Of the first few groups that are ready, in the given order, the one runs next that
//! releases most: bytes of temporaries that no other group has still to touch, less those of
//! temporaries that none has touched before. Where none releases any, the first that allocates
//! next to nothing, since others may wait for it: the correction of Adam's moments, which all
//! updates share. Else the first.
//!
//! To read states together, they are taken up in sets. The first group that is ready and reads no state
//! outside of the set runs next, or adds its states while the set has room. If there is no such group, a
//! new set begins. So the first micro-batch goes ahead as far as one set allows, and the others
//! follow. An update that releases more than it allocates runs at once: the last gradient of
//! its weight is there.

use super::batches::Batches;
use super::groups::{Groups, Join};
use super::touches::Touches;
use crate::graph::{Graph, Kind, OpId, TensorId};
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
        Batches::scratch_words(limits),
        words::<u32>(limits.ops),
        words::<i64>(limits.ops),
        words::<u32>(limits.tensors).saturating_mul(4),
        Heap::scratch_words(limits.ops),
    ])
}

/// Writes the given op at each position. O(ops × log + operands).
pub(super) fn write(
    graph: &Graph<'_>,
    groups: &Groups<'_>,
    join: Join,
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
        set: Set { of: scratch.take(tensors, 0u32)?, number: 1, bytes: 0 },
        batches: Batches::new(graph, &mut scratch)?,
    };
    schedule.start();
    let mut order = order.iter_mut();
    let next = |schedule: &mut Schedule<'_, '_>| match join {
        Join::Light | Join::All => schedule.next(),
        Join::ByStates { set_bytes, batches } => schedule.next_by_states(set_bytes, batches.max(1)),
    };
    while let Some(group) = next(&mut schedule) {
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
    set: Set<'s>,
    batches: Batches<'s>,
}

/// The states that are read together.
struct Set<'s> {
    /// The last set that each state belonged to, counted from 1.
    of: &'s mut [u32],
    number: u32,
    bytes: u64,
}

impl<'s, 'g> Schedule<'s, 'g> {
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

    /// Takes the group that is to run next where so many micro-batches read states together.
    fn next_by_states(&mut self, set_bytes: u64, together: u32) -> Option<u32> {
        let ready = &self.ready.first;
        if let Some(update) = ready.iter().position(|&group| self.is_update(group)) {
            return Some(self.ready.take(update));
        }
        let turn = |group: u32| self.batches.of(group) / together;
        let first = ready.iter().map(|&group| turn(group)).min()?;
        let is_among = |&group: &u32| turn(group) == first;
        let has_room = |&group: &u32| {
            let added_bytes = self.added_bytes(group);
            added_bytes == 0 || self.set.bytes.saturating_add(added_bytes) <= set_bytes
        };
        let next = ready.iter().position(|group| is_among(group) && has_room(group));
        if next.is_none() {
            (self.set.number, self.set.bytes) = (self.set.number + 1, 0);
        }
        let next = next.or_else(|| ready.iter().position(is_among))?;
        self.add_states(ready[next]);
        Some(self.ready.take(next))
    }

    /// The states that a group reads, each op's in turn.
    fn states(&self, group: u32) -> impl Iterator<Item = TensorId> + use<'s, 'g> {
        let Self { graph, groups, .. } = *self;
        let reads = groups.ops(group).flat_map(|op| graph.reads(op));
        reads.copied().filter(|&tensor| graph.tensor(tensor).kind == Kind::State)
    }

    /// The bytes of the states that a group would add to the set, at most.
    fn added_bytes(&self, group: u32) -> u64 {
        let is_new = |tensor: &TensorId| self.set.of[tensor.index()] != self.set.number;
        let bytes = self.states(group).filter(is_new).map(|tensor| self.graph.tensor(tensor).bytes);
        bytes.fold(0, u64::saturating_add)
    }

    fn add_states(&mut self, group: u32) {
        self.set.bytes = self.set.bytes.saturating_add(self.added_bytes(group));
        for tensor in self.states(group) {
            self.set.of[tensor.index()] = self.set.number;
        }
    }

    /// Whether a group writes a state, and releases memory.
    fn is_update(&self, group: u32) -> bool {
        let mut written = self.groups.ops(group).flat_map(|op| self.graph.writes(op));
        self.gain_bytes[group as usize] > 0
            && written.any(|&tensor| self.graph.tensor(tensor).kind == Kind::State)
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
