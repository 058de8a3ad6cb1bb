//! Errors of planning.

use crate::graph::{GraphError, OpId};
use crate::plan::PlanError;
use crate::scratch::{BufferTooShort, OutOfScratch};
use core::fmt;

/// Why there is no plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanningError {
    /// The budget is too small for this strategy.
    Infeasible {
        /// The smallest feasible budget.
        min_feasible_bytes: u64,
        /// The op that needs it.
        op: OpId,
    },
    /// The strategy plans only chains of layers.
    NoChain {
        /// An op that is not the forward or backward op of a layer.
        op: OpId,
    },
    /// The budget exceeds the device's memory.
    BudgetAboveDevice {
        /// The requested budget.
        budget_bytes: u64,
        /// The machine's memory.
        device_bytes: u64,
    },
    /// The residents of the device cannot leave in time for the next op.
    Stuck,
    /// The strategy runs ops on the host, but no op has a time there.
    NothingOnHost,
    /// A requested order of the ops is not a valid graph.
    Order(GraphError),
    /// An output buffer is too short. For steps, the error has the length of the shortest list that
    /// does not fit.
    BufferTooShort(BufferTooShort),
    /// The working memory is too small.
    Scratch(OutOfScratch),
    /// The plan needs more than the machine has, or a size or time exceeds 64 bits.
    Plan(PlanError),
}

impl PlanningError {
    /// The error to report if two lists fail: of two errors of the same kind, the error that asks for
    /// less memory. A list that has too many steps, or does not fit the host, fits the budget; and a
    /// longer buffer for steps may be had.
    pub(super) fn with_least_need(self, other: Option<Self>) -> Self {
        let Some(other) = other else { return self };
        let reports_other = match (self, other) {
            (
                Self::Infeasible { min_feasible_bytes: one, .. },
                Self::Infeasible { min_feasible_bytes: least, .. },
            )
            | (
                Self::Plan(PlanError::HostMemory { needed_bytes: one, .. }),
                Self::Plan(PlanError::HostMemory { needed_bytes: least, .. }),
            ) => least <= one,
            (Self::Infeasible { .. }, _)
            | (Self::Plan(PlanError::HostMemory { .. }), Self::BufferTooShort(_)) => true,
            _ => false,
        };
        if reports_other { other } else { self }
    }

    /// Whether the strategy refuses this work whatever the budget.
    #[must_use]
    pub const fn is_refusal(&self) -> bool {
        matches!(self, Self::NoChain { .. } | Self::NothingOnHost)
    }

    /// Whether another list of launches for the same work may need less.
    pub(super) const fn is_of_one_list(&self) -> bool {
        matches!(
            self,
            Self::Infeasible { .. }
                | Self::BufferTooShort(_)
                | Self::Plan(PlanError::HostMemory { .. })
        )
    }
}

impl From<OutOfScratch> for PlanningError {
    fn from(error: OutOfScratch) -> Self {
        Self::Scratch(error)
    }
}

impl From<BufferTooShort> for PlanningError {
    fn from(error: BufferTooShort) -> Self {
        Self::BufferTooShort(error)
    }
}

impl From<PlanError> for PlanningError {
    fn from(error: PlanError) -> Self {
        match error {
            PlanError::Scratch(error) => Self::Scratch(error),
            PlanError::BufferTooShort(error) => Self::BufferTooShort(error),
            other => Self::Plan(other),
        }
    }
}

impl fmt::Display for PlanningError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infeasible { min_feasible_bytes, op } => {
                write!(f, "the budget is too small: {op} needs at least {min_feasible_bytes} bytes")
            }
            Self::NoChain { op } => write!(
                f,
                "the strategy plans chains of layers only, and {op} is not the forward or \
                 backward op of one"
            ),
            Self::BudgetAboveDevice { budget_bytes, device_bytes } => write!(
                f,
                "the budget of {budget_bytes} bytes is more than the device's {device_bytes}"
            ),
            Self::Stuck => {
                write!(f, "the residents of the device cannot leave in time for the next op")
            }
            Self::NothingOnHost => {
                write!(f, "the strategy runs ops on the host, but no op has a time there (host_ns)")
            }
            Self::Order(error) => write!(f, "the order of the ops is not valid: {error}"),
            Self::BufferTooShort(error) => error.fmt(f),
            Self::Scratch(error) => error.fmt(f),
            Self::Plan(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PlanningError {}
