//! Assigns a chunk of the device to each chunk of the second plan.

#![expect(
    clippy::indexing_slicing,
    reason = "positions come from searches in arrays with an entry for each match or run"
)]

use super::chunks::ChunkRun;
use super::error::SwitchError;
use super::planner::{Rows, out_of_scratch, overlaps};
use super::push_list::PushList;
use crate::scratch::{Buffer, OutOfScratch, Scratch, total, words};
use bytemuck::{Pod, Zeroable};
use core::iter;

/// A run of chunks that hold the same bytes at the same offsets in both plans.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Match {
    run: ChunkRun,
    /// Number of equal bytes in each chunk.
    chunk_bytes: u64,
}

/// A row has at most one partly filled chunk at either end, and whole chunks between them.
const fn most_matches(rows: usize) -> usize {
    rows.saturating_mul(3)
}

/// Matches, runs that keep their numbers, and runs that get any number. Between sorted runs there
/// is one gap more than there are runs.
const fn most_runs(rows: usize) -> usize {
    most_matches(rows).saturating_mul(9).saturating_add(16)
}

/// Words of scratch that [`number`] needs.
pub(super) const fn scratch_words(rows: usize) -> usize {
    let matches = most_matches(rows);
    total([
        words::<Match>(matches),
        words::<u64>(matches).saturating_mul(2),
        words::<u8>(matches).saturating_mul(2),
        words::<ChunkRun>(most_runs(rows)).saturating_mul(3),
    ])
}

/// Numbers the second plan's chunks. `counts` are the numbers of its chunks and of the device's.
pub(super) fn number<'a>(
    rows: &Rows<'_>,
    chunk_bytes: u64,
    counts: [u64; 2],
    out: &'a mut [ChunkRun],
    scratch: &mut Scratch<'_>,
) -> Result<&'a [ChunkRun], SwitchError> {
    let count = rows.from.len().saturating_add(rows.to.len());
    let matches = scratch.take(most_matches(count), Match::zeroed())?;
    let found = find(rows, chunk_bytes, matches)?;
    let matches = join(&mut matches[..found]);
    let most = most_runs(count);
    let mut runs = Runs {
        list: PushList::new(most, scratch)?,
        by_plan: scratch.take(most, ChunkRun::zeroed())?,
        by_device: scratch.take(most, ChunkRun::zeroed())?,
        counts,
    };
    take_best(matches, &mut runs.list, scratch)?;
    // Memory that is mapped as a whole then has few runs.
    runs.keep_numbers()?;
    runs.fill_up()?;
    runs.write(out)
}

/// Finds all chunks that hold the same bytes in both plans. A run of whole chunks is one match.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "chunks have bytes, a match has at most the bytes that are missing, and `len` is the \
              position of a match"
)]
fn find(rows: &Rows<'_>, chunk_bytes: u64, matches: &mut [Match]) -> Result<usize, OutOfScratch> {
    let mut len = 0;
    for overlap in overlaps(rows.from, rows.to) {
        let [from, to] = overlap.rows;
        let mut from_at = rows.from[from].at_byte(overlap.first_byte);
        let mut to_at = rows.to[to].at_byte(overlap.first_byte);
        if from_at % chunk_bytes != to_at % chunk_bytes {
            continue;
        }
        let mut missing = overlap.bytes;
        while missing > 0 {
            let whole = missing / chunk_bytes;
            let (count, bytes) = if from_at.is_multiple_of(chunk_bytes) && whole > 0 {
                (whole, chunk_bytes)
            } else {
                (1, missing.min(chunk_bytes - from_at % chunk_bytes))
            };
            let (first, device_first) = (to_at / chunk_bytes, from_at / chunk_bytes);
            let slot = matches.get_mut(len).ok_or(out_of_scratch::<Match>(len + 1))?;
            *slot = Match { run: ChunkRun { first, device_first, count }, chunk_bytes: bytes };
            len += 1;
            let matched_bytes = count * bytes;
            from_at = from_at.saturating_add(matched_bytes);
            to_at = to_at.saturating_add(matched_bytes);
            missing -= matched_bytes;
        }
    }
    Ok(len)
}

/// Adds up the equal bytes of all tensors in the same two chunks, and sorts by bytes.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "equal bytes are at most those of a chunk, and `len` counts matches"
)]
fn join(matches: &mut [Match]) -> &[Match] {
    matches.sort_unstable_by_key(|found| (found.run.first, found.run.device_first));
    let mut len = 0usize;
    for at in 0..matches.len() {
        let found = matches[at];
        let is_same = |last: &Match| {
            let key = |run: ChunkRun| (run.first, run.device_first, run.count);
            key(last.run) == key(found.run)
        };
        match len.checked_sub(1).map(|last| &mut matches[last]).filter(|last| is_same(last)) {
            Some(last) => last.chunk_bytes += found.chunk_bytes,
            None => {
                matches[len] = found;
                len += 1;
            }
        }
    }
    let matches = &mut matches[..len];
    // Among equal matches, a chunk that keeps its number comes first: then a plan that runs again
    // finds its chunks mapped.
    let key = |found: &Match| {
        let ChunkRun { first, device_first, .. } = found.run;
        (core::cmp::Reverse(found.chunk_bytes), first != device_first, first, device_first)
    };
    matches.sort_unstable_by_key(key);
    matches
}

/// Takes matches in the order of bytes, largest first, if neither of their chunks is taken.
///
/// A chunk that one match fills is in no other match, since its bytes are nowhere else. So only
/// partly filled chunks can be taken already.
fn take_best(
    matches: &[Match],
    list: &mut PushList<'_, ChunkRun>,
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let keys = [|run: &ChunkRun| run.first, |run: &ChunkRun| run.device_first];
    let mut sorted = [scratch.take(matches.len(), 0u64)?, scratch.take(matches.len(), 0u64)?];
    let taken = [scratch.take(matches.len(), 0u8)?, scratch.take(matches.len(), 0u8)?];
    for (sorted, key) in sorted.iter_mut().zip(keys) {
        for (slot, found) in sorted.iter_mut().zip(matches) {
            *slot = key(&found.run);
        }
        sorted.sort_unstable();
    }
    for found in matches {
        let slots = [0, 1].map(|side| {
            let chunk = keys[side](&found.run);
            sorted[side].partition_point(|&other| other < chunk)
        });
        if taken[0][slots[0]] == 0 && taken[1][slots[1]] == 0 {
            (taken[0][slots[0]], taken[1][slots[1]]) = (1, 1);
            list.push(found.run)?;
        }
    }
    Ok(())
}

/// Consecutive chunks of the second plan without a number, or of the device without an owner.
#[derive(Clone, Copy, Debug)]
struct Gap {
    first: u64,
    count: u64,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "a gap lies within the chunks of a plan or a device, whose number has 64 bits"
)]
impl Gap {
    const fn end(self) -> u64 {
        self.first + self.count
    }

    /// The gap without its first `count` chunks, if any chunks are left.
    fn after(self, count: u64) -> Option<Self> {
        let rest = Self { first: self.first + count, count: self.count - count };
        (rest.count > 0).then_some(rest)
    }
}

/// The runs that are assigned so far, in any order.
struct Runs<'s> {
    list: PushList<'s, ChunkRun>,
    /// The same runs, sorted by the plan's chunks, and by the device's.
    by_plan: &'s mut [ChunkRun],
    by_device: &'s mut [ChunkRun],
    /// The numbers of chunks of the second plan and of the device.
    counts: [u64; 2],
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "runs lie within the chunks of a plan and of a device, whose numbers have 64 bits, and \
              `len` counts runs"
)]
impl<'s> Runs<'s> {
    /// The list, the gaps in the plan's chunks, and the gaps in the device's chunks.
    fn gaps(&mut self) -> (&mut PushList<'s, ChunkRun>, [impl Iterator<Item = Gap>; 2]) {
        let Self { list, by_plan, by_device, counts: [plan_chunks, device_chunks] } = self;
        let runs = list.entries();
        let (by_plan, by_device) = (&mut by_plan[..runs.len()], &mut by_device[..runs.len()]);
        by_plan.copy_from_slice(runs);
        by_plan.sort_unstable_by_key(|run| run.first);
        by_device.copy_from_slice(by_plan);
        by_device.sort_unstable_by_key(|run| run.device_first);
        let first: [fn(&ChunkRun) -> u64; 2] = [|run| run.first, |run| run.device_first];
        let gaps = [
            between(by_plan, first[0], *plan_chunks),
            between(by_device, first[1], *device_chunks),
        ];
        (list, gaps)
    }

    /// Gives each chunk without a number its own number if that chunk of the device is free.
    fn keep_numbers(&mut self) -> Result<(), OutOfScratch> {
        let (list, [mut gaps, mut frees]) = self.gaps();
        let (mut gap, mut free) = (gaps.next(), frees.next());
        while let (Some(this), Some(that)) = (gap, free) {
            let (first, end) = (this.first.max(that.first), this.end().min(that.end()));
            if first < end {
                list.push(ChunkRun { first, device_first: first, count: end - first })?;
            }
            if this.end() <= that.end() { gap = gaps.next() } else { free = frees.next() }
        }
        Ok(())
    }

    /// Gives all other chunks the free chunks in order.
    fn fill_up(&mut self) -> Result<(), OutOfScratch> {
        let (list, [mut gaps, mut frees]) = self.gaps();
        let (mut gap, mut free) = (gaps.next(), frees.next());
        while let (Some(this), Some(that)) = (gap, free) {
            let count = this.count.min(that.count);
            list.push(ChunkRun { first: this.first, device_first: that.first, count })?;
            gap = this.after(count).or_else(|| gaps.next());
            free = that.after(count).or_else(|| frees.next());
        }
        Ok(())
    }

    /// Sorts the runs, joins consecutive runs, and writes them to `out`.
    fn write<'a>(&mut self, out: &'a mut [ChunkRun]) -> Result<&'a [ChunkRun], SwitchError> {
        let runs = self.list.entries();
        runs.sort_unstable_by_key(|run| run.first);
        let mut len = 0usize;
        for at in 0..runs.len() {
            let run = runs[at];
            let continues = |last: &&mut ChunkRun| {
                last.first + last.count == run.first
                    && last.device_first + last.count == run.device_first
            };
            let last = len.checked_sub(1).map(|last| &mut runs[last]);
            match last.filter(continues) {
                Some(last) => last.count += run.count,
                None => {
                    runs[len] = run;
                    len += 1;
                }
            }
        }
        let out = Buffer::Chunks.first(out, len)?;
        out.copy_from_slice(&runs[..len]);
        Ok(out)
    }
}

/// The gaps between sorted runs, up to a limit.
fn between(
    runs: &[ChunkRun],
    first: fn(&ChunkRun) -> u64,
    limit: u64,
) -> impl Iterator<Item = Gap> + '_ {
    let mut next = 0;
    let begins = runs.iter().map(move |run| (first(run), run.count)).chain(iter::once((limit, 0)));
    begins.filter_map(move |(first, count)| {
        let gap = Gap { first: next, count: first.saturating_sub(next) };
        next = first.saturating_add(count);
        (gap.count > 0).then_some(gap)
    })
}
