//! What to plan for, and the buffers that a plan is written into.

use crate::graph::{Graph, OpId};
use crate::machine::Machine;
use crate::plan::{ArenaPlacement, Plan, Pool, Prediction, Resident, Step};
use crate::scratch::{Buffer, BufferTooShort};
use crate::sequence::Sequence;

/// How many pools a plan has at most: chunks, and slabs.
pub(super) const POOLS: usize = 2;

/// What to plan for.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The work.
    pub graph: &'a Graph<'a>,
    /// Where it runs.
    pub machine: &'a Machine,
    /// Device memory for the plan.
    pub budget_bytes: u64,
}

/// A request with its ops in the order in which they are to run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Task<'a> {
    pub(super) sequence: &'a Sequence<'a>,
    pub(super) machine: &'a Machine,
    pub(super) budget_bytes: u64,
}

impl<'a> Task<'a> {
    pub(super) const fn new(request: &Request<'a>, sequence: &'a Sequence<'a>) -> Self {
        let Request { machine, budget_bytes, .. } = *request;
        Self { sequence, machine, budget_bytes }
    }
}

/// Buffers for a plan, owned by the caller. Their lengths follow from the
/// [limits of the graph](crate::Limits::of_graph).
#[derive(Debug)]
pub struct Output<'o> {
    /// The list; [`max_steps`](crate::Limits::max_steps) are always enough, and a fraction of that mostly is.
    pub steps: &'o mut [Step],
    /// Two for each tensor.
    pub resident: &'o mut [Resident],
    /// One for each tensor.
    pub arena: &'o mut [ArenaPlacement],
    /// Two.
    pub pools: &'o mut [Pool],
    /// One for each tensor.
    pub tensor_pool: &'o mut [u32],
}

impl Output<'_> {
    /// Checks the buffers whose lengths follow from the graph.
    pub(super) fn check(&mut self, graph: &Graph<'_>) -> Result<(), BufferTooShort> {
        let tensors = graph.tensors().len();
        Buffer::Resident.first(self.resident, tensors.saturating_mul(2))?;
        Buffer::Arena.first(self.arena, tensors)?;
        Buffer::Pools.first(self.pools, POOLS)?;
        Buffer::TensorPool.first(self.tensor_pool, tensors)?;
        Ok(())
    }

    /// The same buffers, for a while.
    pub(super) const fn reborrow(&mut self) -> Output<'_> {
        Output {
            steps: self.steps,
            resident: self.resident,
            arena: self.arena,
            pools: self.pools,
            tensor_pool: self.tensor_pool,
        }
    }
}

impl<'o> Output<'o> {
    /// The plan that was written last.
    pub(super) fn written(self, written: Written) -> Plan<'o> {
        let Written { bare, steps, resident, arena, pools, tensor_pool } = written;
        Plan {
            steps: &self.steps[..steps],
            resident_at_start: &self.resident[..resident],
            arena: &self.arena[..arena],
            pools: &self.pools[..pools],
            tensor_pool: &self.tensor_pool[..tensor_pool],
            ..bare
        }
    }
}

/// How far the buffers hold a plan, and the rest of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written {
    bare: Plan<'static>,
    steps: usize,
    resident: usize,
    arena: usize,
    pools: usize,
    tensor_pool: usize,
}

impl Written {
    pub(super) const fn of(plan: &Plan<'_>) -> Self {
        Self {
            bare: plan.without_lists(),
            steps: plan.steps.len(),
            resident: plan.resident_at_start.len(),
            arena: plan.arena.len(),
            pools: plan.pools.len(),
            tensor_pool: plan.tensor_pool.len(),
        }
    }

    /// What the plan predicts.
    pub(super) const fn predicted(&self) -> Prediction {
        self.bare.predicted
    }
}

/// The list of a plan, and what is resident at its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lists<'l> {
    pub(super) steps: &'l [Step],
    pub(super) resident: &'l [Resident],
}

/// The buffers for the pools of a plan.
#[derive(Debug)]
pub(super) struct PoolTables<'o> {
    pub(super) pools: &'o mut [Pool],
    pub(super) tensor_pool: &'o mut [u32],
}

impl PoolTables<'_> {
    /// The same buffers, for a while.
    pub(super) const fn reborrow(&mut self) -> PoolTables<'_> {
        PoolTables { pools: self.pools, tensor_pool: self.tensor_pool }
    }
}

/// The least memory with which a strategy can plan, and what takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeastMemory {
    /// The smallest feasible budget.
    pub bytes: u64,
    /// The op that needs it.
    pub op: OpId,
    /// What of it is the arena, before rounding up to chunks.
    pub arena_bytes: u64,
    /// How many tensors lie in the arena.
    pub placed: usize,
}
