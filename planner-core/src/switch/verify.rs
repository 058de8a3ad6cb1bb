//! Proves that a switch is safe.
//!
//! The keep and evict steps must tile the rows that the first plan holds, and the keep and prefetch
//! steps must tile the rows that the second plan holds at its start. So each byte is kept or
//! evicted once. The rest is a matter of list order. A step may rely on the effects of steps before
//! it: a prefetch waits for all offloads before it; an offload reads bytes that are evicted only
//! later; and an offload makes no other host bytes valid than the bytes that it writes.

#![expect(
    clippy::indexing_slicing,
    reason = "rows and ranges are found by searches in the arrays that are indexed"
)]

use super::chunks::{ChunkMap, ChunkRun};
use super::error::SwitchError;
use super::held::{self, Held, Holding};
use super::planner::{check_memory, most_rows};
use super::states::{self, SharedState};
use super::{Switch, SwitchPrediction, SwitchStep, TensorBytes};
use crate::graph::TensorId;
use crate::pieces::Pieces;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::verify::Verified;
use bytemuck::{Pod, Zeroable};

/// A switch that is proved safe. An executor runs no other.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedSwitch<'a, 'b> {
    pub(crate) holding: Holding<'a>,
    pub(crate) to: Verified<'b>,
    pub(crate) states: &'a [SharedState],
    pub(crate) switch: Switch<'a>,
    /// Whether the host holds the values of all states after the switch.
    pub(crate) is_saved: bool,
}

impl<'a, 'b> VerifiedSwitch<'a, 'b> {
    /// The states from which the switch starts.
    #[must_use]
    pub const fn holding(&self) -> &Holding<'a> {
        &self.holding
    }

    /// The plan to which the switch leads.
    #[must_use]
    pub const fn to(&self) -> &Verified<'b> {
        &self.to
    }

    /// The chunks and steps of the switch.
    #[must_use]
    pub const fn switch(&self) -> &Switch<'a> {
        &self.switch
    }
}

/// Bytes that the first plan holds, with the step that keeps or evicts them.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct HeldRange {
    tensor: u32,
    /// 1 if the host holds them at the start, else 0.
    host_copy: u32,
    first_byte: u64,
    bytes: u64,
    at: u64,
    /// The step that keeps or evicts them.
    step: u32,
    /// The step that offloads them, or [`NEVER`].
    offload: u32,
    /// The step that evicts them, or [`NEVER`] if they are kept.
    evict: u32,
    padding: u32,
}

/// No step.
const NEVER: u32 = u32::MAX;

/// A row of bytes that a plan holds, or the bytes of a step.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Row {
    tensor: u32,
    host_copy: u32,
    first_byte: u64,
    bytes: u64,
    /// For a row of the first plan, the offset in the device's chunks; of the second, the offset in
    /// its own chunks; for the bytes of a step, the step.
    at: u64,
}

impl HeldRange {
    const fn end_byte(&self) -> u64 {
        self.first_byte.saturating_add(self.bytes)
    }

    const fn end_at(&self) -> u64 {
        self.at.saturating_add(self.bytes)
    }
}

/// Words of scratch that [`verify`] needs, by [`Limits::of_plan`] of the first and the second plan,
/// the number of [entries](Holding::entries) that the first plan holds, and the numbers of chunk
/// runs and steps of the switch.
#[must_use]
pub const fn verify_scratch_words(
    from: &Limits,
    to: &Limits,
    entries: usize,
    chunks: usize,
    steps: usize,
) -> usize {
    total([
        Pieces::scratch_words(to),
        words::<u64>(to.pools).saturating_mul(2),
        states::scratch_words(from, to),
        words::<Row>(most_rows(to).saturating_add(steps)),
        words::<HeldRange>(steps.saturating_add(entries)),
        words::<u32>(steps),
        words::<[u64; 2]>(chunks),
        words::<Row>(entries),
    ])
}

/// Proves that a switch is safe and its prediction exact. O((rows + steps) log steps).
///
/// # Errors
/// The first rule that the switch breaks.
pub fn verify<'a, 'b>(
    holding: &Holding<'a>,
    to: &Verified<'b>,
    states: &'a [SharedState],
    switch: &Switch<'a>,
    scratch: &mut Scratch<'_>,
) -> Result<VerifiedSwitch<'a, 'b>, SwitchError> {
    let mut scratch = scratch.reborrow();
    check_memory(holding, to)?;
    if switch.steps.len() >= NEVER as usize {
        return Err(SwitchError::Overflow);
    }
    let to_ids = states::pair_up(holding.verified.graph(), to.graph(), states, &mut scratch)?;
    check_chunks(switch.chunks, held::chunks(to), holding.capacity.chunks, &mut scratch)?;
    let proof = Proof {
        steps: switch.steps,
        map: ChunkMap(switch.chunks),
        chunk_bytes: to.machine().chunk_bytes,
        held: held_rows(holding, to_ids, &mut scratch)?,
        wanted: wanted_rows(to, &mut scratch)?,
    };
    let ranges = proof.ranges(&mut scratch)?;
    proof.check_host(ranges)?;
    proof.check_arrivals(ranges, &mut scratch)?;
    let machine = to.machine();
    let exact = SwitchPrediction::of(switch.steps, machine).ok_or(SwitchError::Overflow)?;
    check_prediction(&switch.predicted, &exact)?;
    let is_saved = ranges.iter().all(|range| range.host_copy != 0 || range.offload != NEVER);
    Ok(VerifiedSwitch { holding: *holding, to: *to, states, switch: *switch, is_saved })
}

/// Checks that each chunk of the plan is a chunk of the device, and that no two are the same.
fn check_chunks(
    runs: &[ChunkRun],
    plan_chunks: u64,
    device_chunks: u64,
    scratch: &mut Scratch<'_>,
) -> Result<(), SwitchError> {
    let mut next = 0u64;
    for (run, number) in runs.iter().zip(0..) {
        let device_end = run.device_first.checked_add(run.count);
        let is_sound = run.first == next
            && run.count > 0
            && device_end.is_some_and(|end| end <= device_chunks);
        let end = next.checked_add(run.count).filter(|_| is_sound);
        next = end.ok_or(SwitchError::Chunks { run: number })?;
    }
    let end = SwitchError::Chunks { run: runs.len() as u32 };
    if next != plan_chunks {
        return Err(end);
    }
    let mut scratch = scratch.reborrow();
    let on_device = scratch.take(runs.len(), [0u64; 2])?;
    for (slot, run) in on_device.iter_mut().zip(runs) {
        *slot = [run.device_first, run.count];
    }
    on_device.sort_unstable();
    let overlap = |pair: &[[u64; 2]]| pair[0][0].saturating_add(pair[0][1]) > pair[1][0];
    if on_device.windows(2).any(overlap) { Err(end) } else { Ok(()) }
}

fn check_prediction(
    claimed: &SwitchPrediction,
    exact: &SwitchPrediction,
) -> Result<(), SwitchError> {
    let figures = [
        ("kept_bytes", claimed.kept_bytes, exact.kept_bytes),
        ("h2d_bytes", claimed.h2d_bytes, exact.h2d_bytes),
        ("d2h_bytes", claimed.d2h_bytes, exact.d2h_bytes),
        ("time_ns", claimed.time_ns, exact.time_ns),
    ];
    for (figure, claimed, exact) in figures {
        if claimed != exact {
            return Err(SwitchError::Prediction { figure, claimed, exact });
        }
    }
    Ok(())
}

/// The rows that the first plan holds, sorted by the second graph's tensors.
fn held_rows<'s>(
    holding: &Holding<'_>,
    to_ids: &[u32],
    scratch: &mut Scratch<'s>,
) -> Result<&'s [Row], OutOfScratch> {
    let rows = scratch.take(holding.entries.len(), Row::zeroed())?;
    for (row, held) in rows.iter_mut().zip(holding.entries) {
        *row = Row::new(to_ids[held.tensor.index()], held);
    }
    rows.sort_unstable_by_key(|row| (row.tensor, row.first_byte));
    Ok(rows)
}

/// The rows that the second plan holds at its start, sorted by tensor.
fn wanted_rows<'s>(to: &Verified<'_>, scratch: &mut Scratch<'s>) -> Result<&'s [Row], SwitchError> {
    let count = held::rows_at_start(to, scratch)?;
    let rows = scratch.take(count, Row::zeroed())?;
    let mut slots = rows.iter_mut();
    held::at_start(to, scratch, |held| {
        if let Some(slot) = slots.next() {
            *slot = Row::new(held.tensor.0, &held);
        }
    })?;
    rows.sort_unstable_by_key(|row| (row.tensor, row.first_byte));
    Ok(rows)
}

impl Row {
    fn new(tensor: u32, held: &Held) -> Self {
        let Held { first_byte, bytes, at, host_copy, .. } = *held;
        Self { tensor, host_copy: host_copy.into(), first_byte, bytes, at }
    }

    /// The row that contains all of some bytes, and the offset in it at which they begin.
    fn find(rows: &[Self], bytes: TensorBytes) -> Option<(usize, u64)> {
        let TensorBytes { tensor, first_byte, bytes } = bytes;
        let after =
            rows.partition_point(|row| (row.tensor, row.first_byte) <= (tensor.0, first_byte));
        let number = after.checked_sub(1)?;
        let row = &rows[number];
        let skipped = first_byte.checked_sub(row.first_byte)?;
        let end = skipped.checked_add(bytes)?;
        (row.tensor == tensor.0 && bytes > 0 && end <= row.bytes).then_some((number, skipped))
    }
}

struct Proof<'p> {
    steps: &'p [SwitchStep],
    map: ChunkMap<'p>,
    chunk_bytes: u64,
    /// The rows of the first plan, with offsets on the device; sorted.
    held: &'p [Row],
    /// The rows of the second plan at its start, with offsets in its own chunks; sorted.
    wanted: &'p [Row],
}

impl Proof<'_> {
    fn numbered(&self) -> impl Iterator<Item = (u32, &SwitchStep)> {
        (0..).zip(self.steps)
    }

    /// The ranges of all bytes that the first plan holds, sorted by tensor.
    #[expect(clippy::arithmetic_side_effects, reason = "`len` counts steps")]
    fn ranges<'s>(&self, scratch: &mut Scratch<'s>) -> Result<&'s [HeldRange], SwitchError> {
        let ranges = scratch.take(self.steps.len(), HeldRange::zeroed())?;
        let mut len = 0;
        for (step, action) in self.numbered() {
            let (SwitchStep::Keep(bytes) | SwitchStep::Evict(bytes)) = *action else { continue };
            let (row, skipped) =
                Row::find(self.held, bytes).ok_or(SwitchError::NotHeld { step })?;
            let row = &self.held[row];
            let evicts = matches!(action, SwitchStep::Evict(_));
            ranges[len] = HeldRange {
                tensor: row.tensor,
                host_copy: row.host_copy,
                first_byte: bytes.first_byte,
                bytes: bytes.bytes,
                at: row.at.saturating_add(skipped),
                step,
                offload: NEVER,
                evict: if evicts { step } else { NEVER },
                padding: 0,
            };
            len += 1;
        }
        let ranges = &mut ranges[..len];
        ranges.sort_unstable_by_key(|range| (range.tensor, range.first_byte));
        check_tiles(
            self.held,
            ranges.iter().map(|range| Tile {
                tensor: range.tensor,
                first_byte: range.first_byte,
                end_byte: range.end_byte(),
                step: range.step,
            }),
            SwitchError::LeftOver,
        )?;
        self.record_offloads(ranges)?;
        Ok(ranges)
    }

    fn record_offloads(&self, ranges: &mut [HeldRange]) -> Result<(), SwitchError> {
        for (step, action) in self.numbered() {
            let SwitchStep::Offload(bytes) = *action else { continue };
            let key = (bytes.tensor.0, bytes.first_byte);
            let at = ranges.binary_search_by_key(&key, |range| (range.tensor, range.first_byte));
            let range = at.ok().map(|at| &mut ranges[at]);
            let range = range.filter(|range| range.bytes == bytes.bytes);
            let range = range.ok_or(SwitchError::NotHeld { step })?;
            if range.offload != NEVER {
                return Err(SwitchError::Twice { step });
            }
            if range.host_copy != 0 {
                return Err(SwitchError::NeedlessOffload { step });
            }
            range.offload = step;
        }
        Ok(())
    }

    /// Checks that evicted bytes have reached the host before, and that kept bytes reach it if the
    /// second plan claims a host copy.
    fn check_host(&self, ranges: &[HeldRange]) -> Result<(), SwitchError> {
        for range in ranges {
            let HeldRange { tensor, first_byte, bytes, step, offload, evict, .. } = *range;
            let tensor = TensorId(tensor);
            if evict != NEVER {
                if range.host_copy == 0 && offload >= evict {
                    return Err(SwitchError::ValueLost { step });
                }
                continue;
            }
            let named = TensorBytes { tensor, first_byte, bytes };
            let (row, skipped) =
                Row::find(self.wanted, named).ok_or(SwitchError::NotWanted { step })?;
            let row = &self.wanted[row];
            let mut at = range.at;
            for (there, bytes) in self.on_device(row.at.saturating_add(skipped), bytes) {
                if there != at {
                    return Err(SwitchError::Elsewhere { step });
                }
                at = at.saturating_add(bytes);
            }
            if row.host_copy != 0 && range.host_copy == 0 && offload == NEVER {
                return Err(SwitchError::ClaimedHostCopy(tensor));
            }
        }
        Ok(())
    }

    fn on_device(&self, at: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        self.map.bytes_on_device(at, bytes, self.chunk_bytes)
    }

    /// Checks that all bytes that the second plan holds are on the device in the end, and that
    /// prefetches read valid host copies and write free memory.
    #[expect(clippy::arithmetic_side_effects, reason = "`len` counts steps")]
    fn check_arrivals(
        &self,
        ranges: &[HeldRange],
        scratch: &mut Scratch<'_>,
    ) -> Result<(), SwitchError> {
        let by_address = scratch.take(ranges.len(), 0u32)?;
        for (slot, number) in by_address.iter_mut().zip(0..) {
            *slot = number;
        }
        by_address.sort_unstable_by_key(|&number| ranges[number as usize].at);
        let tiles = scratch.take(self.steps.len(), Row::zeroed())?;
        let mut len = 0;
        for (step, action) in self.numbered() {
            let bytes = match *action {
                SwitchStep::Keep(bytes) => bytes,
                SwitchStep::Prefetch(bytes) => {
                    self.check_prefetch(step, bytes, ranges, by_address)?;
                    bytes
                }
                SwitchStep::Offload(_) | SwitchStep::Evict(_) => continue,
            };
            let TensorBytes { tensor: TensorId(tensor), first_byte, bytes } = bytes;
            tiles[len] = Row { tensor, host_copy: 0, first_byte, bytes, at: step.into() };
            len += 1;
        }
        let tiles = &mut tiles[..len];
        tiles.sort_unstable_by_key(|tile| (tile.tensor, tile.first_byte));
        check_tiles(
            self.wanted,
            tiles.iter().map(|tile| Tile {
                tensor: tile.tensor,
                first_byte: tile.first_byte,
                end_byte: tile.first_byte.saturating_add(tile.bytes),
                step: tile.at as u32,
            }),
            SwitchError::Missing,
        )
    }

    fn check_prefetch(
        &self,
        step: u32,
        bytes: TensorBytes,
        ranges: &[HeldRange],
        by_address: &[u32],
    ) -> Result<(), SwitchError> {
        let (row, skipped) =
            Row::find(self.wanted, bytes).ok_or(SwitchError::NotWanted { step })?;
        let end_byte = bytes.first_byte.saturating_add(bytes.bytes);
        let tensor = bytes.tensor.0;
        let first = ranges.partition_point(|range| {
            (range.tensor, range.end_byte()) <= (tensor, bytes.first_byte)
        });
        let same = ranges[first..]
            .iter()
            .take_while(|range| range.tensor == tensor && range.first_byte < end_byte);
        for range in same {
            if range.host_copy == 0 && range.offload >= step {
                return Err(SwitchError::NoHostCopy { step });
            }
        }
        for (at, bytes) in self.on_device(self.wanted[row].at.saturating_add(skipped), bytes.bytes)
        {
            let range = |&number: &u32| &ranges[number as usize];
            let first = by_address.partition_point(|number| range(number).end_at() <= at);
            let end = at.saturating_add(bytes);
            let there = by_address[first..].iter().map(range).take_while(|range| range.at < end);
            for range in there {
                // A range that is kept has no evict.
                if range.evict >= step {
                    return Err(SwitchError::Overwrites { step });
                }
            }
        }
        Ok(())
    }
}

/// Bytes of a tensor that a step covers.
struct Tile {
    tensor: u32,
    first_byte: u64,
    end_byte: u64,
    step: u32,
}

/// Checks that sorted tiles cover each byte of the sorted rows once. A tile must lie in one row.
fn check_tiles(
    rows: &[Row],
    tiles: impl Iterator<Item = Tile>,
    missing: fn(TensorId) -> SwitchError,
) -> Result<(), SwitchError> {
    let mut tiles = tiles.peekable();
    for row in rows {
        let mut next_byte = row.first_byte;
        let end_byte = row.first_byte.saturating_add(row.bytes);
        while next_byte < end_byte {
            match tiles.next_if(|tile| tile.tensor == row.tensor && tile.first_byte <= next_byte) {
                Some(tile) if tile.first_byte == next_byte => next_byte = tile.end_byte,
                Some(Tile { step, .. }) => return Err(SwitchError::Twice { step }),
                None => return Err(missing(TensorId(row.tensor))),
            }
        }
    }
    match tiles.next() {
        Some(Tile { step, .. }) => Err(SwitchError::Twice { step }),
        None => Ok(()),
    }
}
