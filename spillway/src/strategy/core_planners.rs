//! The strategies of the core as planners.

use super::{Planned, Planner, Watch};
use crate::{placing, planning};
use planner_core::OpId;
use planner_core::planner::{PlanningError, Request, Strategy};
use workloads::OwnedPlan;

impl Planner for Strategy {
    fn name(&self) -> &'static str {
        Self::name(*self)
    }

    fn min_feasible(&self, request: &Request<'_>) -> Result<(u64, OpId), PlanningError> {
        planning::min_feasible(request, *self)
    }

    fn plan(&self, request: &Request<'_>, _: &mut Watch<'_>) -> Result<OwnedPlan, PlanningError> {
        planning::plan(request, *self)
    }

    fn plan_placed(
        &self,
        request: &Request<'_>,
        _: &mut Watch<'_>,
    ) -> Result<Planned, PlanningError> {
        placing::plan(request, *self)
    }

    fn cycle_ns(&self, request: &Request<'_>) -> Option<u64> {
        planning::cycle_ns(request, *self).ok().flatten()
    }
}
