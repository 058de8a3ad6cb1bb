//! The checks for every planner.

use crate::ledger::judge;
use planner_core::planner::{PlanningError, Request};
use spillway::planning;
use workloads::OwnedPlan;

/// Checks one planner on one request. It must find a plan exactly if the budget is at least the
/// smallest budget that it names, and plan the same way twice. The ledger must find the plan valid
/// and exact, and the verifier must prove it safe. Returns the plan.
///
/// # Errors
/// The error, in a sentence.
pub fn check(
    request: &Request<'_>,
    min_feasible_bytes: u64,
    planner: impl Fn(&Request<'_>) -> Result<OwnedPlan, PlanningError>,
) -> Result<Option<OwnedPlan>, String> {
    let made = planner(request);
    if made != planner(request) {
        return Err("two runs plan the same request differently".into());
    }
    let feasible = request.budget_bytes >= min_feasible_bytes;
    let plan = match made {
        Ok(plan) if feasible => plan,
        Ok(_) => return Err(format!("it plans below its own minimum of {min_feasible_bytes}")),
        Err(PlanningError::Infeasible { min_feasible_bytes: named, .. }) if !feasible => {
            let same = named == min_feasible_bytes;
            return if same {
                Ok(None)
            } else {
                Err(format!("it names {named} bytes as its minimum"))
            };
        }
        Err(error) => return Err(error.to_string()),
    };
    let Request { graph, machine, .. } = *request;
    judge(graph, machine, &plan.plan()).map_err(|violation| violation.to_string())?;
    let schedule =
        planning::schedule(graph, machine, &plan.plan()).map_err(|error| error.to_string())?;
    planning::prove(graph, machine, &plan.plan(), &schedule.schedule())
        .map_err(|error| error.to_string())?;
    Ok(Some(plan))
}
