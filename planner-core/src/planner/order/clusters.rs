//! Clusters of ops that run together.
//!
//! An op that only one other op must wait for may join that op: no path leaves the two and comes
//! back. If several ops wait for the copy of a state, it may join the op whose cluster ends first:
//! no path leads back from clusters that end later. A launch that ends a version which the op uses
//! must wait for the op too; the op may still join if that launch comes after the cluster. So the
//! ops of an optimizer's update form one cluster, and all of them run as soon as the gradient
//! exists.

#![expect(
    clippy::indexing_slicing,
    reason = "launches and versions are those of the sequence, and the arrays have an entry for \
              each"
)]

use super::versions::{Version, Versions};
use crate::graph::Kind;
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::sequence::LaunchId;

/// No op.
const NONE: u32 = u32::MAX;
/// More than one op.
const MANY: u32 = u32::MAX - 1;

/// Which ops join the only op that waits for them, and which cluster runs next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Ops that update a state, or free no more memory than they allocate: running them early would
    /// gain nothing.
    Light,
    /// All ops: the shares of a gradient are computed when they are added up, although the values
    /// from which they are computed stay until then.
    All,
    /// The same as [`Light`](Self::Light); but before an op overwrites a state, ops run that read
    /// copies of the state, such as weights in a shorter format. Afterwards, a repeat could not
    /// make the copies again.
    CopiesFirst,
    /// The same as [`Light`](Self::Light); and ops that read the same states run together, as far
    /// as dependencies allow: each layer runs for all micro-batches in a row. States are read in
    /// sets of limited size.
    ByStates {
        /// The bytes of a set. A single op may read more.
        set_bytes: u64,
        /// Whether a copy of a state that is made in the set takes as much of the set as the state, since
        /// both take memory. Without it, a set is as large as the states of a layer.
        counts_copies: bool,
        /// The most micro-batches that run together; 0 counts as 1. The next micro-batches wait
        /// until these are done.
        batches: u32,
        /// Whether the backward pass of such a group overlaps the forward pass of the next group.
        /// Then the first group is smaller, and the last one may be larger.
        overlaps: bool,
    },
}

/// The ops of each cluster, in the given order.
#[derive(Debug)]
pub(super) struct Clusters<'a> {
    /// The cluster of each op, named by its last op.
    of: &'a mut [u32],
    /// The first op of each cluster.
    first: &'a mut [u32],
    /// The next op of the same cluster.
    next: &'a mut [u32],
}

impl<'a> Clusters<'a> {
    /// Words of scratch that the clusters keep.
    pub(super) const fn kept_words(limits: &Limits) -> usize {
        words::<u32>(limits.ops).saturating_mul(3)
    }

    /// Words of scratch that [`new`](Self::new) needs beside them.
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(Versions::most(limits)).saturating_mul(4)
    }

    /// Forms the clusters. O(operands).
    pub(super) fn new(
        versions: &Versions<'_>,
        join: Join,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let launches = versions.sequence().len();
        let clusters = Self {
            of: scratch.take(launches, NONE)?,
            first: scratch.take(launches, NONE)?,
            next: scratch.take(launches, NONE)?,
        };
        let mut uses = LaterUses::new(versions, &mut scratch.reborrow())?;
        for launch in versions.sequence().launches().rev() {
            let OpFacts { successor, first_cluster, end, updates, allocated_bytes, released_bytes } =
                uses.enter(launch, clusters.of);
            let joins = match join {
                Join::Light | Join::CopiesFirst | Join::ByStates { .. } => {
                    updates || released_bytes <= allocated_bytes
                }
                Join::All => true,
            };
            let is_copy = || versions.computed_copy(launch).is_some();
            let next = match join {
                Join::ByStates { .. } if successor == MANY && is_copy() => first_cluster,
                _ => clusters.of.get(successor as usize).copied().unwrap_or(NONE),
            };
            let cluster = if joins && next < end { next } else { launch.0 };
            uses.join(launch, cluster);
            clusters.of[launch.index()] = cluster;
            clusters.next[launch.index()] =
                core::mem::replace(&mut clusters.first[cluster as usize], launch.0);
        }
        Ok(clusters)
    }

    /// The cluster of an op.
    pub(super) fn of(&self, launch: LaunchId) -> u32 {
        self.of[launch.index()]
    }

    /// All clusters, in the order of their last ops.
    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        (0..)
            .zip(&*self.of)
            .filter(|&(launch, &cluster)| launch == cluster)
            .map(|(launch, _)| launch)
    }

    /// The ops of a cluster.
    pub(super) fn ops(&self, cluster: u32) -> impl Iterator<Item = LaunchId> {
        let some = |launch: u32| (launch != NONE).then_some(LaunchId(launch));
        let first = some(self.first[cluster as usize]);
        core::iter::successors(first, move |launch| some(self.next[launch.index()]))
    }
}

/// The successor of an op, and its effect on memory in the given order.
struct OpFacts {
    /// The only op that waits for it; or `NONE`, or `MANY`.
    successor: u32,
    /// The cluster that ends first among the clusters that wait for it; or `NONE`.
    first_cluster: u32,
    /// The first launch that ends a version which the op uses; or `NONE`.
    end: u32,
    /// Whether the op writes a state.
    updates: bool,
    allocated_bytes: u64,
    released_bytes: u64,
}

/// The uses of each version after an op, collected from the last op to the first.
struct LaterUses<'a, 'g> {
    versions: &'g Versions<'g>,
    /// The first op that uses a version.
    first: &'a mut [u32],
    /// The next op that writes a version.
    writer: &'a mut [u32],
    /// The op that reads a version before that; or `NONE`, or `MANY`.
    reader: &'a mut [u32],
    /// The cluster that ends first among the clusters that read a version before that; or `NONE`.
    cluster: &'a mut [u32],
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
        Ok(Self { versions, first, writer, reader, cluster: scratch.take(count, NONE)? })
    }

    /// Finds the successors of an op, given the clusters of all later ops, and adds the op's own uses.
    fn enter(&mut self, launch: LaunchId, clusters: &[u32]) -> OpFacts {
        let ends = self.versions.operands_of(launch).iter();
        let ends = ends.filter_map(|&version| self.versions.end(version));
        let end = ends.map(|end| end.0).min().unwrap_or(NONE);
        let mut facts = OpFacts {
            successor: NONE,
            first_cluster: NONE,
            end,
            updates: false,
            allocated_bytes: 0,
            released_bytes: 0,
        };
        let cluster_of = |writer: u32| clusters.get(writer as usize).copied().unwrap_or(NONE);
        for &version in self.versions.writes(launch) {
            let (writer, reader) = (self.writer[version.index()], self.reader[version.index()]);
            let readers = core::mem::replace(&mut self.cluster[version.index()], NONE);
            facts.first_cluster = facts.first_cluster.min(readers).min(cluster_of(writer));
            facts.successor = either(facts.successor, if reader == NONE { writer } else { reader });
            facts.updates |= self.versions.tensor(version).kind == Kind::State;
            self.weigh(&mut facts, launch, version);
            (self.writer[version.index()], self.reader[version.index()]) = (launch.0, NONE);
        }
        for &version in self.versions.reads(launch) {
            let writer = self.writer[version.index()];
            // The op's own write is no successor, and its memory has been counted.
            if writer != launch.0 {
                facts.successor = either(facts.successor, writer);
                facts.first_cluster = facts.first_cluster.min(cluster_of(writer));
                self.weigh(&mut facts, launch, version);
            }
            self.reader[version.index()] = either(self.reader[version.index()], launch.0);
        }
        facts
    }

    /// Adds the cluster of an op whose uses have been added.
    fn join(&mut self, launch: LaunchId, cluster: u32) {
        for &version in self.versions.reads(launch) {
            let first = &mut self.cluster[version.index()];
            *first = cluster.min(*first);
        }
    }

    fn weigh(&self, facts: &mut OpFacts, launch: LaunchId, version: Version) {
        let data = self.versions.tensor(version);
        if data.kind.is_made() {
            if self.first[version.index()] == launch.0 {
                facts.allocated_bytes = facts.allocated_bytes.saturating_add(data.bytes);
            }
            if self.writer[version.index()] == NONE && self.reader[version.index()] == NONE {
                facts.released_bytes = facts.released_bytes.saturating_add(data.bytes);
            }
        }
    }
}

/// The union of two sets of ops: the only op in it, or `NONE`, or `MANY`.
fn either(one: u32, other: u32) -> u32 {
    match (one, other) {
        (NONE, launch) | (launch, NONE) => launch,
        _ if one == other => one,
        _ => MANY,
    }
}
