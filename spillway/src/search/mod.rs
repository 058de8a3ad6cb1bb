//! Searches for a better order of the ops, and for the published planner also for a better
//! division of memory. Searches need threads and seconds, which `planner-core` does not.
//!
//! [`genetic`] is the search of SwapAdvisor (C. Huang, G. Jin, J. Li: SwapAdvisor: push deep learning beyond
//! the GPU memory limit via smart swapping, ASPLOS 2020), with its swap planner as the judge. [`joint`]
//! searches only orders, with `auto` as the judge.

pub mod genetic;
pub mod joint;
mod judge;
pub mod order;
mod planners;
pub mod pool;
mod settings;
mod starts;
mod team;

pub use crate::strategy::{Limit, Progress, Watch};

use planner_core::planner::{PlanningError, Request, Strategy};
use workloads::OwnedPlan;

/// Plans with the ops in another order. `order` has the id of the given op at each position, and the plan has
/// the given ids.
///
/// # Errors
/// The errors of the strategy; [`PlanningError::Order`] if the order breaks a dependency.
pub fn plan_in(
    request: &Request<'_>,
    order: &[u32],
    strategy: Strategy,
) -> Result<OwnedPlan, PlanningError> {
    judge::Judge::default().order_plan(request, order, strategy)
}
