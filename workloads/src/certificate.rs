//! A certificate of a bound, with the names of its graph and machine.

use planner_core::OpId;
use planner_core::bounds::BoundOrder;
use planner_core::bounds::priced::{Price, Prices};

/// Prices that prove a bound on the period, with the names of the graph and the machine, as in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OwnedCertificate {
    /// Name of the graph.
    pub graph: String,
    /// Name of the machine.
    pub machine: String,
    /// Device memory of the plans.
    pub budget_bytes: u64,
    /// The order in which the plans run the ops.
    pub order: BoundOrder,
    /// Whether the plans may launch repeatable ops again.
    pub repeats: bool,
    /// The claimed bound: no such plan has a shorter period.
    pub bound_ns: u64,
    /// Ops that all such plans run in this order.
    pub marks: Vec<OpId>,
    /// The prices of each interval: from the start of the iteration, and from each mark on.
    pub intervals: Vec<Price>,
}

impl OwnedCertificate {
    /// Creates a certificate for plans with this budget and these orders of the ops, with or without repeats. It
    /// has no prices and claims nothing.
    pub fn new(
        graph: impl Into<String>,
        machine: impl Into<String>,
        budget_bytes: u64,
        order: BoundOrder,
        repeats: bool,
    ) -> Self {
        let (graph, machine, bound_ns) = (graph.into(), machine.into(), 0);
        let (marks, intervals) = (Vec::new(), Vec::new());
        Self { graph, machine, budget_bytes, order, repeats, bound_ns, marks, intervals }
    }

    /// The prices for the core.
    #[must_use]
    pub fn prices(&self) -> Prices<'_> {
        let Self { order, repeats, marks, intervals, .. } = self;
        Prices { order: *order, repeats: *repeats, marks, intervals }
    }
}
