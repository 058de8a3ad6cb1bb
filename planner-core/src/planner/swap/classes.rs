//! Device memory in size classes, each a pool of objects of one size.

#![expect(clippy::indexing_slicing, reason = "`check_tables` has checked the tables of classes")]

use crate::graph::{Graph, OpId, TensorId};
use crate::machine::Machine;
use crate::plan::{Location, PlanError, Pool};
use crate::planner::error::PlanningError;
use crate::planner::request::Request;
use crate::scratch::{Limits, Scratch, words};

/// Size classes, and the class of each tensor and workspace.
#[derive(Clone, Copy, Debug)]
pub struct Classes<'a> {
    /// The classes.
    pub pools: &'a [Pool],
    /// The class of each tensor; its objects must be large enough.
    pub tensor_pool: &'a [u32],
    /// The class of each op's workspace; for an op without one, any class.
    pub workspace_pool: &'a [u32],
}

impl Classes<'_> {
    pub(super) fn of_tensor(&self, tensor: TensorId) -> usize {
        self.tensor_pool[tensor.index()] as usize
    }

    pub(super) fn of_workspace(&self, graph: &Graph<'_>, op: OpId) -> Option<usize> {
        let has_one = graph.op(op).workspace_bytes > 0;
        has_one.then(|| self.workspace_pool[op.index()] as usize)
    }

    /// Checks that each tensor and workspace has a class with objects of its size.
    fn check_tables(&self, graph: &Graph<'_>) -> Result<(), PlanError> {
        for (length, expected) in [
            (self.tensor_pool.len(), graph.tensors().len()),
            (self.workspace_pool.len(), graph.ops().len()),
        ] {
            if length != expected {
                return Err(PlanError::PoolTable { length, expected });
            }
        }
        let too_small = |pool: u32, bytes: u64| {
            let pool_of = self.pools.get(pool as usize);
            pool_of.map(|of| {
                (of.object_bytes < bytes).then_some(PlanError::ObjectSize(Location::Pool(pool)))
            })
        };
        for (id, tensor) in graph.tensor_ids().zip(graph.tensors()) {
            let pool = self.tensor_pool[id.index()];
            let error = too_small(pool, tensor.bytes).ok_or(PlanError::TensorWithoutPool(id))?;
            error.map_or(Ok(()), Err)?;
        }
        for (id, op) in graph.op_ids().zip(graph.ops()) {
            let pool = self.workspace_pool[id.index()];
            let error = too_small(pool, op.workspace_bytes);
            error.ok_or(PlanError::WorkspaceWithoutPool(id))?.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// The bytes of `counts` objects of the classes, each class rounded up to chunks.
    #[must_use]
    pub fn bytes(pools: &[Pool], counts: impl Iterator<Item = u64>, machine: &Machine) -> u64 {
        pools.iter().zip(counts).fold(0, |sum, (pool, count)| {
            let bytes = pool.object_bytes.checked_mul(count);
            let bytes = bytes.and_then(|bytes| machine.round_up_to_chunks(bytes));
            sum.saturating_add(bytes.unwrap_or(u64::MAX))
        })
    }

    /// Words of scratch that [`Classes::needs`] needs, by [`Limits::of_graph`] with `pools` set to
    /// the number of classes.
    #[must_use]
    pub const fn needs_scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.tensors).saturating_add(words::<u64>(limits.pools))
    }

    /// Checks that each op finds enough objects. The error has the least memory with which all ops
    /// do.
    pub(super) fn check(
        &self,
        request: &Request<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<(), PlanningError> {
        let mut scratch = scratch.reborrow();
        let least = scratch.take(self.pools.len(), 0u64)?;
        let op = self.needs(request.graph, least, &mut scratch)?;
        let counts = self.pools.iter().map(|pool| pool.count);
        let is_enough = self.pools.iter().zip(&*least).all(|(pool, &least)| least <= pool.count);
        if is_enough && Self::bytes(self.pools, counts, request.machine) <= request.budget_bytes {
            return Ok(());
        }
        let counts = self.pools.iter().zip(&*least).map(|(pool, &least)| pool.count.max(least));
        let min_feasible_bytes = Self::bytes(self.pools, counts, request.machine);
        Err(PlanningError::Infeasible { min_feasible_bytes, op })
    }

    /// Writes the most objects of each class that one op uses to `least`, which has an entry for
    /// each class. Returns the op that uses the most bytes. O(operands).
    ///
    /// # Errors
    /// Tensors and workspaces without a class of objects of their size, too few entries, and too
    /// little scratch.
    pub fn needs(
        &self,
        graph: &Graph<'_>,
        least: &mut [u64],
        scratch: &mut Scratch<'_>,
    ) -> Result<OpId, PlanError> {
        self.check_tables(graph)?;
        let (length, expected) = (least.len(), self.pools.len());
        let least = least.get_mut(..expected).ok_or(PlanError::PoolTable { length, expected })?;
        let mut scratch = scratch.reborrow();
        let touched_by = scratch.take(graph.tensors().len(), u32::MAX)?;
        let counts = scratch.take(self.pools.len(), 0u64)?;
        let (mut most_bytes, mut most) = (0, OpId(0));
        for op in graph.op_ids() {
            let mut bytes = 0u64;
            let mut add = |class: usize, counts: &mut [u64]| {
                counts[class] = counts[class].saturating_add(1);
                least[class] = least[class].max(counts[class]);
                bytes = bytes.saturating_add(self.pools[class].object_bytes);
            };
            for &tensor in graph.operands_of(op) {
                if core::mem::replace(&mut touched_by[tensor.index()], op.0) != op.0 {
                    add(self.of_tensor(tensor), counts);
                }
            }
            let workspace = self.of_workspace(graph, op);
            workspace.iter().for_each(|&class| add(class, counts));
            if bytes > most_bytes {
                (most_bytes, most) = (bytes, op);
            }
            for class in graph.operands_of(op).iter().map(|&tensor| self.of_tensor(tensor)) {
                counts[class] = 0;
            }
            workspace.iter().for_each(|&class| counts[class] = 0);
        }
        Ok(most)
    }
}
