//! Which ops run together.
//!
//! An op that only one other must wait for may join that one: no path leaves the two and
//! comes back. So the ops of an optimizer's update become one group, and all of them run as
//! soon as the gradient is there.

use crate::graph::{Graph, Kind, OpId, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

/// No op.
const NONE: u32 = u32::MAX;
/// More than one op.
const MANY: u32 = u32::MAX - 1;

/// Which of the ops that only one other waits for join it, and what runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Those that update a state, or release no more memory than they allocate: running them
    /// early gains nothing.
    Light,
    /// All: the shares of a gradient are computed when they are added up, though until then
    /// what they are computed from stays.
    All,
    /// As [`Light`](Self::Light); and what reads the same states runs together, as far as
    /// dependencies allow: of all micro-batches one layer after the other. States are taken up
    /// in sets of so many bytes.
    ByStates {
        /// The bytes of a set. One op may read more.
        set_bytes: u64,
        /// How many micro-batches run together at most; 0 counts as 1. The next ones wait until these are done.
        batches: u32,
    },
}

/// The ops of each group, in the given order.
#[derive(Debug)]
pub(super) struct Groups<'a> {
    /// The group of each op, which is the group's last op.
    of: &'a mut [u32],
    /// The first op of each group.
    first: &'a mut [u32],
    /// The op of the same group that comes next.
    next: &'a mut [u32],
}

impl<'a> Groups<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.ops)
            .saturating_mul(3)
            .saturating_add(words::<u32>(limits.tensors).saturating_mul(3))
    }

    /// Forms the groups. O(operands).
    pub(super) fn new(
        graph: &Graph<'_>,
        join: Join,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let ops = graph.ops().len();
        let groups = Self {
            of: scratch.take(ops, NONE)?,
            first: scratch.take(ops, NONE)?,
            next: scratch.take(ops, NONE)?,
        };
        let mut uses = LaterUses::new(graph, &mut scratch.reborrow())?;
        for op in graph.op_ids().rev() {
            let Found { successor, updates, allocated_bytes, released_bytes } = uses.enter(op);
            let joins = match join {
                Join::Light | Join::ByStates { .. } => updates || released_bytes <= allocated_bytes,
                Join::All => true,
            };
            let group =
                if joins && successor < MANY { groups.of[successor as usize] } else { op.0 };
            groups.of[op.index()] = group;
            groups.next[op.index()] = core::mem::replace(&mut groups.first[group as usize], op.0);
        }
        Ok(groups)
    }

    /// The group of an op.
    pub(super) fn of(&self, op: OpId) -> u32 {
        self.of[op.index()]
    }

    /// All groups, in the order of their last ops.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&*self.of).filter(|&(op, &group)| op == group).map(|(op, _)| op)
    }

    /// The ops of a group.
    pub(super) fn ops(&self, group: u32) -> impl Iterator<Item = OpId> {
        let some = |op: u32| (op != NONE).then_some(OpId(op));
        let first = some(self.first[group as usize]);
        core::iter::successors(first, move |op| some(self.next[op.index()]))
    }
}

/// What follows an op, and what it does to memory in the given order.
struct Found {
    /// The op that waits for it; `NONE`, or `MANY`.
    successor: u32,
    /// Whether it writes a state.
    updates: bool,
    allocated_bytes: u64,
    released_bytes: u64,
}

/// The uses of each tensor after an op, from the last op to the first.
struct LaterUses<'a, 'g> {
    graph: &'g Graph<'g>,
    /// The first op of all that touches a tensor.
    first: &'a mut [u32],
    /// The next op that writes a tensor.
    writer: &'a mut [u32],
    /// The op that reads a tensor before that; `NONE`, or `MANY`.
    reader: &'a mut [u32],
}

impl<'a, 'g> LaterUses<'a, 'g> {
    fn new(graph: &'g Graph<'g>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        let first = scratch.take(tensors, NONE)?;
        for op in graph.op_ids() {
            for &tensor in graph.operands_of(op) {
                first[tensor.index()] = op.0.min(first[tensor.index()]);
            }
        }
        let (writer, reader) = (scratch.take(tensors, NONE)?, scratch.take(tensors, NONE)?);
        Ok(Self { graph, first, writer, reader })
    }

    /// Looks at what follows an op, and adds its own uses.
    fn enter(&mut self, op: OpId) -> Found {
        let mut found =
            Found { successor: NONE, updates: false, allocated_bytes: 0, released_bytes: 0 };
        for &tensor in self.graph.writes(op) {
            let (writer, reader) = (self.writer[tensor.index()], self.reader[tensor.index()]);
            found.successor = either(found.successor, if reader == NONE { writer } else { reader });
            found.updates |= self.graph.tensor(tensor).kind == Kind::State;
            self.weigh(&mut found, op, tensor);
            (self.writer[tensor.index()], self.reader[tensor.index()]) = (op.0, NONE);
        }
        for &tensor in self.graph.reads(op) {
            let writer = self.writer[tensor.index()];
            // Its own write has been weighed, and is no successor.
            if writer != op.0 {
                found.successor = either(found.successor, writer);
                self.weigh(&mut found, op, tensor);
            }
            self.reader[tensor.index()] = either(self.reader[tensor.index()], op.0);
        }
        found
    }

    fn weigh(&self, found: &mut Found, op: OpId, tensor: TensorId) {
        let data = self.graph.tensor(tensor);
        if data.kind.is_made() {
            // All tensors together fit into 64 bits.
            if self.first[tensor.index()] == op.0 {
                found.allocated_bytes += data.bytes;
            }
            if self.writer[tensor.index()] == NONE && self.reader[tensor.index()] == NONE {
                found.released_bytes += data.bytes;
            }
        }
    }
}

/// The one op of two sets of ops, if it is one.
fn either(one: u32, other: u32) -> u32 {
    match (one, other) {
        (NONE, op) | (op, NONE) => op,
        _ if one == other => one,
        _ => MANY,
    }
}
