//! The division of a plan's memory: an arena for small tensors, a pool of chunks, and sometimes a
//! pool of [slabs](super::slabs) for tensors smaller than half a chunk.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors are those of the sequence, and pools are `CHUNKS` and `SLABS`"
)]

use super::error::PlanningError;
use super::request::{Held, LeastMemory, Lists, POOLS, PoolTables, Task};
use super::strategy::Need;
use super::threshold::{self, COUNT, Threshold, choose, thresholds};
use crate::arena::{self, Lifetimes, admits, size_bytes};
use crate::graph::{Kind, TensorId};
use crate::plan::{ArenaPlacement, Location, Plan, PlanError, Pool, Prediction, Resident};
use crate::scratch::{Buffer, Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::LaunchId;
use core::ops::Range;

/// The memory of a plan.
#[derive(Debug)]
pub(super) struct Memory<'m> {
    /// The number of tensors in the arena.
    pub(super) placed: usize,
    arena_bytes: u64,
    /// The arena admits only tensors below this size.
    below_bytes: u64,
    /// The number of objects of each tensor in its pool; zero in the arena.
    objects: &'m [u64],
    /// The chunks and the slabs. The number of slabs may be 0.
    pools: [Pool; 2],
}

/// The pool of chunks.
pub(super) const CHUNKS: usize = 0;
/// The pool of slabs.
pub(super) const SLABS: usize = 1;

/// The most objects that planning counts, so that sums and differences of a few such numbers fit
/// into 64 bits with a sign.
const MOST_OBJECTS: u64 = i64::MAX as u64 / 4;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        words::<u64>(limits.tensors),
        Lifetimes::scratch_words(limits),
        arena::scratch_words(limits),
        threshold::scratch_words(limits),
    ])
}

/// A packed arena, and the bytes that are needed with it.
#[derive(Clone, Copy, Debug)]
struct Division {
    threshold: Threshold,
    placed: usize,
    arena_bytes: u64,
    needed_bytes: u64,
}

fn divide(
    task: &Task<'_>,
    need: Need,
    lifetimes: &Lifetimes<'_>,
    threshold: Threshold,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<Division, PlanningError> {
    let Task { sequence, machine, .. } = *task;
    Buffer::Arena.first(arena, sequence.tensors().len())?;
    let below_bytes = threshold.below_bytes;
    let (placed, arena_bytes) =
        arena::pack(sequence, machine, lifetimes, below_bytes, arena, scratch)?;
    let needed_bytes = objects_of(task, arena_bytes)
        .checked_add(threshold.pool(need).0)
        .and_then(|chunks| chunks.checked_mul(machine.chunk_bytes))
        .unwrap_or(u64::MAX);
    Ok(Division { threshold, placed, arena_bytes, needed_bytes })
}

/// The division that needs least memory. Leaves its tensors in `arena`.
fn least(
    task: &Task<'_>,
    need: Need,
    lifetimes: &Lifetimes<'_>,
    [first, rest @ ..]: &[Threshold; COUNT],
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<Division, PlanningError> {
    let mut least = divide(task, need, lifetimes, *first, arena, scratch)?;
    let mut last_bytes = first.below_bytes;
    for &threshold in rest {
        let at_least_bytes = threshold.least(need).saturating_mul(task.machine.chunk_bytes);
        if at_least_bytes < least.needed_bytes {
            let division = divide(task, need, lifetimes, threshold, arena, scratch)?;
            last_bytes = threshold.below_bytes;
            if division.needed_bytes < least.needed_bytes {
                least = division;
            }
        }
    }
    if last_bytes != least.threshold.below_bytes {
        // A later division has overwritten the arena.
        divide(task, need, lifetimes, least.threshold, arena, scratch)?;
    }
    Ok(least)
}

pub(super) fn objects_of(task: &Task<'_>, bytes: u64) -> u64 {
    bytes.div_ceil(task.machine.chunk_bytes)
}

/// The smallest budget over all thresholds. Leaves its tensors in `arena`.
pub(super) fn smallest(
    task: &Task<'_>,
    need: Need,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<LeastMemory, PlanningError> {
    let lifetimes = Lifetimes::new(task.sequence, scratch)?;
    let thresholds = thresholds(task, need, &lifetimes, scratch)?;
    let least = least(task, need, &lifetimes, &thresholds, arena, scratch)?;
    let Division { threshold, placed, arena_bytes, needed_bytes: bytes } = least;
    let (_, launch) = threshold.pool(need);
    let op = task.sequence.op(launch);
    let graph = task.sequence.graph();
    let runs_each_once = task.sequence.len() == graph.ops().len() && !task.sequence.has_repeats();
    let held = match need {
        Need::LargestOp => Held::Operands,
        Need::Layer => Held::Layer,
        Need::Everything if runs_each_once => Held::Alive,
        Need::Everything => Held::AliveInPlan,
    };
    Ok(LeastMemory { bytes, op, arena_bytes, placed, held })
}

/// Checks that all tensors and workspaces together take at most [`MOST_OBJECTS`].
fn check_objects(task: &Task<'_>, objects: &[u64]) -> Result<(), PlanError> {
    let ops = task.sequence.graph().ops().iter();
    let workspaces = ops.map(|op| objects_of(task, op.workspace_bytes));
    let sum = objects.iter().copied().chain(workspaces).fold(0, u64::saturating_add);
    if sum > MOST_OBJECTS { Err(PlanError::Overflow(Location::End)) } else { Ok(()) }
}

/// An arena whose tensors have offsets.
struct PackedArena {
    /// The arena admits only tensors below this size.
    below_bytes: u64,
    /// The number of tensors in the arena.
    placed: usize,
    arena_bytes: u64,
}

impl<'m> Memory<'m> {
    /// Divides the budget by the [threshold that saves most](choose); or, if its arena is packed
    /// too loosely, by the threshold that needs least memory.
    pub(super) fn new(
        task: &Task<'_>,
        need: Need,
        arena: &mut [ArenaPlacement],
        scratch: &mut Scratch<'m>,
    ) -> Result<Self, PlanningError> {
        let Task { sequence, machine, budget_bytes } = *task;
        let objects = scratch.take(sequence.tensors().len(), 0u64)?;
        let mut scratch = scratch.reborrow();
        let lifetimes = Lifetimes::new(sequence, &mut scratch)?;
        let thresholds = thresholds(task, need, &lifetimes, &mut scratch)?;
        let threshold = choose(&thresholds, need, machine.chunks_within(budget_bytes));
        let mut division = divide(task, need, &lifetimes, threshold, arena, &mut scratch)?;
        if division.needed_bytes > budget_bytes {
            division = least(task, need, &lifetimes, &thresholds, arena, &mut scratch)?;
        }
        if division.needed_bytes > budget_bytes {
            let (_, launch) = division.threshold.pool(need);
            let op = sequence.op(launch);
            let min_feasible_bytes = division.needed_bytes;
            return Err(PlanningError::Infeasible { min_feasible_bytes, op });
        }
        let Division { placed, arena_bytes, .. } = division;
        let below_bytes = division.threshold.below_bytes;
        let arena = PackedArena { below_bytes, placed, arena_bytes };
        Ok(Self::beside(task, &lifetimes, arena, objects)?)
    }

    /// The memory in which every tensor below `below_bytes` that may lie in the arena does so;
    /// `None` if no chunk is left.
    pub(super) fn with_arena(
        task: &Task<'_>,
        below_bytes: u64,
        arena: &mut [ArenaPlacement],
        scratch: &mut Scratch<'m>,
    ) -> Result<Option<Self>, PlanningError> {
        let Task { sequence, machine, budget_bytes } = *task;
        let objects = scratch.take(sequence.tensors().len(), 0u64)?;
        let mut scratch = scratch.reborrow();
        let lifetimes = Lifetimes::new(sequence, &mut scratch)?;
        let (placed, arena_bytes) =
            arena::pack(sequence, machine, &lifetimes, below_bytes, arena, &mut scratch)?;
        if objects_of(task, arena_bytes) >= machine.chunks_within(budget_bytes) {
            return Ok(None);
        }
        let arena = PackedArena { below_bytes, placed, arena_bytes };
        Ok(Some(Self::beside(task, &lifetimes, arena, objects)?))
    }

    /// The memory with a packed arena and chunks for the rest of the budget.
    fn beside(
        task: &Task<'_>,
        lifetimes: &Lifetimes<'_>,
        PackedArena { below_bytes, placed, arena_bytes }: PackedArena,
        objects: &'m mut [u64],
    ) -> Result<Self, PlanError> {
        let Task { sequence, machine, budget_bytes } = *task;
        for tensor in sequence.tensor_ids() {
            if !admits(sequence, lifetimes, below_bytes, tensor) {
                objects[tensor.index()] = objects_of(task, sequence.tensor(tensor).bytes);
            }
        }
        check_objects(task, objects)?;
        let arena_chunks = objects_of(task, arena_bytes);
        let count = machine.chunks_within(budget_bytes).saturating_sub(arena_chunks);
        // A larger pool would have no use.
        let count = count.min(MOST_OBJECTS);
        let pools = [(machine.chunk_bytes, count), (0, 0)]
            .map(|(object_bytes, count)| Pool { object_bytes, count });
        debug_assert!(
            count.saturating_add(arena_chunks).saturating_mul(machine.chunk_bytes) <= budget_bytes,
            "arena and pool fit in the budget"
        );
        Ok(Self { placed, arena_bytes, below_bytes, objects, pools })
    }

    /// The arena admits only tensors below this size.
    pub(super) const fn below_bytes(&self) -> u64 {
        self.below_bytes
    }

    /// Whether a tensor of such a size leaves part of a chunk unused.
    pub(super) fn fills_in_part(&self, task: &Task<'_>, sizes_bytes: Range<u64>) -> bool {
        let tensors = task.sequence.tensor_ids();
        tensors.filter(|&tensor| !self.in_arena(tensor)).any(|tensor| {
            let bytes = task.sequence.tensor(tensor).bytes;
            sizes_bytes.contains(&bytes) && !bytes.is_multiple_of(task.machine.chunk_bytes)
        })
    }

    /// The same memory with some of its chunks made into slabs of `object_bytes`.
    pub(super) fn with_slabs(&self, object_bytes: u64, chunks: u64) -> Memory<'m> {
        let Self {
            placed,
            arena_bytes,
            below_bytes,
            objects,
            pools: [Pool { object_bytes: chunk_bytes, count }, _],
        } = *self;
        let chunks = chunks.min(count);
        let slabs = chunks.saturating_mul(chunk_bytes).checked_div(object_bytes).unwrap_or(0);
        let slabs = slabs.min(MOST_OBJECTS);
        debug_assert!(
            slabs.saturating_mul(object_bytes) <= chunks.saturating_mul(chunk_bytes),
            "slabs take no more than the chunks that they are made of"
        );
        let chunks = Pool { object_bytes: chunk_bytes, count: count.saturating_sub(chunks) };
        let pools = [chunks, Pool { object_bytes, count: slabs }];
        Memory { placed, arena_bytes, below_bytes, objects, pools }
    }

    /// The memory in which states that a list never moves also lie in the arena, after its other
    /// tensors. There they take bytes and not whole chunks. `None` if this saves no chunk. O(steps
    /// + tensors).
    pub(super) fn with_staying_states<'s>(
        &self,
        task: &Task<'_>,
        Lists { steps, resident }: Lists<'_>,
        arena: &mut [ArenaPlacement],
        scratch: &mut Scratch<'s>,
    ) -> Result<Option<Memory<'s>>, OutOfScratch> {
        let Task { sequence, machine, .. } = *task;
        let objects = scratch.take(self.objects.len(), 0u64)?;
        objects.copy_from_slice(self.objects);
        let mut scratch = scratch.reborrow();
        let staying = scratch.take(self.objects.len(), 0u64)?;
        for &Resident { part, .. } in resident {
            // Parts in a list of the planner do not overlap.
            let staying = &mut staying[part.tensor.index()];
            *staying = staying.saturating_add(part.count.min(self.objects(part.tensor)));
        }
        for step in steps {
            if let Some(part) = step.part() {
                staying[part.tensor.index()] = 0;
            }
        }
        let (mut arena_bytes, mut placed) = (self.arena_bytes, self.placed);
        let mut chunks = 0u64;
        for tensor in sequence.tensor_ids() {
            let its_chunks = objects[tensor.index()];
            let is_state = sequence.tensor(tensor).kind == Kind::State;
            let is_idle = its_chunks == 0
                || self.pool(task, tensor) == SLABS
                || sequence.is_used_by_host(tensor);
            if !is_state || is_idle || staying[tensor.index()] != its_chunks {
                continue;
            }
            let Some(slot) = arena.get_mut(placed) else { return Ok(None) };
            *slot = ArenaPlacement { tensor, offset_bytes: arena_bytes };
            arena_bytes = arena_bytes.saturating_add(size_bytes(sequence.graph(), machine, tensor));
            (placed, chunks) = (placed.saturating_add(1), chunks.saturating_add(its_chunks));
            objects[tensor.index()] = 0;
        }
        let more = objects_of(task, arena_bytes).saturating_sub(objects_of(task, self.arena_bytes));
        let mut pools = self.pools;
        pools[CHUNKS].count = pools[CHUNKS].count.saturating_sub(more);
        let below_bytes = self.below_bytes;
        let memory = Memory { placed, arena_bytes, below_bytes, objects, pools };
        Ok((more < chunks).then_some(memory))
    }

    /// The number of pools.
    pub(super) const fn pools(&self) -> usize {
        if self.pools[SLABS].count == 0 { 1 } else { POOLS }
    }

    /// The pool of a tensor that is not in the arena.
    pub(super) fn pool(&self, task: &Task<'_>, tensor: TensorId) -> usize {
        let Pool { object_bytes, count } = self.pools[SLABS];
        let is_small = count > 0 && task.sequence.tensor(tensor).bytes <= object_bytes;
        if is_small { SLABS } else { CHUNKS }
    }

    /// The number of objects in a pool.
    pub(super) const fn pool_objects(&self, pool: usize) -> u64 {
        self.pools[pool].count
    }

    /// The number of objects of a tensor; zero in the arena.
    pub(super) fn objects(&self, tensor: TensorId) -> u64 {
        self.objects[tensor.index()]
    }

    /// Bytes of a tensor that its chunks `from..to` hold.
    pub(super) fn bytes(&self, task: &Task<'_>, tensor: TensorId, from: u64, to: u64) -> u64 {
        let bytes = task.sequence.tensor(tensor).bytes;
        let up_to = |chunks: u64| chunks.saturating_mul(task.machine.chunk_bytes).min(bytes);
        up_to(to).saturating_sub(up_to(from))
    }

    /// The chunks of an op's workspace.
    pub(super) fn workspace(&self, task: &Task<'_>, op: LaunchId) -> u64 {
        objects_of(task, task.sequence.workspace_bytes(op))
    }

    /// Whether a tensor lies in the arena.
    pub(super) fn in_arena(&self, tensor: TensorId) -> bool {
        self.objects[tensor.index()] == 0
    }

    /// The plan of these lists in this memory, without a prediction.
    pub(super) fn plan<'o>(
        &self,
        task: &Task<'_>,
        arena: &'o [ArenaPlacement],
        lists: Lists<'o>,
        PoolTables { pools, tensor_pool }: PoolTables<'o>,
    ) -> Result<Plan<'o>, PlanningError> {
        let sequence = task.sequence;
        let pools = Buffer::Pools.first(pools, self.pools())?;
        pools.copy_from_slice(&self.pools[..pools.len()]);
        let named = if pools.len() > 1 { sequence.tensors().len() } else { 0 };
        let tensor_pool = Buffer::TensorPool.first(tensor_pool, named)?;
        for (pool, tensor) in tensor_pool.iter_mut().zip(sequence.tensor_ids()) {
            *pool = self.pool(task, tensor) as u32;
        }
        Ok(Plan {
            budget_bytes: task.budget_bytes,
            arena_bytes: self.arena_bytes,
            arena,
            pools,
            tensor_pool,
            workspace_pool: &[],
            resident_at_start: lists.resident,
            steps: lists.steps,
            placements: None,
            predicted: Prediction::default(),
        })
    }
}
