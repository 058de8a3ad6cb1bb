//! What every planner is held to.

use crate::ledger::judge;
use planner_core::planner::{PlanningError, Request};
use spillway::planning;
use workloads::OwnedPlan;

/// Checks one planner on one request: it finds a plan exactly when the budget is at least
/// the smallest that it names, plans the same way twice, and the plan is valid and exact in
/// the eyes of the ledger and proved safe by the verifier. Returns the plan.
///
/// # Errors
/// What is wrong, in a sentence.
pub fn check(
    request: &Request<'_>,
    min_feasible_bytes: u64,
    planner: impl Fn(&Request<'_>) -> Result<OwnedPlan, PlanningError>,
) -> Result<Option<OwnedPlan>, String> {
    let made = planner(request);
    if made != planner(request) {
        return Err("the same request is planned in two ways".into());
    }
    let feasible = request.budget_bytes >= min_feasible_bytes;
    let plan = match made {
        Ok(plan) if feasible => plan,
        Ok(_) => return Err(format!("plans below its own minimum of {min_feasible_bytes}")),
        Err(PlanningError::Infeasible { min_feasible_bytes: named, .. }) if !feasible => {
            let same = named == min_feasible_bytes;
            return if same { Ok(None) } else { Err(format!("names {named} as its minimum")) };
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
