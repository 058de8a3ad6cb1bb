//! Errors of planners, with what helps.

use planner_core::planner::PlanningError;
use spillway::names::Names;
use workloads::OwnedGraph;

/// Why there is no plan, with the names of a graph, and what helps.
pub(crate) fn planning_error(
    graph: &OwnedGraph,
    error: &PlanningError,
    budget_bytes: u64,
) -> String {
    let reason = Names::new(graph, &[]).planning_error(error, budget_bytes);
    match error {
        PlanningError::NoChain { .. } => {
            format!("{reason}; `spillway export chain` converts a training step to one")
        }
        _ => reason,
    }
}
