//! Which ops run together.
//!
//! An op that only one other must wait for may join that one: no path leaves the two and
//! comes back. A launch that ends a version which the op touches waits for the op as well. The op may
//! still join if that launch comes after the group. So the ops of an optimizer's update become one
//! group, and all of them run as soon as the gradient is there.

use super::versions::{Version, Versions};
use crate::graph::Kind;
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::sequence::LaunchId;

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
            .saturating_add(words::<u32>(Versions::most(limits)).saturating_mul(3))
    }

    /// Forms the groups. O(operands).
    pub(super) fn new(
        versions: &Versions<'_>,
        join: Join,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let launches = versions.sequence().len();
        let groups = Self {
            of: scratch.take(launches, NONE)?,
            first: scratch.take(launches, NONE)?,
            next: scratch.take(launches, NONE)?,
        };
        let mut uses = LaterUses::new(versions, &mut scratch.reborrow())?;
        for launch in versions.sequence().launches().rev() {
            let Found { successor, end, updates, allocated_bytes, released_bytes } =
                uses.enter(launch);
            let joins = match join {
                Join::Light | Join::ByStates { .. } => updates || released_bytes <= allocated_bytes,
                Join::All => true,
            };
            let group = match groups.of.get(successor as usize) {
                Some(&group) if joins && group < end => group,
                _ => launch.0,
            };
            groups.of[launch.index()] = group;
            groups.next[launch.index()] =
                core::mem::replace(&mut groups.first[group as usize], launch.0);
        }
        Ok(groups)
    }

    /// The group of an op.
    pub(super) fn of(&self, launch: LaunchId) -> u32 {
        self.of[launch.index()]
    }

    /// All groups, in the order of their last ops.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        (0..).zip(&*self.of).filter(|&(launch, &group)| launch == group).map(|(launch, _)| launch)
    }

    /// The ops of a group.
    pub(super) fn ops(&self, group: u32) -> impl Iterator<Item = LaunchId> {
        let some = |launch: u32| (launch != NONE).then_some(LaunchId(launch));
        let first = some(self.first[group as usize]);
        core::iter::successors(first, move |launch| some(self.next[launch.index()]))
    }
}

/// What follows an op, and what it does to memory in the given order.
struct Found {
    /// The op that waits for it; `NONE`, or `MANY`.
    successor: u32,
    /// The first launch that ends a version which the op touches; or `NONE`.
    end: u32,
    /// Whether it writes a state.
    updates: bool,
    allocated_bytes: u64,
    released_bytes: u64,
}

/// The uses of each version after an op, from the last op to the first.
struct LaterUses<'a, 'g> {
    versions: &'g Versions<'g>,
    /// The first op of all that touches a version.
    first: &'a mut [u32],
    /// The next op that writes a version.
    writer: &'a mut [u32],
    /// The op that reads a version before that; `NONE`, or `MANY`.
    reader: &'a mut [u32],
}

impl<'a, 'g> LaterUses<'a, 'g> {
    fn new(versions: &'g Versions<'g>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let count = versions.len();
        let first = scratch.take(count, NONE)?;
        for launch in versions.sequence().launches() {
            for &version in versions.operands_of(launch) {
                first[version.index()] = launch.0.min(first[version.index()]);
            }
        }
        let (writer, reader) = (scratch.take(count, NONE)?, scratch.take(count, NONE)?);
        Ok(Self { versions, first, writer, reader })
    }

    /// Looks at what follows an op, and adds its own uses.
    fn enter(&mut self, launch: LaunchId) -> Found {
        let ends = self.versions.operands_of(launch).iter();
        let ends = ends.filter_map(|&version| self.versions.end(version));
        let end = ends.map(|end| end.0).min().unwrap_or(NONE);
        let mut found =
            Found { successor: NONE, end, updates: false, allocated_bytes: 0, released_bytes: 0 };
        for &version in self.versions.writes(launch) {
            let (writer, reader) = (self.writer[version.index()], self.reader[version.index()]);
            found.successor = either(found.successor, if reader == NONE { writer } else { reader });
            found.updates |= self.versions.tensor(version).kind == Kind::State;
            self.weigh(&mut found, launch, version);
            (self.writer[version.index()], self.reader[version.index()]) = (launch.0, NONE);
        }
        for &version in self.versions.reads(launch) {
            let writer = self.writer[version.index()];
            // Its own write has been weighed, and is no successor.
            if writer != launch.0 {
                found.successor = either(found.successor, writer);
                self.weigh(&mut found, launch, version);
            }
            self.reader[version.index()] = either(self.reader[version.index()], launch.0);
        }
        found
    }

    fn weigh(&self, found: &mut Found, launch: LaunchId, version: Version) {
        let data = self.versions.tensor(version);
        if data.kind.is_made() {
            // What one op touches fits into 64 bits.
            if self.first[version.index()] == launch.0 {
                found.allocated_bytes += data.bytes;
            }
            if self.writer[version.index()] == NONE && self.reader[version.index()] == NONE {
                found.released_bytes += data.bytes;
            }
        }
    }
}

/// The one op of two sets of ops, if it is one.
fn either(one: u32, other: u32) -> u32 {
    match (one, other) {
        (NONE, launch) | (launch, NONE) => launch,
        _ if one == other => one,
        _ => MANY,
    }
}
