//! A list schedule that frees memory early or reads states together.
//!
//! Among the first few clusters that are ready, in the given order, the cluster that frees most
//! memory runs next: bytes of temporaries that no other cluster will still use, less bytes of
//! temporaries that no cluster has used before. If no cluster frees memory, the first cluster that
//! allocates next to nothing runs, since others may wait for it, such as the correction of Adam's
//! moments, which all updates share. Otherwise the first cluster runs.
//!
//! To read states together, the schedule reads them in sets. The first ready cluster that reads no
//! state outside of the current set runs next, or one whose states still fit into the set. If there
//! is none, a new set begins. So the first micro-batch goes ahead as far as one set allows, and the
//! others follow. An update that frees more memory than it allocates runs at once, since the last
//! gradient of its weight exists.

#![expect(
    clippy::indexing_slicing,
    reason = "clusters, launches and versions are those of the sequence, and the arrays have an \
              entry for each"
)]

use super::accesses::Waits;
use super::batches::Batches;
use super::clusters::{Clusters, Join};
use super::versions::{Version, Versions};
use crate::graph::Kind;
use crate::planner::heap::Heap;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::LaunchId;

/// The number of ready clusters that are compared. A balance between better choices and the time of
/// each.
const COMPARED: usize = 64;

/// Allocations of at most this size do not count: more than the scalars that updates share, far
/// less than a chunk of any device.
const SMALL_BYTES: i64 = 4096;

/// No cluster.
const NONE: u32 = u32::MAX;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Waits::scratch_words(limits),
        words::<i64>(limits.ops),
        words::<u32>(Versions::most(limits)).saturating_mul(4),
        Heap::scratch_words(limits.ops),
    ])
}

/// Writes the launch at each position. O(launches × log + operands).
pub(super) fn write(
    versions: &Versions<'_>,
    clusters: &Clusters<'_>,
    (batches, join): (&Batches<'_>, Join),
    order: &mut [LaunchId],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let (launches, count) = (versions.sequence().len(), versions.len());
    let mut scratch = scratch.reborrow();
    let mut schedule = Schedule {
        versions,
        clusters,
        waits: Waits::new(versions, |launch| clusters.of(launch), &mut scratch)?,
        gain_bytes: scratch.take(launches, 0i64)?,
        seen_by: scratch.take(count, NONE)?,
        left: scratch.take(count, 0u32)?,
        mixed: scratch.take(count, 0u32)?,
        ready: Ready { first: heapless::Vec::new(), rest: Heap::new(launches, &mut scratch)? },
        set: Set { of: scratch.take(count, 0u32)?, number: 1, bytes: 0 },
        batches,
    };
    schedule.start();
    let mut order = order.iter_mut();
    let next = |schedule: &mut Schedule<'_, '_>| match join {
        Join::Light | Join::All => schedule.next(),
        Join::ByStates { set_bytes, batches, overlaps } => {
            schedule.next_by_states(set_bytes, (batches, overlaps))
        }
    };
    while let Some(cluster) = next(&mut schedule) {
        for (launch, slot) in clusters.ops(cluster).zip(&mut order) {
            *slot = launch;
        }
        schedule.run(cluster);
    }
    Ok(())
}

struct Schedule<'s, 'g> {
    versions: &'g Versions<'g>,
    clusters: &'g Clusters<'g>,
    /// The clusters that still wait for another cluster.
    waits: Waits<'s>,
    /// The bytes that each cluster would free, less the bytes that it would allocate.
    gain_bytes: &'s mut [i64],
    /// The last cluster that was visited for a version.
    seen_by: &'s mut [u32],
    /// The number of clusters that will still use a version, and the exclusive or of their numbers:
    /// if only one is left, its number.
    left: &'s mut [u32],
    mixed: &'s mut [u32],
    ready: Ready<'s>,
    set: Set<'s>,
    batches: &'g Batches<'g>,
}

/// The states that are read together.
struct Set<'s> {
    /// The last set that each state belonged to, counted from 1.
    of: &'s mut [u32],
    number: u32,
    bytes: u64,
}

impl<'s, 'g> Schedule<'s, 'g> {
    /// Computes the state before any cluster has run.
    fn start(&mut self) {
        let Self { versions, clusters, .. } = *self;
        for cluster in clusters.all() {
            self.visit(cluster, |schedule, version| {
                let left = &mut schedule.left[version.index()];
                *left = left.saturating_add(1);
                schedule.mixed[version.index()] ^= cluster;
            });
        }
        self.seen_by.fill(NONE);
        for version in versions.all() {
            if let Some(first) = self.waits.first(version) {
                self.gain(clusters.of(first), version, -1);
            }
            self.credit_release(version);
        }
        for cluster in clusters.all() {
            if self.waits.is_ready(cluster) {
                self.ready.insert(cluster);
            }
        }
    }

    /// Visits each version that a cluster uses once.
    fn visit(&mut self, cluster: u32, mut visit: impl FnMut(&mut Self, Version)) {
        for launch in self.clusters.ops(cluster) {
            for &version in self.versions.operands_of(launch) {
                if core::mem::replace(&mut self.seen_by[version.index()], cluster) != cluster {
                    visit(self, version);
                }
            }
        }
    }

    /// If only one cluster will still use a version, that cluster frees it.
    fn credit_release(&mut self, version: Version) {
        if self.left[version.index()] == 1 {
            self.gain(self.mixed[version.index()], version, 1);
        }
    }

    fn gain(&mut self, cluster: u32, version: Version, sign: i64) {
        let data = self.versions.tensor(version);
        if data.kind.is_made() {
            let bytes = i64::try_from(data.bytes).unwrap_or(i64::MAX);
            let gain_bytes = &mut self.gain_bytes[cluster as usize];
            *gain_bytes = gain_bytes.saturating_add(bytes.saturating_mul(sign));
        }
    }

    /// Removes and returns the cluster to run next.
    fn next(&mut self) -> Option<u32> {
        let gain_bytes = |at: usize| self.gain_bytes[self.ready.first[at] as usize];
        let mut ready = 0..self.ready.first.len();
        // Among equals, the first one.
        let most = ready.clone().rev().max_by_key(|&at| gain_bytes(at))?;
        let next = match gain_bytes(most) {
            1.. => most,
            _ => ready.find(|&at| gain_bytes(at) >= -SMALL_BYTES).unwrap_or(0),
        };
        Some(self.ready.take(next))
    }

    /// Removes and returns the cluster to run next if groups of micro-batches read states together.
    fn next_by_states(&mut self, set_bytes: u64, (size, overlaps): (u32, bool)) -> Option<u32> {
        let ready = &self.ready.first;
        if let Some(update) = ready.iter().position(|&cluster| self.is_update(cluster)) {
            return Some(self.ready.take(update));
        }
        let group = |cluster: u32| self.batches.group(cluster, size, overlaps);
        let first = ready.iter().map(|&cluster| group(cluster)).min()?;
        let is_among = |&cluster: &u32| group(cluster) == first;
        let has_room = |&cluster: &u32| {
            let added_bytes = self.added_bytes(cluster);
            added_bytes == 0 || self.set.bytes.saturating_add(added_bytes) <= set_bytes
        };
        let next = ready.iter().position(|cluster| is_among(cluster) && has_room(cluster));
        if next.is_none() {
            (self.set.number, self.set.bytes) = (self.set.number.saturating_add(1), 0);
        }
        let next = next.or_else(|| ready.iter().position(is_among))?;
        self.add_states(ready[next]);
        Some(self.ready.take(next))
    }

    /// The states that a cluster reads, op by op; a state may appear several times.
    fn states(&self, cluster: u32) -> impl Iterator<Item = Version> + use<'s, 'g> {
        let Self { versions, clusters, .. } = *self;
        let reads = clusters.ops(cluster).flat_map(|launch| versions.reads(launch));
        reads.copied().filter(|&version| versions.tensor(version).kind == Kind::State)
    }

    /// An upper bound of the bytes of states that a cluster would add to the set.
    fn added_bytes(&self, cluster: u32) -> u64 {
        let is_new = |version: &Version| self.set.of[version.index()] != self.set.number;
        let bytes =
            self.states(cluster).filter(is_new).map(|version| self.versions.tensor(version).bytes);
        bytes.fold(0, u64::saturating_add)
    }

    fn add_states(&mut self, cluster: u32) {
        self.set.bytes = self.set.bytes.saturating_add(self.added_bytes(cluster));
        for version in self.states(cluster) {
            self.set.of[version.index()] = self.set.number;
        }
    }

    /// Whether a cluster writes a state and frees memory.
    fn is_update(&self, cluster: u32) -> bool {
        let mut written =
            self.clusters.ops(cluster).flat_map(|launch| self.versions.writes(launch));
        self.gain_bytes[cluster as usize] > 0
            && written.any(|&version| self.versions.tensor(version).kind == Kind::State)
    }

    fn run(&mut self, cluster: u32) {
        let Self { versions, clusters, .. } = *self;
        self.visit(cluster, |schedule, version| {
            let left = &mut schedule.left[version.index()];
            *left = left.saturating_sub(1);
            schedule.mixed[version.index()] ^= cluster;
            schedule.credit_release(version);
        });
        for launch in clusters.ops(cluster) {
            let Self { waits, ready, .. } = self;
            waits.run(versions, launch, |launch| clusters.of(launch), |other| ready.insert(other));
        }
    }
}

/// The clusters that may run next.
struct Ready<'a> {
    /// The first ready clusters in the given order, sorted.
    first: heapless::Vec<u32, COMPARED>,
    /// All others.
    rest: Heap<'a>,
}

impl Ready<'_> {
    fn insert(&mut self, cluster: u32) {
        let is_full = self.first.is_full();
        if is_full && self.first.last().is_some_and(|&last| last < cluster) {
            self.rest.push(u64::from(cluster), cluster);
            return;
        }
        if is_full && let Some(last) = self.first.pop() {
            self.rest.push(u64::from(last), last);
        }
        let at = self.first.partition_point(|&other| other < cluster);
        // The vector is not full any more.
        let _ = self.first.insert(at, cluster);
    }

    /// Removes and returns the cluster at a position of `first`.
    fn take(&mut self, at: usize) -> u32 {
        let cluster = self.first.remove(at);
        if let Some((_, next)) = self.rest.pop() {
            // All others come after the first ones.
            let _ = self.first.push(next);
        }
        cluster
    }
}
