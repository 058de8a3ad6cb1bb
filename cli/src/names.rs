//! Errors of planners and backends, with names of ops and tensors.

use planner_core::backend::BackendError;
use planner_core::planner::PlanningError;
use planner_core::{ExecuteError, Step};
use spillway::names;
use workloads::OwnedGraph;

/// The names of a graph, and the steps of a plan for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Names<'n>(names::Names<'n>);

impl<'n> Names<'n> {
    /// The names of a graph; steps are described where they are given.
    pub(crate) const fn new(graph: &'n OwnedGraph, steps: &'n [Step]) -> Self {
        Self(names::Names::new(graph, steps))
    }

    /// Why there is no plan, and what helps.
    pub(crate) fn planning_error(&self, error: &PlanningError, budget_bytes: u64) -> String {
        let reason = self.0.planning_error(error, budget_bytes);
        match error {
            PlanningError::NoChain { .. } => {
                format!("{reason}; `spillway export chain` converts a training step to one")
            }
            _ => reason,
        }
    }

    /// Why a device refuses or fails.
    pub(crate) fn device_error<E: BackendError>(&self, error: &E) -> String {
        self.0.device_error(error)
    }

    /// Why a plan did not run to its end.
    pub(crate) fn execute_error<E: BackendError>(&self, error: &ExecuteError<E>) -> String {
        self.0.execute_error(error)
    }
}
