//! A list schedule that frees memory early or reads states together.
//!
//! Among the first few updates and the first few other clusters that are ready, in the given order,
//! the cluster that frees most memory runs next: bytes of temporaries that no other cluster will
//! still use, less bytes of temporaries that no cluster has used before. If no cluster frees memory,
//! the first cluster that allocates next to nothing runs, since others may wait for it, such as the
//! correction of Adam's moments, which all updates share. Otherwise the first cluster runs.
//!
//! Mixed precision makes copies of weights in a shorter format, for the forward and the backward
//! pass. If the weight is updated between the two, the copy must stay, since no repeat can make it
//! again. With [copies first](Join::CopiesFirst), an update waits for the ready clusters that read a
//! copy of its state.
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
use core::cmp::Reverse;

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
        words::<u32>(Versions::most(limits)).saturating_mul(5),
        Heap::scratch_words(limits.ops).saturating_mul(2),
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
        ready: Ready {
            updates: Window::new(launches, &mut scratch)?,
            others: Window::new(launches, &mut scratch)?,
        },
        set: Set { of: scratch.take(count, 0u32)?, number: 1, bytes: 0 },
        batches,
        copied: copied(versions, join, &mut scratch)?,
        counts_copies: !matches!(join, Join::ByStates { counts_copies: false, .. }),
    };
    schedule.start();
    let mut order = order.iter_mut();
    let next = |schedule: &mut Schedule<'_, '_>| match join {
        Join::Light | Join::All => schedule.next(),
        Join::CopiesFirst => schedule.next().map(|next| schedule.before_update(next)),
        Join::ByStates { set_bytes, batches, overlaps, .. } => {
            schedule.next_by_states(set_bytes, (batches, overlaps))
        }
    };
    while let Some(cluster) = next(&mut schedule) {
        schedule.ready.remove(cluster);
        for (launch, slot) in clusters.ops(cluster).zip(&mut order) {
            *slot = launch;
        }
        schedule.run(cluster);
    }
    Ok(())
}

/// The state that each version is a [copy](Versions::copied_state) of, or [`Version::NONE`]. O(operands).
fn copied<'s>(
    versions: &Versions<'_>,
    join: Join,
    scratch: &mut Scratch<'s>,
) -> Result<&'s [Version], OutOfScratch> {
    let copied = scratch.take(versions.len(), Version::NONE)?;
    for launch in versions.sequence().launches() {
        let state = match join {
            Join::ByStates { .. } => versions.computed_copy(launch),
            Join::Light | Join::All | Join::CopiesFirst => versions.copied_state(launch),
        };
        if let Some(state) = state {
            for version in versions.writes(launch) {
                copied[version.index()] = state;
            }
        }
    }
    Ok(copied)
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
    /// The state that each version is a copy of, as [`copied`] tells.
    copied: &'s [Version],
    /// Whether an op that makes a copy counts the state, although another op of the cluster reads the
    /// copy.
    counts_copies: bool,
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
                self.ready.insert(cluster, is_update(versions, clusters, cluster));
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

    /// The ready cluster to run next.
    fn next(&self) -> Option<u32> {
        let gain_bytes = |cluster: u32| self.gain_bytes[cluster as usize];
        // Among equals, the first one.
        let most =
            self.ready.all().max_by_key(|&cluster| (gain_bytes(cluster), Reverse(cluster)))?;
        let is_light = |&cluster: &u32| gain_bytes(cluster) >= -SMALL_BYTES;
        match gain_bytes(most) {
            1.. => Some(most),
            _ => self.ready.first(is_light).or_else(|| self.ready.first(|_| true)),
        }
    }

    /// The same if groups of micro-batches read states together.
    fn next_by_states(&mut self, set_bytes: u64, (size, overlaps): (u32, bool)) -> Option<u32> {
        let frees = |&update: &u32| self.gain_bytes[update as usize] > 0;
        if let Some(update) = self.ready.updates.find(frees) {
            return Some(self.before_update(update));
        }
        let group = |cluster: u32| self.batches.group(cluster, size, overlaps);
        let first = self.ready.all().map(group).min()?;
        let is_among = |&cluster: &u32| group(cluster) == first;
        let has_room = |&cluster: &u32| {
            let added_bytes = self.added_bytes(cluster);
            added_bytes == 0 || self.set.bytes.saturating_add(added_bytes) <= set_bytes
        };
        let within = self.ready.first(|cluster| is_among(cluster) && has_room(cluster));
        let next = within.or_else(|| self.ready.first(is_among))?;
        if within.is_none() {
            (self.set.number, self.set.bytes) = (self.set.number.saturating_add(1), 0);
        }
        self.add_states(next);
        Some(next)
    }

    /// If a cluster overwrites a state, a ready cluster that reads a copy of the state, since a
    /// repeat could not make the copy again afterwards; otherwise the cluster itself.
    fn before_update(&self, cluster: u32) -> u32 {
        let Self { versions, clusters, ready, .. } = self;
        if ready.updates.find(|&update| update == cluster).is_none() {
            return cluster;
        }
        let written = || clusters.ops(cluster).flat_map(|launch| versions.writes(launch));
        let is_overwritten = |state| written().any(|&version| version == state);
        let reads_a_copy = |&other: &u32| {
            let mut reads = clusters.ops(other).flat_map(|launch| versions.reads(launch));
            reads.any(|version| is_overwritten(self.copied[version.index()]))
        };
        ready.others.find(reads_a_copy).unwrap_or(cluster)
    }

    /// The states that a cluster reads or whose copies it reads, op by op; a state may appear several
    /// times.
    fn states(&self, cluster: u32) -> impl Iterator<Item = Version> + use<'s, 'g> {
        let Self { versions, clusters, copied, counts_copies, .. } = *self;
        // If another op of the cluster reads a copy, that op counts the state.
        let counts = move |launch: &LaunchId| {
            let mut writes = versions.writes(*launch).iter();
            counts_copies
                || launch.0 == cluster
                || writes.all(|version| copied[version.index()] == Version::NONE)
        };
        let counted = clusters.ops(cluster).filter(counts);
        let reads = counted.flat_map(|launch| versions.reads(launch));
        reads.filter_map(|&version| match copied[version.index()] {
            Version::NONE => (versions.tensor(version).kind == Kind::State).then_some(version),
            state => Some(state),
        })
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
            waits.run(
                versions,
                launch,
                |launch| clusters.of(launch),
                |other| {
                    ready.insert(other, is_update(versions, clusters, other));
                },
            );
        }
    }
}

/// Whether a cluster writes a state.
fn is_update(versions: &Versions<'_>, clusters: &Clusters<'_>, cluster: u32) -> bool {
    let mut written = clusters.ops(cluster).flat_map(|launch| versions.writes(launch));
    written.any(|&version| versions.tensor(version).kind == Kind::State)
}

/// The clusters that may run next. Updates have a window of their own: they free gradients, but are
/// often the last clusters in the given order, behind many others that are ready.
struct Ready<'a> {
    updates: Window<'a>,
    others: Window<'a>,
}

impl Ready<'_> {
    /// The first updates, and the first other clusters.
    fn all(&self) -> impl Iterator<Item = u32> {
        self.others.first.iter().chain(&self.updates.first).copied()
    }

    /// The first of all these clusters that is wanted.
    fn first(&self, is_wanted: impl Fn(&u32) -> bool) -> Option<u32> {
        let [update, other] = [&self.updates, &self.others].map(|window| window.find(&is_wanted));
        update.into_iter().chain(other).min()
    }

    fn insert(&mut self, cluster: u32, is_update: bool) {
        if is_update { &mut self.updates } else { &mut self.others }.insert(cluster);
    }

    fn remove(&mut self, cluster: u32) {
        let _ = self.updates.remove(cluster) || self.others.remove(cluster);
    }
}

/// Clusters in the given order.
struct Window<'a> {
    /// The first ones, sorted.
    first: heapless::Vec<u32, COMPARED>,
    /// All others.
    rest: Heap<'a>,
}

impl<'a> Window<'a> {
    fn new(launches: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        Ok(Self { first: heapless::Vec::new(), rest: Heap::new(launches, scratch)? })
    }

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

    /// The first cluster of the window that is wanted.
    fn find(&self, is_wanted: impl Fn(&u32) -> bool) -> Option<u32> {
        self.first.iter().copied().find(is_wanted)
    }

    /// Removes one of the first clusters. Returns false if it is not among them.
    fn remove(&mut self, cluster: u32) -> bool {
        let Ok(at) = self.first.binary_search(&cluster) else { return false };
        self.first.remove(at);
        if let Some((_, next)) = self.rest.pop() {
            // All others come after the first ones.
            let _ = self.first.push(next);
        }
        true
    }
}
