//! A request for a plan, and the buffers for the plan.

#![expect(clippy::indexing_slicing, reason = "lengths are those of a plan in these buffers")]

use crate::graph::{Graph, OpId};
use crate::machine::Machine;
use crate::plan::{ArenaPlacement, Plan, Pool, Prediction, Resident, Step};
use crate::scratch::{Buffer, BufferTooShort};
use crate::sequence::Sequence;

/// The most pools of a plan: chunks, and slabs.
pub(super) const POOLS: usize = 2;

/// A request for a plan.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The work.
    pub graph: &'a Graph<'a>,
    /// The machine that runs it.
    pub machine: &'a Machine,
    /// Device memory for the plan, in bytes.
    pub budget_bytes: u64,
}

/// A request, with its ops in the order in which they will run.
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

/// Buffers for a plan, owned by the caller. Their lengths follow from the [limits of the
/// graph](crate::Limits::of_graph).
#[derive(Debug)]
pub struct Output<'o> {
    /// The list. [`max_steps`](crate::Limits::max_steps) entries always suffice; usually a fraction
    /// of them does.
    pub steps: &'o mut [Step],
    /// Two entries for each tensor.
    pub resident: &'o mut [Resident],
    /// One entry for each tensor.
    pub arena: &'o mut [ArenaPlacement],
    /// Two entries.
    pub pools: &'o mut [Pool],
    /// One entry for each tensor.
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

    /// The same buffers, for a shorter time.
    pub(super) const fn reborrow(&mut self) -> Output<'_> {
        Output {
            steps: self.steps,
            resident: self.resident,
            arena: self.arena,
            pools: self.pools,
            tensor_pool: self.tensor_pool,
        }
    }

    /// Copies a plan that was written last into other buffers of the same lengths.
    pub(super) fn copy(&mut self, from: &Output<'_>, written: &Written) {
        let Written { steps, resident, arena, pools, tensor_pool, .. } = *written;
        self.steps[..steps].copy_from_slice(&from.steps[..steps]);
        self.resident[..resident].copy_from_slice(&from.resident[..resident]);
        self.arena[..arena].copy_from_slice(&from.arena[..arena]);
        self.pools[..pools].copy_from_slice(&from.pools[..pools]);
        self.tensor_pool[..tensor_pool].copy_from_slice(&from.tensor_pool[..tensor_pool]);
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

/// The lengths of a plan in the buffers, and the plan without its lists.
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

    /// The plan's prediction.
    pub(super) const fn predicted(&self) -> Prediction {
        self.bare.predicted
    }
}

/// The list of a plan, and the parts resident at its start.
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
    /// The same buffers, for a shorter time.
    pub(super) const fn reborrow(&mut self) -> PoolTables<'_> {
        PoolTables { pools: self.pools, tensor_pool: self.tensor_pool }
    }
}

/// The tensors that are on the device at once in the least memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Held {
    /// The operands of the op, and states for which the host has no memory.
    Operands,
    /// All tensors that are alive at the op, but of the states only operands.
    Layer,
    /// All tensors that are alive at the op.
    Alive,
    /// All tensors that are alive at the op once ops run again or on the host.
    AliveInPlan,
}

/// The least memory with which a strategy can plan, and its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeastMemory {
    /// The smallest feasible budget.
    pub bytes: u64,
    /// The op that needs it.
    pub op: OpId,
    /// Bytes of the arena, before rounding up to chunks.
    pub arena_bytes: u64,
    /// Number of tensors in the arena.
    pub placed: usize,
    /// The contents of arena and chunks beside the op's workspace.
    pub held: Held,
}
