//! A plan that owns its data, with the names of its graph and machine.

use planner_core::plan::{ArenaPlacement, Pool, Prediction, Resident, Step};
use planner_core::{Placements, Plan};

/// A plan with the names of its graph and machine, as in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedPlan {
    /// Name of the graph.
    pub graph: String,
    /// Name of the machine.
    pub machine: String,
    /// Name of the strategy that made the plan.
    pub strategy: String,
    /// Device memory that arena and pools may take together.
    pub budget_bytes: u64,
    /// Size of the arena.
    pub arena_bytes: u64,
    /// The tensors in the arena, with their offsets.
    pub arena: Vec<ArenaPlacement>,
    /// The pools.
    pub pools: Vec<Pool>,
    /// The pool of each tensor; empty if all are in pool 0.
    pub tensor_pool: Vec<u32>,
    /// The pool of each op's workspace; empty if all are in pool 0.
    pub workspace_pool: Vec<u32>,
    /// The tensors on the device when an iteration starts.
    pub resident_at_start: Vec<Resident>,
    /// The steps, in list order.
    pub steps: Vec<Step>,
    /// Fixed physical objects for every allocation.
    pub placements: Option<OwnedPlacements>,
    /// The prediction of times and memory.
    pub predicted: Prediction,
}

/// The objects of every allocation; see [`Placements`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedPlacements {
    /// The number of iterations after which the objects repeat.
    pub iterations: u32,
    /// The object numbers, one allocation after the other.
    pub objects: Vec<u64>,
    /// For each allocation, the end of its numbers in `objects`.
    pub ends: Vec<u32>,
}

impl OwnedPlacements {
    /// Creates placements that repeat after this many iterations.
    #[must_use]
    pub const fn new(iterations: u32, objects: Vec<u64>, ends: Vec<u32>) -> Self {
        Self { iterations, objects, ends }
    }

    /// The placements for the core.
    #[must_use]
    pub fn placements(&self) -> Placements<'_> {
        let Self { iterations, objects, ends } = self;
        Placements { iterations: *iterations, objects, ends }
    }
}

impl From<Placements<'_>> for OwnedPlacements {
    fn from(placements: Placements<'_>) -> Self {
        let Placements { iterations, objects, ends } = placements;
        Self { iterations, objects: objects.to_vec(), ends: ends.to_vec() }
    }
}

impl OwnedPlan {
    /// Creates a plan of these steps, without names, budget, arena, placements or a prediction. All tensors are
    /// in pool 0.
    #[must_use]
    pub fn new(pools: Vec<Pool>, resident_at_start: Vec<Resident>, steps: Vec<Step>) -> Self {
        Self { pools, resident_at_start, steps, ..Self::default() }
    }

    /// The plan for the core. Nothing in it is checked.
    #[must_use]
    pub fn plan(&self) -> Plan<'_> {
        Plan {
            budget_bytes: self.budget_bytes,
            arena_bytes: self.arena_bytes,
            arena: &self.arena,
            pools: &self.pools,
            tensor_pool: &self.tensor_pool,
            workspace_pool: &self.workspace_pool,
            resident_at_start: &self.resident_at_start,
            steps: &self.steps,
            placements: self.placements.as_ref().map(OwnedPlacements::placements),
            predicted: self.predicted,
        }
    }
}

impl From<&Plan<'_>> for OwnedPlan {
    fn from(plan: &Plan<'_>) -> Self {
        Self {
            graph: String::new(),
            machine: String::new(),
            strategy: String::new(),
            budget_bytes: plan.budget_bytes,
            arena_bytes: plan.arena_bytes,
            arena: plan.arena.to_vec(),
            pools: plan.pools.to_vec(),
            tensor_pool: plan.tensor_pool.to_vec(),
            workspace_pool: plan.workspace_pool.to_vec(),
            resident_at_start: plan.resident_at_start.to_vec(),
            steps: plan.steps.to_vec(),
            placements: plan.placements.map(OwnedPlacements::from),
            predicted: plan.predicted,
        }
    }
}
