//! Errors of planners and backends, with names of ops and tensors.

use backend_checks::Refused;
use planner_core::planner::PlanningError;
use planner_core::{ExecuteError, Step};
use spillway::names::{self, Mentions};
use std::error::Error;
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

    /// Why a device refuses or fails; `mentioned` finds the ids in its error.
    pub(crate) fn device_error<E: Error>(
        &self,
        error: &E,
        mentioned: impl Fn(&E) -> Mentions,
    ) -> String {
        self.0.translate(&error.to_string(), &mentioned(error))
    }

    /// Why a plan did not run to its end; `mentioned` finds the ids in a device's error.
    pub(crate) fn execute_error<E: Error>(
        &self,
        error: &ExecuteError<E>,
        mentioned: impl Fn(&E) -> Mentions,
    ) -> String {
        self.0.execute_error(error, mentioned)
    }
}

/// The ids in the reason for which a backend refuses a call.
pub(crate) fn refused_mentions(refused: &Refused) -> Mentions {
    match *refused {
        Refused::Operands(op) | Refused::NotRepeatable(op) => {
            Mentions { op: Some(op), ..Mentions::default() }
        }
        // The others name only addresses and chunks.
        _ => Mentions::default(),
    }
}
