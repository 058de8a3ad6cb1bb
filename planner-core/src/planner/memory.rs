//! How a plan's memory is divided: an arena for small tensors, and one pool of chunks.

use super::{LeastMemory, Need, PlanningError, Request};
use crate::arena::{self, Lifetimes, admits};
use crate::graph::{Kind, OpId, TensorId};
use crate::plan::{ArenaPlacement, Plan, Pool, Prediction, Resident, Step};
use crate::scratch::{Limits, Scratch, words};

/// Sizes below which tensors go to the arena, as fractions of a chunk. Smaller arenas
/// leave more to the pool where the budget is tight.
const ARENA_FRACTIONS: [u64; 5] = [2, 8, 32, 128, u64::MAX];

/// An arena of at most this fraction of the budget is taken without trying others.
const GENEROUS: u64 = 16;

/// The memory of a plan.
#[derive(Debug)]
pub(super) struct Memory<'m> {
    /// Tensors placed in the arena.
    pub(super) placed: usize,
    arena_bytes: u64,
    /// Chunks of each tensor; none for those in the arena.
    objects: &'m [u64],
    /// Chunks in the pool.
    pub(super) pool_objects: u64,
}

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    words::<u64>(limits.tensors)
        + Lifetimes::scratch_words(limits)
        + arena::scratch_words(limits)
        + words::<u32>(limits.tensors)
        + words::<u64>(limits.ops + 1)
}

/// One way to divide the memory, and what that costs at least.
#[derive(Clone, Copy, Debug)]
struct Division {
    below_bytes: u64,
    placed: usize,
    arena_bytes: u64,
    needed_bytes: u64,
    op: OpId,
}

/// Tries all arenas, in turn, until one is `good`; returns the one that needs least.
fn divide(
    request: &Request<'_>,
    need: Need,
    lifetimes: &Lifetimes<'_>,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
    good: impl Fn(&Division) -> bool,
) -> Result<Division, PlanningError> {
    let mut least: Option<Division> = None;
    for fraction in ARENA_FRACTIONS {
        let below_bytes = request.machine.chunk_bytes / fraction;
        let mut division = pack(request, lifetimes, below_bytes, arena, scratch)?;
        let largest = largest_need(request, need, lifetimes, below_bytes, scratch)?;
        let (objects, op) = largest;
        division.op = op;
        division.needed_bytes = request
            .machine
            .round_up_to_chunks(division.arena_bytes)
            .zip(objects.checked_mul(request.machine.chunk_bytes))
            .and_then(|(arena, pool)| arena.checked_add(pool))
            .unwrap_or(u64::MAX);
        if good(&division) {
            return Ok(division);
        }
        if least.is_none_or(|least| division.needed_bytes < least.needed_bytes) {
            least = Some(division);
        }
        if below_bytes == 0 {
            break;
        }
    }
    least.ok_or(PlanningError::OutputFull)
}

fn pack(
    request: &Request<'_>,
    lifetimes: &Lifetimes<'_>,
    below_bytes: u64,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<Division, PlanningError> {
    let Request { graph, machine, .. } = *request;
    if arena.len() < graph.tensors().len() {
        return Err(PlanningError::OutputFull);
    }
    let mut scratch = scratch.reborrow();
    let (placed, arena_bytes) =
        arena::pack(graph, machine, lifetimes, below_bytes, arena, &mut scratch)?;
    Ok(Division { below_bytes, placed, arena_bytes, needed_bytes: 0, op: OpId(0) })
}

fn objects_of(request: &Request<'_>, bytes: u64) -> u64 {
    bytes.div_ceil(request.machine.chunk_bytes)
}

/// The most chunks that must be on the device at once, and the op at which.
fn largest_need(
    request: &Request<'_>,
    need: Need,
    lifetimes: &Lifetimes<'_>,
    below_bytes: u64,
    scratch: &mut Scratch<'_>,
) -> Result<(u64, OpId), PlanningError> {
    let graph = request.graph;
    let objects = |tensor: TensorId| match admits(graph, lifetimes, below_bytes, tensor) {
        true => 0,
        false => objects_of(request, graph.tensor(tensor).bytes),
    };
    let workspace = |op: OpId| objects_of(request, graph.op(op).workspace_bytes);
    let mut scratch = scratch.reborrow();
    let mut most = (0u64, OpId(0));
    let mut look = |objects: u64, op: OpId| {
        if objects > most.0 {
            most = (objects, op);
        }
    };
    match need {
        Need::LargestOp => {
            let read_by = scratch.take(graph.tensors().len(), u32::MAX)?;
            for op in graph.op_ids() {
                let mut sum = workspace(op);
                for &tensor in graph.reads(op) {
                    read_by[tensor.index()] = op.0;
                    sum = sum.saturating_add(objects(tensor));
                }
                let only_written =
                    graph.writes(op).iter().filter(|tensor| read_by[tensor.index()] != op.0);
                look(only_written.fold(sum, |sum, &t| sum.saturating_add(objects(t))), op);
            }
        }
        Need::Layer | Need::Everything => {
            let stays = |kind: Kind| kind == Kind::State && need == Need::Everything;
            let own = |op: OpId| {
                let states = graph.touches(op).filter(|tensor| {
                    graph.tensor(*tensor).kind == Kind::State && need == Need::Layer
                });
                states.fold(workspace(op), |sum, tensor| sum.saturating_add(objects(tensor)))
            };
            let change = scratch.take(graph.ops().len() + 1, 0u64)?;
            let mut live = 0u64;
            for tensor in graph.tensor_ids() {
                let Some((first, last)) = lifetimes.touches(tensor) else { continue };
                if stays(graph.tensor(tensor).kind) {
                    live = live.saturating_add(objects(tensor));
                } else if graph.tensor(tensor).kind != Kind::State {
                    let objects = objects(tensor);
                    change[first as usize] = change[first as usize].wrapping_add(objects);
                    let after = &mut change[last as usize + 1];
                    *after = after.wrapping_sub(objects);
                }
            }
            for (op, &change) in graph.op_ids().zip(&*change) {
                live = live.wrapping_add(change);
                look(live.saturating_add(own(op)), op);
            }
        }
    }
    Ok(most)
}

/// The smallest budget that any of the arenas allows; its tensors are left in the arena.
pub(super) fn smallest(
    request: &Request<'_>,
    need: Need,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<LeastMemory, PlanningError> {
    let lifetimes = Lifetimes::new(request.graph, scratch)?;
    let least = divide(request, need, &lifetimes, arena, scratch, |_| false)?;
    // Later tries have overwritten the arena.
    pack(request, &lifetimes, least.below_bytes, arena, scratch)?;
    let Division { needed_bytes: bytes, op, arena_bytes, placed, .. } = least;
    Ok(LeastMemory { bytes, op, arena_bytes, placed })
}

impl<'m> Memory<'m> {
    /// Divides the budget: the largest arena that leaves enough, else the one that leaves
    /// most.
    pub(super) fn new(
        request: &Request<'_>,
        need: Need,
        arena: &mut [ArenaPlacement],
        scratch: &mut Scratch<'m>,
    ) -> Result<Self, PlanningError> {
        let Request { graph, machine, budget_bytes } = *request;
        let objects = scratch.take(graph.tensors().len(), 0u64)?;
        let mut scratch = scratch.reborrow();
        let lifetimes = Lifetimes::new(graph, &mut scratch)?;
        let generous = |division: &Division| {
            division.needed_bytes <= budget_bytes && division.arena_bytes <= budget_bytes / GENEROUS
        };
        let mut division = divide(request, need, &lifetimes, arena, &mut scratch, generous)?;
        if division.needed_bytes > budget_bytes {
            let Division { needed_bytes: min_feasible_bytes, op, .. } = division;
            return Err(PlanningError::Infeasible { min_feasible_bytes, op });
        }
        // Later tries have overwritten the arena.
        division = pack(request, &lifetimes, division.below_bytes, arena, &mut scratch)?;
        for tensor in graph.tensor_ids() {
            if !admits(graph, &lifetimes, division.below_bytes, tensor) {
                objects[tensor.index()] = objects_of(request, graph.tensor(tensor).bytes);
            }
        }
        let arena_chunks = objects_of(request, division.arena_bytes);
        Ok(Self {
            placed: division.placed,
            arena_bytes: division.arena_bytes,
            objects,
            pool_objects: (budget_bytes / machine.chunk_bytes).saturating_sub(arena_chunks),
        })
    }

    /// Chunks of a tensor; none in the arena.
    pub(super) fn objects(&self, tensor: TensorId) -> u64 {
        self.objects[tensor.index()]
    }

    /// Bytes of a tensor that its chunks `from..to` really hold.
    pub(super) fn bytes(&self, request: &Request<'_>, tensor: TensorId, from: u64, to: u64) -> u64 {
        let bytes = request.graph.tensor(tensor).bytes;
        let up_to = |chunks: u64| chunks.saturating_mul(request.machine.chunk_bytes).min(bytes);
        up_to(to).saturating_sub(up_to(from))
    }

    /// Chunks of an op's workspace.
    pub(super) fn workspace(&self, request: &Request<'_>, op: OpId) -> u64 {
        objects_of(request, request.graph.op(op).workspace_bytes)
    }

    /// Whether a tensor lies in the arena.
    pub(super) fn in_arena(&self, tensor: TensorId) -> bool {
        self.objects[tensor.index()] == 0
    }

    /// The plan of these lists in this memory, without its predictions.
    pub(super) fn plan<'o>(
        &self,
        request: &Request<'_>,
        arena: &'o [ArenaPlacement],
        (steps, resident_at_start): (&'o [Step], &'o [Resident]),
        pools: &'o mut [Pool],
    ) -> Result<Plan<'o>, PlanningError> {
        let pool = pools.first_mut().ok_or(PlanningError::OutputFull)?;
        *pool = Pool { object_bytes: request.machine.chunk_bytes, count: self.pool_objects };
        Ok(Plan {
            budget_bytes: request.budget_bytes,
            arena_bytes: self.arena_bytes,
            arena,
            pools: &pools[..1],
            tensor_pool: &[],
            workspace_pool: &[],
            resident_at_start,
            steps,
            placements: None,
            predicted: Prediction::default(),
        })
    }
}
