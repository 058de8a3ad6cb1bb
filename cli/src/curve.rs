//! Plans for other budgets, for the curve in a report.

use crate::attempt::Attempt;
use crate::failure::Failure;
use crate::{output, progress};
use spillway::report::Budgeted;
use spillway::{Budget, Plan, Prepared};

/// The budgets of the curve if the user gives no budgets.
const BUDGETS: [&str; 6] = ["100%", "75%", "50%", "35%", "25%", "min"];
/// If the plan took longer than this, the report has a curve only if the user asks for one.
const MOST_PLANNING_NS: u64 = 5_000_000_000;

/// The budgets to plan for the curve.
pub(crate) fn budgets(wanted: Option<&[Budget]>, plan: &Plan) -> Vec<Budget> {
    if let Some(wanted) = wanted {
        return wanted.to_vec();
    }
    if plan.context().planning_ns.is_some_and(|ns| ns > MOST_PLANNING_NS) {
        output::note(
            "note: the report has no curve of period over budget, because planning took more than \
             5 s; --curve B,B,… draws the curve",
        );
        return Vec::new();
    }
    BUDGETS.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Plans for the budgets of the curve with the same choices. Leaves out budgets without a plan. A
/// plan for more memory is never slower than a plan for less.
pub(crate) fn points(prepared: &Prepared, budgets: &[Budget]) -> Result<Vec<Budgeted>, Failure> {
    let mut budgets: Vec<_> = budgets.iter().map(|budget| budget.bytes(prepared.needs())).collect();
    budgets.sort_unstable();
    budgets.dedup();
    let bar = progress::of_pieces("planning the curve", budgets.len());
    let (mut points, mut less) = (Vec::new(), None);
    for budget_bytes in budgets {
        let within = prepared.within(budget_bytes, less.as_ref());
        let within = within.map_err(|error| Failure::cannot(error.to_string()))?;
        if let Ok(plan) = Attempt::make(within)?.plan {
            points.push(Budgeted::new(budget_bytes, plan.figures().period_ns));
            less = Some(plan);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(points)
}
