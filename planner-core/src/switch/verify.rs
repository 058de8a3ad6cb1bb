//! The proof that a switch is safe.
//!
//! The steps that keep and evict must tile what the first plan holds, and those that keep and
//! prefetch what the second plan holds at its start. So each byte has one fate. All else is a
//! matter of order: a step may rely on what steps listed before it have done, since a prefetch
//! waits for all offloads that are listed before it, and nothing else could come too early: an
//! offload reads what is evicted after it at the earliest, and only the host bytes that it writes
//! itself become valid.

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

/// A switch that is proved safe: the only one that an executor carries out.
#[derive(Clone, Copy, Debug)]
pub struct VerifiedSwitch<'a, 'b> {
    pub(crate) holding: Holding<'a>,
    pub(crate) to: Verified<'b>,
    pub(crate) states: &'a [SharedState],
    pub(crate) switch: Switch<'a>,
    /// Whether the host holds the values of all states in the end.
    pub(crate) is_saved: bool,
}

impl<'a, 'b> VerifiedSwitch<'a, 'b> {
    /// What it starts from.
    #[must_use]
    pub const fn holding(&self) -> &Holding<'a> {
        &self.holding
    }

    /// The plan that it leads to.
    #[must_use]
    pub const fn to(&self) -> &Verified<'b> {
        &self.to
    }

    /// What stays and what moves.
    #[must_use]
    pub const fn switch(&self) -> &Switch<'a> {
        &self.switch
    }
}

/// Bytes that the first plan holds, by the step that keeps or evicts them.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Fate {
    tensor: u32,
    /// Whether the host holds them from the start, as 1 or 0.
    host_copy: u32,
    first_byte: u64,
    bytes: u64,
    at: u64,
    /// The step.
    step: u32,
    /// The step that offloads them, or [`NEVER`].
    offload: u32,
    /// The step that evicts them, or [`NEVER`] where they stay.
    evict: u32,
    padding: u32,
}

/// No step.
const NEVER: u32 = u32::MAX;

/// A row of bytes that a plan holds, or what a step makes of it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Row {
    tensor: u32,
    host_copy: u32,
    first_byte: u64,
    bytes: u64,
    /// Of the first plan in the device's chunks, of the second in its own; of what a step makes,
    /// the step.
    at: u64,
}

impl Fate {
    const fn end_byte(&self) -> u64 {
        self.first_byte.saturating_add(self.bytes)
    }

    const fn end_at(&self) -> u64 {
        self.at.saturating_add(self.bytes)
    }
}

/// Words of scratch that [`verify`] asks for, by [`Limits::of_plan`] of the first and the second
/// plan, the number of [entries](Holding::entries) that the first plan holds, and that of the chunk
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
        words::<Fate>(steps.saturating_add(entries)),
        words::<u32>(steps),
        words::<[u64; 2]>(chunks),
        words::<Row>(entries),
    ])
}

/// Proves a switch safe, and its prediction exact. O((rows + steps) log steps).
///
/// # Errors
/// The first rule that it breaks.
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
    let fates = proof.fates(&mut scratch)?;
    proof.check_host(fates)?;
    proof.check_arrivals(fates, &mut scratch)?;
    let machine = to.machine();
    let exact = SwitchPrediction::of(switch.steps, machine).ok_or(SwitchError::Overflow)?;
    check_prediction(&switch.predicted, &exact)?;
    let is_saved = fates.iter().all(|fate| fate.host_copy != 0 || fate.offload != NEVER);
    Ok(VerifiedSwitch { holding: *holding, to: *to, states, switch: *switch, is_saved })
}

/// Each chunk of the plan is one of the device, and no two are the same.
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
    let overlap = |pair: &[[u64; 2]]| pair[0][0] + pair[0][1] > pair[1][0];
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

/// What the first plan holds, sorted by the second graph's tensors.
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

/// What the second plan holds at its start, sorted by tensors.
fn wanted_rows<'s>(to: &Verified<'_>, scratch: &mut Scratch<'s>) -> Result<&'s [Row], SwitchError> {
    let mut count = 0;
    held::at_start(to, scratch, |_| count += 1)?;
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

    /// The row that some bytes lie in as a whole, and where in it they begin.
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
    /// What the first plan holds, where on the device; sorted.
    held: &'p [Row],
    /// What the second plan holds at its start, where in its own chunks; sorted.
    wanted: &'p [Row],
}

impl Proof<'_> {
    fn numbered(&self) -> impl Iterator<Item = (u32, &SwitchStep)> {
        (0..).zip(self.steps)
    }

    /// What becomes of all that the first plan holds, sorted by tensors.
    fn fates<'s>(&self, scratch: &mut Scratch<'s>) -> Result<&'s [Fate], SwitchError> {
        let fates = scratch.take(self.steps.len(), Fate::zeroed())?;
        let mut len = 0;
        for (step, action) in self.numbered() {
            let (SwitchStep::Keep(bytes) | SwitchStep::Evict(bytes)) = *action else { continue };
            let (row, skipped) =
                Row::find(self.held, bytes).ok_or(SwitchError::NotHeld { step })?;
            let row = &self.held[row];
            let evicts = matches!(action, SwitchStep::Evict(_));
            fates[len] = Fate {
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
        let fates = &mut fates[..len];
        fates.sort_unstable_by_key(|fate| (fate.tensor, fate.first_byte));
        check_tiles(
            self.held,
            fates.iter().map(|fate| (fate.tensor, fate.first_byte, fate.end_byte(), fate.step)),
            SwitchError::LeftOver,
        )?;
        self.note_offloads(fates)?;
        Ok(fates)
    }

    fn note_offloads(&self, fates: &mut [Fate]) -> Result<(), SwitchError> {
        for (step, action) in self.numbered() {
            let SwitchStep::Offload(bytes) = *action else { continue };
            let key = (bytes.tensor.0, bytes.first_byte);
            let at = fates.binary_search_by_key(&key, |fate| (fate.tensor, fate.first_byte));
            let fate = at.ok().map(|at| &mut fates[at]);
            let fate = fate.filter(|fate| fate.bytes == bytes.bytes);
            let fate = fate.ok_or(SwitchError::NotHeld { step })?;
            if fate.offload != NEVER {
                return Err(SwitchError::Twice { step });
            }
            if fate.host_copy != 0 {
                return Err(SwitchError::NeedlessOffload { step });
            }
            fate.offload = step;
        }
        Ok(())
    }

    /// What goes has reached the host before; what stays does so where the second plan says that
    /// the host has it.
    fn check_host(&self, fates: &[Fate]) -> Result<(), SwitchError> {
        for fate in fates {
            let Fate { tensor, first_byte, bytes, step, offload, evict, .. } = *fate;
            let tensor = TensorId(tensor);
            if evict != NEVER {
                if fate.host_copy == 0 && offload >= evict {
                    return Err(SwitchError::ValueLost { step });
                }
                continue;
            }
            let named = TensorBytes { tensor, first_byte, bytes };
            let (row, skipped) =
                Row::find(self.wanted, named).ok_or(SwitchError::NotWanted { step })?;
            let row = &self.wanted[row];
            let mut at = fate.at;
            for (there, bytes) in self.on_device(row.at.saturating_add(skipped), bytes) {
                if there != at {
                    return Err(SwitchError::Elsewhere { step });
                }
                at = at.saturating_add(bytes);
            }
            if row.host_copy != 0 && fate.host_copy == 0 && offload == NEVER {
                return Err(SwitchError::ClaimedHostCopy(tensor));
            }
        }
        Ok(())
    }

    fn on_device(&self, at: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        self.map.bytes_on_device(at, bytes, self.chunk_bytes)
    }

    /// What the second plan holds is there in the end, and comes from a valid host copy to memory
    /// that is free.
    fn check_arrivals(&self, fates: &[Fate], scratch: &mut Scratch<'_>) -> Result<(), SwitchError> {
        let by_address = scratch.take(fates.len(), 0u32)?;
        for (slot, number) in by_address.iter_mut().zip(0..) {
            *slot = number;
        }
        by_address.sort_unstable_by_key(|&number| fates[number as usize].at);
        let tiles = scratch.take(self.steps.len(), Row::zeroed())?;
        let mut len = 0;
        for (step, action) in self.numbered() {
            let bytes = match *action {
                SwitchStep::Keep(bytes) => bytes,
                SwitchStep::Prefetch(bytes) => {
                    self.check_prefetch(step, bytes, fates, by_address)?;
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
            tiles.iter().map(|tile| {
                let end_byte = tile.first_byte.saturating_add(tile.bytes);
                (tile.tensor, tile.first_byte, end_byte, tile.at as u32)
            }),
            SwitchError::Missing,
        )
    }

    fn check_prefetch(
        &self,
        step: u32,
        bytes: TensorBytes,
        fates: &[Fate],
        by_address: &[u32],
    ) -> Result<(), SwitchError> {
        let (row, skipped) =
            Row::find(self.wanted, bytes).ok_or(SwitchError::NotWanted { step })?;
        let end_byte = bytes.first_byte.saturating_add(bytes.bytes);
        let tensor = bytes.tensor.0;
        let first = fates
            .partition_point(|fate| (fate.tensor, fate.end_byte()) <= (tensor, bytes.first_byte));
        let same = fates[first..]
            .iter()
            .take_while(|fate| fate.tensor == tensor && fate.first_byte < end_byte);
        for fate in same {
            if fate.host_copy == 0 && fate.offload >= step {
                return Err(SwitchError::NoHostCopy { step });
            }
        }
        for (at, bytes) in self.on_device(self.wanted[row].at.saturating_add(skipped), bytes.bytes)
        {
            let fate = |&number: &u32| &fates[number as usize];
            let first = by_address.partition_point(|number| fate(number).end_at() <= at);
            let end = at.saturating_add(bytes);
            let there = by_address[first..].iter().map(fate).take_while(|fate| fate.at < end);
            for fate in there {
                // What stays has no such step.
                if fate.evict >= step {
                    return Err(SwitchError::Overwrites { step });
                }
            }
        }
        Ok(())
    }
}

/// Checks that sorted tiles (tensor, first byte, end, step) cover sorted rows, once each byte. A
/// tile lies in one row.
fn check_tiles(
    rows: &[Row],
    tiles: impl Iterator<Item = (u32, u64, u64, u32)>,
    missing: fn(TensorId) -> SwitchError,
) -> Result<(), SwitchError> {
    let mut tiles = tiles.peekable();
    for row in rows {
        let mut next_byte = row.first_byte;
        let end_byte = row.first_byte.saturating_add(row.bytes);
        while next_byte < end_byte {
            match tiles.next_if(|tile| tile.0 == row.tensor && tile.1 <= next_byte) {
                Some((_, first_byte, end, _)) if first_byte == next_byte => next_byte = end,
                Some((_, _, _, step)) => return Err(SwitchError::Twice { step }),
                None => return Err(missing(TensorId(row.tensor))),
            }
        }
    }
    match tiles.next() {
        Some((_, _, _, step)) => Err(SwitchError::Twice { step }),
        None => Ok(()),
    }
}
