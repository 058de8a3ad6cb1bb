//! Errors, with the names of tensors and ops.

use crate::budget::BadBudget;
use crate::names::Names;
use planner_core::planner::PlanningError;
use planner_core::switch::SwitchError;
use planner_core::{GraphError, OpId, OutOfScratch, PlanError, VerifyError};
use std::convert::Infallible;
use std::fmt;
use workloads::format::FormatError;
use workloads::{OwnedGraph, Shown};

/// An error of a graph, a plan or a file. It displays with the names of tensors and ops.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The graph is malformed.
    Graph {
        /// The defect, with ids.
        error: GraphError,
        /// The error as text with names.
        message: String,
    },
    /// A text is not a budget.
    Budget(BadBudget),
    /// The budget is too small for the strategy.
    Infeasible {
        /// The budget.
        budget_bytes: u64,
        /// The smallest budget with which the strategy can plan.
        min_feasible_bytes: u64,
        /// The op that needs this memory.
        op: OpId,
        /// The error as text with the name of the op.
        message: String,
    },
    /// Planning failed for another reason.
    Planning {
        /// The reason, with ids.
        error: PlanningError,
        /// The error as text with names.
        message: String,
    },
    /// A plan is not safe, or its prediction is wrong.
    Invalid {
        /// The first broken rule, with ids.
        error: VerifyError,
        /// The error as text with names.
        message: String,
    },
    /// A plan is for another graph.
    OtherGraph {
        /// The name of the graph in the plan.
        planned: String,
        /// The name of the graph that was given.
        given: String,
    },
    /// A plan is for another machine.
    OtherMachine {
        /// The name of the machine in the plan.
        planned: String,
        /// The name of the machine that was given.
        given: String,
    },
    /// Two graphs have different states, so a session cannot switch from one to the other.
    States(String),
    /// A session cannot switch between two plans for another reason.
    Switch(SwitchError),
    /// A certificate is for another graph or machine, or proves less than it claims.
    Certificate(String),
    /// A file cannot be read or written, or is malformed.
    File(FormatError),
    /// The plan does not fix its objects, so it has no addresses.
    NotPlaced,
    /// Measured times do not come from a run of the plan.
    Measured(String),
    /// The process has too little memory.
    OutOfMemory(OutOfScratch),
}

impl Error {
    pub(crate) fn graph(work: &OwnedGraph, error: GraphError) -> Self {
        let message = Names::new(work, &[]).graph_error(&error);
        Self::Graph { error, message }
    }

    pub(crate) fn planning(names: &Names<'_>, error: PlanningError, budget_bytes: u64) -> Self {
        let message = names.planning_error(&error, budget_bytes);
        match error {
            PlanningError::Infeasible { min_feasible_bytes, op }
                if min_feasible_bytes > budget_bytes =>
            {
                Self::Infeasible { budget_bytes, min_feasible_bytes, op, message }
            }
            PlanningError::Scratch(error) => Self::OutOfMemory(error),
            error => Self::Planning { error, message },
        }
    }

    pub(crate) fn invalid(names: &Names<'_>, error: VerifyError) -> Self {
        match error {
            VerifyError::Plan(PlanError::Scratch(error)) => Self::OutOfMemory(error),
            error => Self::Invalid { error, message: names.verify_error(&error) },
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Graph { message, .. }
            | Self::Infeasible { message, .. }
            | Self::Planning { message, .. }
            | Self::Invalid { message, .. }
            | Self::States(message)
            | Self::Certificate(message)
            | Self::Measured(message) => f.write_str(message),
            Self::Switch(error) => error.fmt(f),
            Self::Budget(error) => error.fmt(f),
            Self::OtherGraph { planned, given } => {
                let (planned, given) = (Shown::name(planned), Shown::name(given));
                write!(f, "the plan is for the graph {planned:?}, but the graph is {given:?}")
            }
            Self::OtherMachine { planned, given } => {
                let (planned, given) = (Shown::name(planned), Shown::name(given));
                write!(f, "the plan is for the machine {planned:?}, but the machine is {given:?}")
            }
            Self::File(error) => error.fmt(f),
            Self::NotPlaced => {
                f.write_str("the plan does not fix its objects, so it has no addresses")
            }
            Self::OutOfMemory(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<BadBudget> for Error {
    fn from(error: BadBudget) -> Self {
        Self::Budget(error)
    }
}

impl From<FormatError> for Error {
    fn from(error: FormatError) -> Self {
        Self::File(error)
    }
}

impl From<OutOfScratch> for Error {
    fn from(error: OutOfScratch) -> Self {
        Self::OutOfMemory(error)
    }
}

impl From<SwitchError> for Error {
    fn from(error: SwitchError) -> Self {
        match error {
            SwitchError::Scratch(error) => Self::OutOfMemory(error),
            error => Self::Switch(error),
        }
    }
}

impl From<Infallible> for Error {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}
