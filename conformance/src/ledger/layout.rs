//! Pools and objects: where each tensor lies, and how much of the budget all take
//! (`docs/format.md`, 3.2 and 3.4).

use super::Violation;
use planner_core::plan::{Location, Pool};
use planner_core::{Graph, Machine, OpId, Part, Plan, TensorId};
use std::ops::Range;

/// The pools of tensors and workspaces. A tensor in the arena counts as one object outside of all
/// pools.
pub(super) struct Layout<'a> {
    pub(super) graph: &'a Graph<'a>,
    pub(super) plan: &'a Plan<'a>,
}

impl<'a> Layout<'a> {
    /// Checks the budget and the pools, and that every tensor and workspace has a pool that suits
    /// it.
    pub(super) fn check(
        graph: &'a Graph<'a>,
        machine: &Machine,
        plan: &'a Plan<'a>,
    ) -> Result<Self, Violation> {
        check_budget(machine, plan)?;
        for (table, expected) in
            [(plan.tensor_pool, graph.tensors().len()), (plan.workspace_pool, graph.ops().len())]
        {
            if !table.is_empty() && table.len() != expected {
                return Err(Violation::of_plan("a pool table has the wrong length"));
            }
            if let Some(&pool) = table.iter().find(|&&pool| pool as usize >= plan.pools.len()) {
                return Err(Violation::at(Location::Pool(pool), "a table names no such pool"));
            }
        }
        let layout = Self { graph, plan };
        for tensor in graph.tensor_ids().filter(|&tensor| !layout.in_arena(tensor)) {
            let pool = plan.tensor_pool.get(tensor.index()).map_or(0, |&pool| pool);
            check_object(machine, plan, pool, graph.tensor(tensor).bytes)?;
        }
        for op in graph.op_ids().filter(|&op| graph.op(op).workspace_bytes > 0) {
            let pool = plan.workspace_pool.get(op.index()).map_or(0, |&pool| pool);
            check_object(machine, plan, pool, graph.op(op).workspace_bytes)?;
        }
        Ok(layout)
    }

    /// Whether the tensor lies in the arena.
    pub(super) fn in_arena(&self, tensor: TensorId) -> bool {
        self.plan.arena.iter().any(|placement| placement.tensor == tensor)
    }

    /// The pool of the tensor. `None` in the arena.
    pub(super) fn pool_of(&self, tensor: TensorId) -> Option<usize> {
        let pool = self.plan.tensor_pool.get(tensor.index()).map_or(0, |&pool| pool as usize);
        (!self.in_arena(tensor)).then_some(pool)
    }

    fn pool(&self, tensor: TensorId) -> Option<Pool> {
        self.pool_of(tensor).map(|pool| self.plan.pools[pool])
    }

    /// The size of an object of the tensor. 0 in the arena, which has no objects.
    pub(super) fn object_bytes(&self, tensor: TensorId) -> u64 {
        self.pool(tensor).map_or(0, |pool| pool.object_bytes)
    }

    /// `ceil(bytes / object_bytes)` objects in a pool.
    pub(super) fn objects(&self, tensor: TensorId) -> u64 {
        let bytes = self.graph.tensor(tensor).bytes;
        self.pool(tensor).map_or(1, |pool| bytes.div_ceil(pool.object_bytes))
    }

    /// The bytes of an object that the tensor fills. 0 if the tensor lies in the arena.
    pub(super) fn filled_bytes(&self, tensor: TensorId, object: u64) -> u64 {
        let object_bytes = self.object_bytes(tensor);
        (self.graph.tensor(tensor).bytes - object * object_bytes).min(object_bytes)
    }

    /// The bytes that a transfer of these objects copies.
    pub(super) fn copied_bytes(&self, tensor: TensorId, objects: &Range<u64>) -> u64 {
        if self.in_arena(tensor) {
            return self.graph.tensor(tensor).bytes;
        }
        objects.clone().map(|object| self.filled_bytes(tensor, object)).sum()
    }

    /// The objects that a part names: the whole tensor, or a range inside it that is not empty.
    pub(super) fn named(&self, location: Location, part: Part) -> Result<Range<u64>, Violation> {
        let objects = self.objects(part.tensor);
        if part.is_whole() {
            return Ok(0..objects);
        }
        if self.in_arena(part.tensor) {
            let message = format!("{} lies in the arena and has no ranges", part.tensor);
            return Err(Violation::at(location, message));
        }
        match part.first.checked_add(part.count) {
            Some(end) if part.count > 0 && end <= objects => Ok(part.first..end),
            _ => Err(Violation::at(location, format!("no range of {}'s {objects}", part.tensor))),
        }
    }

    /// The pool and the number of objects of an op's workspace. `None` if the op has no workspace.
    pub(super) fn workspace(&self, op: OpId) -> Option<(usize, u64)> {
        let bytes = self.graph.op(op).workspace_bytes;
        let pool = self.plan.workspace_pool.get(op.index()).map_or(0, |&pool| pool as usize);
        (bytes > 0).then(|| (pool, bytes.div_ceil(self.plan.pools[pool].object_bytes)))
    }
}

/// Checks that the arena and all pools, each rounded up to chunks, fit the budget, and that the
/// budget fits the device's memory.
fn check_budget(machine: &Machine, plan: &Plan<'_>) -> Result<(), Violation> {
    let rounded = |bytes: u64| bytes.div_ceil(machine.chunk_bytes).checked_mul(machine.chunk_bytes);
    let mut needed_bytes = rounded(plan.arena_bytes).ok_or_else(Violation::overflow)?;
    for (location, pool) in (0..).map(Location::Pool).zip(plan.pools) {
        if pool.object_bytes == 0 {
            return Err(Violation::at(location, "an object has no bytes"));
        }
        needed_bytes = pool
            .object_bytes
            .checked_mul(pool.count)
            .and_then(rounded)
            .and_then(|pool_bytes| needed_bytes.checked_add(pool_bytes))
            .ok_or_else(Violation::overflow)?;
    }
    if needed_bytes > plan.budget_bytes {
        return Err(Violation::of_plan("arena and pools take more than the budget"));
    }
    if plan.budget_bytes > machine.device_bytes {
        return Err(Violation::of_plan("the budget is more than the device has"));
    }
    Ok(())
}

/// Checks that a pool's objects are multiples of a chunk if a tensor or workspace takes more than
/// one of them.
fn check_object(
    machine: &Machine,
    plan: &Plan<'_>,
    pool: u32,
    bytes: u64,
) -> Result<(), Violation> {
    let location = Location::Pool(pool);
    let Some(data) = plan.pools.get(pool as usize) else {
        return Err(Violation::at(location, "there is no such pool"));
    };
    if bytes > data.object_bytes && data.object_bytes % machine.chunk_bytes != 0 {
        return Err(Violation::at(location, "its objects are no multiple of a chunk"));
    }
    Ok(())
}
