//! Searches as planners. With fixed objects, a planner searches once, then plans again in smaller budgets
//! with the result of the search.

use super::{genetic, joint};
use crate::placing;
use crate::planning;
use crate::strategy::{Limit, Planned, Planner, Watch};
use crate::swapping::{self, Swap};
use planner_core::OpId;
use planner_core::bounds::BoundOrder;
use planner_core::planner::{PlanningError, Repeats, Request};
use workloads::OwnedPlan;

impl Planner for joint::JointSettings {
    fn name(&self) -> &'static str {
        "joint"
    }

    fn min_feasible(&self, request: &Request<'_>) -> Result<(u64, OpId), PlanningError> {
        planning::min_feasible(request, joint::judge())
    }

    fn plan(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<OwnedPlan, PlanningError> {
        Ok(self.search(request, watch)?.plan)
    }

    fn plan_placed(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlanningError> {
        let again = |request: &Request<'_>, found: &_| joint::plan_again(request, self, found);
        placed(request, |request| self.search(request, watch), |found| &found.plan, again)
    }

    fn limit(&self) -> Option<Limit> {
        Some(self.limit)
    }
}

impl joint::JointSettings {
    /// Searches until the limit, or until the plan reaches a bound.
    fn search(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<joint::JointFound, PlanningError> {
        let limit = Limit { bound_ns: bound_ns(request, self.repeats), ..self.limit };
        joint::search(request, &Self { limit, ..*self }, watch)
    }
}

impl Planner for genetic::Settings {
    fn name(&self) -> &'static str {
        "joint"
    }

    fn min_feasible(&self, request: &Request<'_>) -> Result<(u64, OpId), PlanningError> {
        Ok(swapping::min_feasible(request, &Swap::default())?)
    }

    fn plan(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<OwnedPlan, PlanningError> {
        Ok(self.search(request, watch)?.plan)
    }

    fn plan_placed(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<Planned, PlanningError> {
        let again = |request: &Request<'_>, found: &_| genetic::plan_again(request, self, found);
        placed(request, |request| self.search(request, watch), |found| &found.plan, again)
    }

    fn limit(&self) -> Option<Limit> {
        Some(self.limit)
    }
}

impl genetic::Settings {
    /// Searches until the limit, or until the plan reaches a bound.
    fn search(
        &self,
        request: &Request<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<genetic::Found, PlanningError> {
        let limit = Limit { bound_ns: bound_ns(request, Repeats::Never), ..self.limit };
        genetic::search(request, &Self { limit, ..*self }, watch)
    }
}

/// Searches once. For the smaller budgets that fixed objects need, calls `again` with the result of the
/// search.
fn placed<F>(
    request: &Request<'_>,
    mut search: impl FnMut(&Request<'_>) -> Result<F, PlanningError>,
    plan_of: fn(&F) -> &OwnedPlan,
    again: impl Fn(&Request<'_>, &F) -> Result<OwnedPlan, PlanningError>,
) -> Result<Planned, PlanningError> {
    let mut found: Option<F> = None;
    placing::plan_by(request, |request| match &found {
        Some(found) => again(request, found),
        None => Ok(plan_of(found.insert(search(request)?)).clone()),
    })
}

/// Returns a lower bound on the period in any order.
fn bound_ns(request: &Request<'_>, repeats: Repeats) -> u64 {
    let Request { graph, machine, budget_bytes } = *request;
    let bound_ns = match repeats {
        Repeats::Never => planning::lower_bound_ns,
        Repeats::Allowed => planning::lower_bound_repeats_ns,
    };
    bound_ns(graph, machine, budget_bytes, BoundOrder::Any).unwrap_or(0)
}
