//! A certificate of a bound that knows what it is for.

use planner_core::OpId;
use planner_core::bounds::BoundOrder;
use planner_core::bounds::priced::{Price, Prices};

/// Prices that prove a bound on the period, with the names of graph and machine, as files hold them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedCertificate {
    /// Name of the graph.
    pub graph: String,
    /// Name of the machine.
    pub machine: String,
    /// Device memory of the plans.
    pub budget_bytes: u64,
    /// In which order the plans run the ops.
    pub order: BoundOrder,
    /// Whether they may launch repeatable ops again.
    pub repeats: bool,
    /// The claim: no such plan has a shorter period.
    pub bound_ns: u64,
    /// Ops that all these plans run in this order.
    pub marks: Vec<OpId>,
    /// Prices from the start of the iteration, and from each mark on.
    pub intervals: Vec<Price>,
}

impl OwnedCertificate {
    /// The prices as the core takes them.
    #[must_use]
    pub fn prices(&self) -> Prices<'_> {
        let Self { order, repeats, marks, intervals, .. } = self;
        Prices { order: *order, repeats: *repeats, marks, intervals }
    }
}
