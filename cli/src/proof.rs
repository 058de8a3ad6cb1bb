//! Proofs of borrowed plans; their errors are text for a person.

use crate::work::Setting;
use planner_core::Graph;
use spillway::planning::OwnedSchedule;
use spillway::proof;
use workloads::{OwnedGraph, OwnedPlan};

pub(crate) use spillway::proof::Proved;

/// The graph as the core takes it. Whoever made it has checked it, so this does not fail.
pub(crate) fn graph(work: &OwnedGraph) -> Result<Graph<'_>, String> {
    work.graph().map_err(|error| error.to_string())
}

/// Lowers a plan.
pub(crate) fn lower(setting: Setting<'_>, plan: &OwnedPlan) -> Result<OwnedSchedule, String> {
    proof::lower(setting.work, setting.machine, plan).map_err(|error| error.to_string())
}

/// Proves a lowered plan safe, and its prediction exact.
pub(crate) fn prove<'p>(
    setting: Setting<'p>,
    plan: &'p OwnedPlan,
    schedule: &'p OwnedSchedule,
) -> Result<Proved<'p>, String> {
    proof::prove(setting.work, setting.machine, plan, schedule).map_err(|error| error.to_string())
}
