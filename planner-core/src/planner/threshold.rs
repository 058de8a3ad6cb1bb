//! Chooses the size below which tensors lie in the arena.
//!
//! In the arena a tensor takes only its own bytes, but takes them all the time. In the pool it
//! takes whole chunks, but frees them whenever other tensors need them more.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors and slots are those of the sequence, and admitting counts are at most \
              `COUNT`"
)]

use super::request::Task;
use super::strategy::Need;
use crate::arena::{Lifetimes, admits, size_bytes};
use crate::bounds;
use crate::graph::{Kind, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::{LaunchId, Sequence};
use bytemuck::{Pod, Zeroable};

/// The sizes to consider, as fractions of a chunk. The last one means no arena.
const FRACTIONS: [u64; COUNT] = [1, 2, 4, 8, 16, 32, 128, u64::MAX];
pub(super) const COUNT: usize = 8;

/// A chunk of the pool serves several chunks of values in turn: the chunks that are alive, for each
/// chunk of the budget. A chunk of the arena must save this many times that number. A balance: a
/// larger weight leaves more memory to the pool; a smaller one leaves fewer chunks half empty.
const WEIGHT: u64 = 2;

/// A size below which tensors lie in the arena, and the memory that this needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threshold {
    pub(super) below_bytes: u64,
    /// Chunks of the arena, if it is packed without gaps.
    arena: u64,
    /// The largest number of pool chunks alive at once, and the op at which.
    everything: (u64, LaunchId),
    /// The same without the states that the op does not use.
    layer: (u64, LaunchId),
    /// The largest number of pool chunks that an op needs, and the op: for its operands, and for
    /// other states that never leave the device.
    largest_op: (u64, LaunchId),
}

impl Threshold {
    /// The largest number of pool chunks that must be on the device at once, and the op at which.
    pub(super) const fn pool(&self, need: Need) -> (u64, LaunchId) {
        match need {
            Need::LargestOp => self.largest_op,
            Need::Layer => self.layer,
            Need::Everything => self.everything,
        }
    }

    /// Chunks of arena and pool together, if the arena is packed without gaps.
    pub(super) const fn least(&self, need: Need) -> u64 {
        self.arena.saturating_add(self.pool(need).0)
    }
}

/// The threshold that saves most.
///
/// If the budget can hold everything that is alive, this is the threshold with the least total.
/// Otherwise a chunk of the arena weighs more than a chunk of the pool, by the ratio of everything
/// to the budget. Among the thresholds whose arena takes at most half of the memory that the
/// largest op leaves, it is the threshold with the least weighted sum. If there is no such
/// threshold, it is the threshold that leaves most memory beside the largest op.
pub(super) fn choose(thresholds: &[Threshold; COUNT], need: Need, budget_chunks: u64) -> Threshold {
    let everything = |threshold: &Threshold| threshold.least(Need::Everything);
    let whole = thresholds.iter().map(everything).min().unwrap_or(0);
    let cost = |threshold: &Threshold| {
        let (pool, arena) = (threshold.everything.0, threshold.arena);
        let needed = threshold.least(need);
        let is_small = needed.saturating_add(arena) <= budget_chunks;
        if whole <= budget_chunks {
            (false, u128::from(everything(threshold)))
        } else if arena > 0 && is_small {
            let weight = u128::from(WEIGHT).saturating_mul(whole.into());
            let pool = u128::from(pool).saturating_mul(budget_chunks.into());
            (false, u128::from(arena).saturating_mul(weight).saturating_add(pool))
        } else {
            (true, u128::from(needed))
        }
    };
    let [first, rest @ ..] = thresholds;
    *rest.iter().fold(first, |best, other| if cost(other) < cost(best) { other } else { best })
}

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        words::<Size>(limits.tensors),
        words::<u32>(limits.tensors),
        words::<u8>(limits.tensors).saturating_mul(2),
        words::<u8>(limits.operands),
    ])
}

/// All thresholds, from the largest. If everything alive is needed at once and ops are repeated, a
/// temporary takes memory only while it has a value; otherwise from its first to its last use,
/// since the arena keeps its bytes that long. O(operands).
pub(super) fn thresholds(
    task: &Task<'_>,
    need: Need,
    lifetimes: &Lifetimes<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<[Threshold; COUNT], OutOfScratch> {
    let sequence = task.sequence;
    let below_bytes =
        FRACTIONS.map(|fraction| task.machine.chunk_bytes.checked_div(fraction).unwrap_or(0));
    let mut scratch = scratch.reborrow();
    let sizes = scratch.take(sequence.tensors().len(), Size::default())?;
    for (tensor, size) in sequence.tensor_ids().zip(&mut *sizes) {
        *size = Size::new(task, lifetimes, &below_bytes, tensor);
    }
    let size = |tensor: TensorId| sizes[tensor.index()];
    let beside_host_bytes = beside_host_bytes(task, &mut scratch)?;
    let seen_by = scratch.take(sequence.tensors().len(), u32::MAX)?;
    let by_value = need == Need::Everything && sequence.has_repeats();
    let dies = find_deaths(sequence, by_value, &mut scratch)?;
    let is_alive = scratch.take(sequence.tensors().len(), 0u8)?;
    let (mut alive, mut states) = (Tally::default(), Tally::default());
    for tensor in sequence.tensor_ids().filter(|&tensor| lifetimes.uses(tensor).is_some()) {
        let kind = sequence.tensor(tensor).kind;
        alive.add(size(tensor).when_idle(kind));
        if kind == Kind::State {
            states.add(size(tensor));
        }
    }
    let states = States::new(&states, beside_host_bytes, task.machine.chunk_bytes);
    let none = (0, LaunchId(0));
    let mut thresholds = below_bytes.map(|below_bytes| Threshold {
        below_bytes,
        arena: 0,
        everything: none,
        layer: none,
        largest_op: none,
    });
    for op in sequence.launches() {
        let (mut touched, mut over) = (Tally::default(), Tally::default());
        let mut own = Tally::default();
        let first_slot = sequence.first_slot(op);
        for (slot, &tensor) in (first_slot..).zip(sequence.operands_of(op)) {
            if seen_by[tensor.index()] == op.0 {
                continue;
            }
            seen_by[tensor.index()] = op.0;
            let size = size(tensor);
            touched.add(size);
            if sequence.tensor(tensor).kind == Kind::State {
                own.add(size);
            }
            let passing = size.minus(size.when_idle(sequence.tensor(tensor).kind));
            if core::mem::replace(&mut is_alive[tensor.index()], 1) == 0 {
                alive.add(passing);
            }
            if dies[slot] == 1 {
                over.add(passing);
                is_alive[tensor.index()] = 0;
            }
        }
        raise(&mut thresholds, task, op, [&alive, &touched], states.without(own.pool()));
        alive.remove(&over);
    }
    // Arenas are in bytes up to here, since a division at each op takes time.
    for threshold in &mut thresholds {
        threshold.arena = threshold.arena.div_ceil(task.machine.chunk_bytes);
    }
    Ok(thresholds)
}

/// For each operand, 1 if its launch is the last one to use the tensor, else 0. By value: 1 if a
/// temporary has no value from this launch to the next one that uses it. Two operands of a launch
/// with one tensor have the same entry.
fn find_deaths<'s>(
    sequence: &Sequence<'_>,
    by_value: bool,
    scratch: &mut Scratch<'s>,
) -> Result<&'s [u8], OutOfScratch> {
    let dies = scratch.take(sequence.operands().len(), 0u8)?;
    let mut scratch = scratch.reborrow();
    let dies_before = scratch.take(sequence.tensors().len(), 1u8)?;
    for launch in sequence.launches().rev() {
        let operands = sequence.operands_of(launch);
        for (slot, tensor) in (sequence.first_slot(launch)..).zip(operands) {
            dies[slot] = dies_before[tensor.index()];
        }
        for &tensor in sequence.writes(launch) {
            let is_temporary = sequence.tensor(tensor).kind == Kind::Temporary;
            dies_before[tensor.index()] = u8::from(is_temporary && by_value);
        }
        for tensor in sequence.reads(launch) {
            dies_before[tensor.index()] = 0;
        }
    }
    Ok(dies)
}

/// Bytes of states that never leave the device, since they always hold a value and the host has no
/// memory for them. States that the host uses have host memory. O(operands).
fn beside_host_bytes(task: &Task<'_>, scratch: &mut Scratch<'_>) -> Result<u64, OutOfScratch> {
    let Task { sequence, machine, .. } = *task;
    let graph = sequence.graph();
    let is_state = |tensor: &TensorId| {
        graph.tensor(*tensor).kind == Kind::State && !sequence.is_used_by_host(*tensor)
    };
    let states = || graph.tensor_ids().filter(is_state);
    let bytes = states().fold(0u64, |sum, id| sum.saturating_add(graph.tensor(id).bytes));
    if bytes <= machine.host_bytes {
        return Ok(0);
    }
    let living_bytes = bounds::living_bytes(graph, states(), scratch)?;
    Ok(living_bytes.saturating_sub(machine.host_bytes))
}

/// The states with each threshold, in chunks of the pool.
struct States {
    all: [u64; COUNT],
    /// A lower bound of the chunks that never leave the device.
    staying: [u64; COUNT],
}

impl States {
    fn new(states: &Tally, beside_host_bytes: u64, chunk_bytes: u64) -> Self {
        let staying = states
            .arena()
            .map(|arena_bytes| beside_host_bytes.saturating_sub(arena_bytes).div_ceil(chunk_bytes));
        Self { all: states.pool(), staying }
    }

    /// For all states except `own`: the chunks, and a lower bound of the chunks that stay.
    fn without(&self, own: [u64; COUNT]) -> impl Iterator<Item = (u64, u64)> {
        let states = self.all.into_iter().zip(self.staying).zip(own);
        states.map(|((all, staying), own)| (all.saturating_sub(own), staying.saturating_sub(own)))
    }
}

/// Raises the thresholds' maxima to the memory alive at an op, and to its operands with other
/// states that stay.
fn raise(
    thresholds: &mut [Threshold; COUNT],
    task: &Task<'_>,
    op: LaunchId,
    [alive, touched]: [&Tally; 2],
    other_states: impl Iterator<Item = (u64, u64)>,
) {
    let chunk_bytes = task.machine.chunk_bytes;
    let workspace = task.sequence.workspace_bytes(op).div_ceil(chunk_bytes);
    let raise = |most: &mut (u64, LaunchId), chunks: u64| {
        let chunks = chunks.saturating_add(workspace);
        if chunks > most.0 {
            *most = (chunks, op);
        }
    };
    let loads = alive.pool().into_iter().zip(alive.arena()).zip(touched.pool());
    let loads = loads.zip(other_states);
    for (threshold, (((alive, arena_bytes), touched), (others, staying))) in
        thresholds.iter_mut().zip(loads)
    {
        threshold.arena = threshold.arena.max(arena_bytes);
        raise(&mut threshold.everything, alive);
        raise(&mut threshold.layer, alive.saturating_sub(others));
        raise(&mut threshold.largest_op, touched.saturating_add(staying));
    }
}

/// The memory that a tensor takes.
#[derive(Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
struct Size {
    /// The number of thresholds that admit it to the arena.
    admitting: u64,
    /// Chunks in the pool.
    chunks: u64,
    /// Bytes in the arena.
    bytes: u64,
}

impl Size {
    fn new(
        task: &Task<'_>,
        lifetimes: &Lifetimes<'_>,
        below_bytes: &[u64; COUNT],
        tensor: TensorId,
    ) -> Self {
        let Task { sequence, machine, .. } = *task;
        let bytes = sequence.tensor(tensor).bytes;
        let chunks = bytes.div_ceil(machine.chunk_bytes);
        let admitting = below_bytes.partition_point(|&below_bytes| bytes < below_bytes);
        if admitting > 0 && admits(sequence, lifetimes, u64::MAX, tensor) {
            Self {
                admitting: admitting as u64,
                chunks,
                bytes: size_bytes(sequence.graph(), machine, tensor),
            }
        } else {
            Self { admitting: 0, chunks, bytes: 0 }
        }
    }

    /// The memory that is taken even while the tensor is not alive: inputs and outputs own their
    /// bytes of the arena, and states are always alive.
    const fn when_idle(self, kind: Kind) -> Self {
        match kind {
            Kind::State => self,
            Kind::Input | Kind::Output => Self { chunks: 0, ..self },
            Kind::Temporary => Self { chunks: 0, bytes: 0, ..self },
        }
    }

    const fn minus(self, other: Self) -> Self {
        let chunks = self.chunks.saturating_sub(other.chunks);
        let bytes = self.bytes.saturating_sub(other.bytes);
        Self { chunks, bytes, ..self }
    }
}

/// Sums by the number of thresholds that admit a tensor to the arena.
#[derive(Default)]
struct Tally {
    chunks: [u64; COUNT + 1],
    bytes: [u64; COUNT + 1],
}

impl Tally {
    const fn add(&mut self, size: Size) {
        let admitting = size.admitting as usize;
        let (chunks, bytes) = (&mut self.chunks[admitting], &mut self.bytes[admitting]);
        *chunks = chunks.wrapping_add(size.chunks);
        *bytes = bytes.wrapping_add(size.bytes);
    }

    fn remove(&mut self, other: &Self) {
        for (sum, by) in self.chunks.iter_mut().zip(other.chunks) {
            *sum = sum.wrapping_sub(by);
        }
        for (sum, by) in self.bytes.iter_mut().zip(other.bytes) {
            *sum = sum.wrapping_sub(by);
        }
    }

    /// The chunks in the pool with each threshold.
    fn pool(&self) -> [u64; COUNT] {
        let mut sum = 0u64;
        core::array::from_fn(|at| {
            sum = sum.saturating_add(self.chunks[at]);
            sum
        })
    }

    /// The bytes in the arena with each threshold.
    fn arena(&self) -> [u64; COUNT] {
        let mut bytes = [0; COUNT];
        let mut sum = 0u64;
        for (at, more) in bytes.iter_mut().zip(&self.bytes[1..]).rev() {
            sum = sum.saturating_add(*more);
            *at = sum;
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Op, Tensor};
    use crate::machine::Machine;
    use crate::sequence::Sequence;

    const CHUNK_BYTES: u64 = 1024;

    /// A weight and a bias; an input, two small values and a large value, each computed from the
    /// value before it.
    fn found() -> [Threshold; COUNT] {
        found_beside(1 << 40)
    }

    fn found_beside(host_bytes: u64) -> [Threshold; COUNT] {
        let tensor = |bytes, kind| Tensor { bytes, kind };
        let [weight, bias] = [4096, 100].map(|bytes| tensor(bytes, Kind::State));
        let [small, large] = [300, 2048].map(|bytes| tensor(bytes, Kind::Temporary));
        let tensors = [weight, bias, tensor(600, Kind::Input), small, small, large];
        let operands = [0, 1, 2, 3, 3, 4, 4, 1, 5].map(TensorId);
        let op = |first_operand, reads, workspace_bytes| Op {
            time_ns: 1,
            workspace_bytes,
            first_operand,
            reads,
            writes: 1,
            ..Op::default()
        };
        let ops = [op(0, 3, 0), op(4, 1, 0), op(6, 2, 1000)];
        let mut memory = [0; 256];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let machine = Machine::of_chunks(CHUNK_BYTES).with_host_bytes(host_bytes);
        let sequence = &Sequence::as_given(&graph, None, &mut scratch).unwrap();
        let lifetimes = Lifetimes::new(sequence, &mut scratch).unwrap();
        let task = Task { sequence, machine: &machine, budget_bytes: 0 };
        thresholds(&task, Need::LargestOp, &lifetimes, &mut scratch).unwrap()
    }

    #[test]
    fn each_threshold_knows_what_it_takes() {
        let all =
            found().map(|Threshold { below_bytes, arena, everything, largest_op, .. }| {
                (below_bytes, arena, everything, largest_op)
            });
        let [first, last] = [LaunchId(0), LaunchId(2)];
        assert_eq!(all[0], (1024, 2, (7, last), (4, first)));
        // The input is in the pool,
        assert_eq!(all[1], (512, 2, (7, last), (5, first)));
        // the small values,
        assert_eq!(all[2], (256, 1, (8, last), (6, first)));
        assert_eq!(all[3], (128, 1, (8, last), (6, first)));
        // and the bias.
        assert_eq!(all[4], (64, 0, (9, last), (7, first)));
        assert_eq!(all[7], (0, 0, (9, last), (7, first)));
    }

    #[test]
    fn a_layer_needs_all_but_the_states_of_others() {
        // The last op uses the bias but not the weight, which has four chunks.
        let layers = found().map(|threshold| threshold.layer);
        assert_eq!((layers[0], layers[7]), ((4, LaunchId(0)), (7, LaunchId(0))));
    }

    #[test]
    fn states_without_host_memory_stay_beside_each_op() {
        let [first, last] = [LaunchId(0), LaunchId(2)];
        let largest = |host_bytes| found_beside(host_bytes).map(|found| found.largest_op);
        assert_eq!(largest(4196), largest(1 << 40), "there is memory for both");
        // The last op takes 3 chunks with its workspace. The weight stays beside them, and the bias
        // lies in the arena.
        assert_eq!(largest(0)[0], (7, last));
        assert_eq!(largest(3096)[0], (4, first), "with one chunk of the weight, it needs no more");
        // The bias is in the pool.
        assert_eq!(largest(0)[4], (9, last));
    }

    #[test]
    fn the_threshold_is_lower_if_the_budget_is_tight() {
        let chosen = |need, budget_chunks| choose(&found(), need, budget_chunks).below_bytes;
        // Everything fits.
        assert_eq!(chosen(Need::LargestOp, 9), 1024);
        // The second chunk of the arena saves one of the pool, and would have to save more
        // than two.
        assert_eq!(chosen(Need::LargestOp, 8), 256);
        // Not even one chunk is left beside that arena and the largest op.
        assert_eq!(chosen(Need::LargestOp, 7), 1024);
        assert_eq!(chosen(Need::Everything, 9), 1024);
    }
}
