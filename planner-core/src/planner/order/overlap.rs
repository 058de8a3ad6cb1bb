//! Lets the backward pass of some micro-batches overlap the forward pass of the next ones.
//!
//! A forward pass offloads the values that its backward pass reads. If one pass follows the other,
//! the forward pass waits for downloads, and the backward pass waits for uploads. Here the second half of each group of micro-batches runs among the first half of the next group, both
//! at an even pace, so that both links are busy all the time. The first half of a group ends at the
//! op at which its values take most memory.

#![expect(
    clippy::indexing_slicing,
    reason = "launches, versions and groups are those of the sequence, and the arrays have an entry \
              for each"
)]

use super::accesses::Waits;
use super::batches::Batches;
use super::versions::Versions;
use crate::planner::heap::Heap;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::LaunchId;

/// No op, or no single group.
const NONE: u32 = u32::MAX;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        Waits::scratch_words(limits),
        Heap::scratch_words(limits.ops),
        words::<u64>(limits.ops),
        words::<Group>(limits.ops),
        words::<u32>(Versions::most(limits)).saturating_mul(3),
    ])
}

/// The micro-batches of a group: the bytes of their values that are alive; the most such bytes; the
/// position at which their first half ends; the time of each half; and the time of each half so
/// far.
type Group = [u64; 7];
const ALIVE: usize = 0;
const MOST: usize = 1;
const TURN: usize = 2;
const TIME: [usize; 2] = [3, 4];
const SO_FAR: [usize; 2] = [5, 6];

/// Arranges an order in which `size` micro-batches run together, one group after the other.
/// O(launches × log + operands).
pub(super) fn write(
    versions: &Versions<'_>,
    (batches, size): (&Batches<'_>, u32),
    order: &mut [LaunchId],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let keys = scratch.take(order.len(), 0u64)?;
    pace(versions, |launch| batches.group(launch.0, size, true), order, keys, &mut scratch)?;
    sort(versions, keys, order, &mut scratch)
}

/// Computes the key of each launch: the number of the stage in which it runs, and its part of that
/// stage. The second half of a group shares a stage with the first half of the next group.
fn pace(
    versions: &Versions<'_>,
    group_of: impl Fn(LaunchId) -> u32,
    order: &[LaunchId],
    keys: &mut [u64],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let sequence = versions.sequence();
    let last = order.iter().map(|&launch| group_of(launch)).max();
    let count = last.map_or(0, |last| (last as usize).saturating_add(1));
    let mut scratch = scratch.reborrow();
    let groups = scratch.take(count, Group::default())?;
    find_turns(versions, &group_of, order, groups, &mut scratch)?;
    let place = |groups: &[Group], at: usize, launch| {
        let group = group_of(launch) as usize;
        (group, usize::from(at as u64 > groups[group][TURN]))
    };
    for (at, &launch) in order.iter().enumerate() {
        let (group, half) = place(groups, at, launch);
        let time_ns = &mut groups[group][TIME[half]];
        *time_ns = time_ns.saturating_add(sequence.time_ns(launch));
    }
    for (at, &launch) in order.iter().enumerate() {
        let (group, half) = place(groups, at, launch);
        let facts = &mut groups[group];
        let (time_ns, so_far_ns) = (facts[TIME[half]].max(1), facts[SO_FAR[half]]);
        let part = (u128::from(so_far_ns) << 32).checked_div(time_ns.into());
        let part = part.and_then(|part| u32::try_from(part).ok()).unwrap_or(u32::MAX);
        keys[launch.index()] = (group.saturating_add(half) as u64) << 32 | u64::from(part);
        facts[SO_FAR[half]] = so_far_ns.saturating_add(sequence.time_ns(launch));
    }
    Ok(())
}

/// Finds the end of each group's first half. Values that several groups use do not count: gradients
/// grow until the last backward pass ends.
fn find_turns(
    versions: &Versions<'_>,
    group_of: impl Fn(LaunchId) -> u32,
    order: &[LaunchId],
    groups: &mut [Group],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let owner = scratch.take(versions.len(), NONE)?;
    let first = scratch.take(versions.len(), NONE)?;
    let last = scratch.take(versions.len(), NONE)?;
    for (at, &launch) in (0u32..).zip(order) {
        let group = group_of(launch);
        for version in versions.operands_of(launch) {
            let (owner, first) = (&mut owner[version.index()], &mut first[version.index()]);
            (*owner, *first) = match *first {
                NONE => (group, at),
                first if *owner == group => (group, first),
                first => (NONE, first),
            };
            last[version.index()] = at;
        }
    }
    for (at, &launch) in (0u32..).zip(order) {
        let facts = &mut groups[group_of(launch) as usize];
        let of_group = || {
            let operands = versions.operands_of(launch).iter();
            let of_group = operands.filter(|version| owner[version.index()] != NONE);
            let made = of_group.filter(|&&version| versions.tensor(version).kind.is_made());
            made.map(|&version| (version.index(), versions.tensor(version).bytes))
        };
        let begun = of_group().filter(|&(version, _)| first[version] == at);
        facts[ALIVE] = begun.fold(facts[ALIVE], |sum, (_, bytes)| sum.saturating_add(bytes));
        if facts[ALIVE] > facts[MOST] {
            (facts[MOST], facts[TURN]) = (facts[ALIVE], u64::from(at));
        }
        let ended = of_group().filter(|&(version, _)| last[version] == at);
        facts[ALIVE] = ended.fold(facts[ALIVE], |sum, (_, bytes)| sum.saturating_sub(bytes));
    }
    Ok(())
}

/// Sorts launches by their keys. A launch that waits for another launch comes after it, whatever
/// their keys are.
fn sort(
    versions: &Versions<'_>,
    keys: &[u64],
    order: &mut [LaunchId],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let mut waits = Waits::new(versions, |launch| launch.0, &mut scratch)?;
    let mut ready = Heap::new(order.len(), &mut scratch)?;
    for launch in versions.sequence().launches().filter(|launch| waits.is_ready(launch.0)) {
        ready.push(keys[launch.index()], launch.0);
    }
    for slot in order {
        let Some((_, launch)) = ready.pop() else { break };
        *slot = LaunchId(launch);
        let push = |other: u32| {
            ready.push(keys[other as usize], other);
        };
        waits.run(versions, *slot, |launch| launch.0, push);
    }
    Ok(())
}
