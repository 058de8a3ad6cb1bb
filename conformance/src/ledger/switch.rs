//! Judges a switch from one plan to another byte by byte.
//!
//! The device and the host are tables of single bytes. Each step is done as the documentation of
//! `planner_core::switch` defines it. A step that cannot be done is an error.

use planner_core::machine::Direction;
use planner_core::switch::{Held, SharedState, Switch, SwitchPrediction, SwitchStep, TensorBytes};
use planner_core::{Graph, Kind, Machine, Part, Plan, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// One byte of a tensor, by its id in the second graph.
type Byte = (TensorId, u64);

/// The two plans of a switch, and their surroundings.
#[derive(Clone, Copy, Debug)]
pub struct Between<'b> {
    /// The machine of both plans.
    pub machine: &'b Machine,
    /// The first graph.
    pub from: &'b Graph<'b>,
    /// The states that the first plan holds.
    pub held: &'b [Held],
    /// The second graph and plan.
    pub to: (&'b Graph<'b>, &'b Plan<'b>),
    /// The pairs of states that both graphs share.
    pub states: &'b [SharedState],
    /// The number of chunks of the device.
    pub device_chunks: u64,
}

/// A byte that a plan needs at its start: its place in the plan's own chunks, its row, and whether
/// the plan claims a host copy.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    at: u64,
    host_copy: bool,
    row: usize,
}

/// The bytes that a plan needs on the device at its start.
fn wanted(machine: &Machine, graph: &Graph<'_>, plan: &Plan<'_>) -> BTreeMap<Byte, Wanted> {
    let chunks = |bytes: u64| bytes.div_ceil(machine.chunk_bytes) * machine.chunk_bytes;
    let mut pool_at = vec![chunks(plan.arena_bytes)];
    for pool in plan.pools {
        pool_at.push(pool_at.last().unwrap_or(&0) + chunks(pool.object_bytes * pool.count));
    }
    let mut used = vec![0; plan.pools.len()];
    let mut wanted = BTreeMap::new();
    let (mut allocation, mut row) = (0, 0);
    for resident in plan.resident_at_start {
        let Part { tensor, first, count } = resident.part;
        let bytes = graph.tensor(tensor).bytes;
        let host_copy = resident.host_copy;
        row += 1;
        if let Some(placement) = plan.arena.iter().find(|it| it.tensor == tensor) {
            for byte in 0..bytes {
                let at = placement.offset_bytes + byte;
                wanted.insert((tensor, byte), Wanted { at, host_copy, row });
            }
            continue;
        }
        let pool = plan.tensor_pool.get(tensor.index()).map_or(0, |&pool| pool as usize);
        let object_bytes = plan.pools[pool].object_bytes;
        let objects = if count == Part::ALL { bytes.div_ceil(object_bytes) } else { count };
        let physical: Vec<u64> = match plan.placements {
            Some(placements) => placements.of(allocation).to_vec(),
            None => (used[pool]..used[pool] + objects).collect(),
        };
        used[pool] += objects;
        allocation += 1;
        for (object, &lies_in) in (first..).zip(&physical) {
            let follows = object > first && physical[(object - first) as usize - 1] + 1 == lies_in;
            row += usize::from(!follows);
            for byte in object * object_bytes..((object + 1) * object_bytes).min(bytes) {
                let at = pool_at[pool] + lies_in * object_bytes + byte - object * object_bytes;
                wanted.insert((tensor, byte), Wanted { at, host_copy, row });
            }
        }
    }
    wanted
}

struct Ledger<'b> {
    between: Between<'b>,
    wanted: BTreeMap<Byte, Wanted>,
    /// The device's chunk for each chunk of the second plan.
    chunks: Vec<u64>,
    /// The place and the row of each byte that the first plan holds.
    held: BTreeMap<Byte, (u64, usize)>,
    /// The content of each byte of the device.
    device: BTreeMap<u64, Byte>,
    /// Bytes of states that the host lacks.
    missing: BTreeSet<Byte>,
    /// Bytes that stay or have been uploaded.
    settled: BTreeSet<Byte>,
    /// The ranges that are kept or evicted.
    ranges: BTreeSet<(TensorId, u64, u64)>,
    predicted: SwitchPrediction,
    uploaded_ns: u64,
    downloaded_ns: u64,
}

/// Judges a switch.
///
/// # Errors
/// The error, in a sentence.
pub fn judge(between: Between<'_>, switch: &Switch<'_>) -> Result<SwitchPrediction, String> {
    check_states(&between)?;
    let mut ledger = Ledger::new(between, switch)?;
    for (number, step) in switch.steps.iter().enumerate() {
        ledger.step(step).map_err(|what| format!("step {number}: {what}"))?;
    }
    ledger.end()?;
    let time_ns = ledger.uploaded_ns.max(ledger.downloaded_ns);
    let predicted = SwitchPrediction { time_ns, ..ledger.predicted };
    if predicted == switch.predicted {
        Ok(predicted)
    } else {
        Err(format!("{predicted:?}, but {:?} is promised", switch.predicted))
    }
}

/// Checks that every state of either graph is in exactly one pair.
fn check_states(between: &Between<'_>) -> Result<(), String> {
    let all = |graph: &Graph<'_>| {
        let ids = graph.tensor_ids();
        ids.filter(|&id| graph.tensor(id).kind == Kind::State).collect::<Vec<_>>()
    };
    let sorted = |mut ids: Vec<TensorId>| {
        ids.sort_unstable();
        ids
    };
    let from = between.states.iter().map(|state| state.from).collect();
    let to = between.states.iter().map(|state| state.to).collect();
    if sorted(from) != all(between.from) || sorted(to) != all(between.to.0) {
        return Err("the states are not in pairs".into());
    }
    let bytes = |graph: &Graph<'_>, id| graph.tensor(id).bytes;
    let is_same = |it: &SharedState| bytes(between.from, it.from) == bytes(between.to.0, it.to);
    if between.states.iter().all(is_same) { Ok(()) } else { Err("states differ in size".into()) }
}

impl<'b> Ledger<'b> {
    fn new(between: Between<'b>, switch: &Switch<'_>) -> Result<Self, String> {
        let Between { machine, to: (graph, plan), .. } = between;
        let chunk_bytes = machine.chunk_bytes;
        let mut chunks = Vec::new();
        for run in switch.chunks {
            if run.first != chunks.len() as u64 || run.count == 0 || run.count > 1 << 20 {
                return Err("the chunks are not in order".into());
            }
            chunks.extend((0..run.count).map(|at| run.device_first.saturating_add(at)));
        }
        let of_plan = plan.arena_bytes.div_ceil(chunk_bytes)
            + plan
                .pools
                .iter()
                .map(|it| (it.object_bytes * it.count).div_ceil(chunk_bytes))
                .sum::<u64>();
        let distinct: BTreeSet<u64> = chunks.iter().copied().collect();
        if chunks.len() as u64 != of_plan
            || distinct.len() != chunks.len()
            || distinct.last().is_some_and(|&last| last >= between.device_chunks)
        {
            return Err("the device does not have these chunks".into());
        }
        let mut ledger = Self {
            between,
            wanted: wanted(machine, graph, plan),
            chunks,
            held: BTreeMap::new(),
            device: BTreeMap::new(),
            missing: BTreeSet::new(),
            settled: BTreeSet::new(),
            ranges: BTreeSet::new(),
            predicted: SwitchPrediction::default(),
            uploaded_ns: 0,
            downloaded_ns: 0,
        };
        for (row, held) in between.held.iter().enumerate() {
            let pair = between.states.iter().find(|state| state.from == held.tensor);
            let tensor = pair.ok_or("it holds a tensor that is not a state")?.to;
            for byte in 0..held.bytes {
                let of = (tensor, held.first_byte + byte);
                ledger.held.insert(of, (held.at + byte, row));
                ledger.device.insert(held.at + byte, of);
                if !held.host_copy {
                    ledger.missing.insert(of);
                }
            }
        }
        for step in switch.steps {
            if let SwitchStep::Keep(it) | SwitchStep::Evict(it) = *step {
                ledger.ranges.insert((it.tensor, it.first_byte, it.bytes));
            }
        }
        Ok(ledger)
    }

    /// The place of a byte on the device in the second plan.
    fn place(&self, of: Byte) -> Option<u64> {
        let chunk_bytes = self.between.machine.chunk_bytes;
        let at = self.wanted.get(&of)?.at;
        Some(self.chunks[(at / chunk_bytes) as usize] * chunk_bytes + at % chunk_bytes)
    }

    fn step(&mut self, step: &SwitchStep) -> Result<(), String> {
        let (SwitchStep::Keep(range)
        | SwitchStep::Offload(range)
        | SwitchStep::Evict(range)
        | SwitchStep::Prefetch(range)) = *step;
        let TensorBytes { tensor, first_byte, bytes } = range;
        let end = first_byte.checked_add(bytes).filter(|_| bytes > 0 && bytes < 1 << 24);
        let end = end.ok_or("an empty or endless range")?;
        // A range beyond all rows may be too long to list byte by byte.
        let last = (tensor, end - 1);
        if !self.held.contains_key(&last) && !self.wanted.contains_key(&last) {
            return Err("not a row of either plan".into());
        }
        let all: Vec<Byte> = (first_byte..end).map(|byte| (tensor, byte)).collect();
        let held: BTreeSet<_> = all.iter().map(|of| self.held.get(of).map(|it| it.1)).collect();
        let wanted: BTreeSet<_> =
            all.iter().map(|of| self.wanted.get(of).map(|it| it.row)).collect();
        let is_row = |rows: &BTreeSet<Option<usize>>| rows.len() == 1 && !rows.contains(&None);
        if !matches!(step, SwitchStep::Prefetch(_)) && !is_row(&held) {
            return Err("not a row of the first plan".into());
        }
        if matches!(step, SwitchStep::Prefetch(_) | SwitchStep::Keep(_)) && !is_row(&wanted) {
            return Err("not a row of the second plan".into());
        }
        let ns = |direction| self.between.machine.transfer_ns(direction, bytes).unwrap_or(u64::MAX);
        let [upload_ns, download_ns] = [Direction::HostToDevice, Direction::DeviceToHost].map(ns);
        match step {
            SwitchStep::Keep(_) => self.predicted.kept_bytes += bytes,
            SwitchStep::Evict(_) => {}
            SwitchStep::Offload(_) => {
                if !self.ranges.contains(&(tensor, first_byte, bytes)) {
                    return Err("it offloads a range that is neither kept nor evicted".into());
                }
                self.predicted.d2h_bytes += bytes;
                self.downloaded_ns += download_ns;
            }
            SwitchStep::Prefetch(_) => {
                self.predicted.h2d_bytes += bytes;
                self.uploaded_ns = self.uploaded_ns.max(self.downloaded_ns) + upload_ns;
            }
        }
        all.into_iter().try_for_each(|of| self.byte(step, of).map_err(str::to_owned))
    }

    fn byte(&mut self, step: &SwitchStep, of: Byte) -> Result<(), &'static str> {
        let was_at = self.held.get(&of).map(|it| it.0);
        let is_there = was_at.is_some_and(|at| self.device.get(&at) == Some(&of));
        let ensure = |holds, what| if holds { Ok(()) } else { Err(what) };
        match step {
            SwitchStep::Keep(_) => {
                ensure(is_there && self.place(of) == was_at, "it does not stay in place")?;
                ensure(self.settled.insert(of), "it is kept twice")
            }
            SwitchStep::Offload(_) => {
                ensure(is_there, "it is not on the device")?;
                ensure(self.missing.remove(&of), "the host has it")
            }
            SwitchStep::Evict(_) => {
                let stays = self.settled.contains(&of) && self.place(of) == was_at;
                ensure(is_there && !stays, "it is not on the device, or it stays there")?;
                ensure(!self.missing.contains(&of), "the value is lost")?;
                self.device.remove(&was_at.unwrap_or(0));
                Ok(())
            }
            SwitchStep::Prefetch(_) => {
                ensure(!self.missing.contains(&of), "the host does not have it")?;
                let at = self.place(of).ok_or("it is not wanted")?;
                ensure(self.device.insert(at, of).is_none(), "it overwrites a value")?;
                ensure(self.settled.insert(of), "it comes twice")
            }
        }
    }

    fn end(&self) -> Result<(), String> {
        for (&of, wanted) in &self.wanted {
            let at = self.place(of);
            if !self.settled.contains(&of) || at.and_then(|at| self.device.get(&at)) != Some(&of) {
                return Err(format!("{of:?} neither stays nor comes"));
            }
            if wanted.host_copy && self.missing.contains(&of) {
                return Err(format!("the host does not have {of:?}"));
            }
        }
        if self.device.len() != self.wanted.len() {
            return Err("something is left on the device".into());
        }
        Ok(())
    }
}
