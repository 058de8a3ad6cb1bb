//! Plans for other budgets, for the curve in a report.

use crate::compare;
use crate::failure::Failure;
use crate::figures;
use crate::output;
use crate::plan::{self, Choices, Draft, MemoryOptions};
use crate::proof;
use crate::work::Setting;
use spillway::report::Budgeted;
use spillway::{Budget, Plan};

/// What the curve shows unless budgets are given.
const BUDGETS: [&str; 6] = ["100%", "75%", "50%", "35%", "25%", "min"];
/// A plan that takes longer than this is not made for other budgets unless that is asked for.
const MOST_PLANNING_NS: u64 = 5_000_000_000;

/// The budgets of the curve.
pub(crate) fn budgets(wanted: Option<&[Budget]>, plan: &Plan) -> Vec<Budget> {
    if let Some(wanted) = wanted {
        return wanted.to_vec();
    }
    if plan.context().planning_ns.is_some_and(|ns| ns > MOST_PLANNING_NS) {
        output::note(
            "note: the report has no curve of other budgets, since planning takes long; \
             --curve B,B,… draws one",
        );
        return Vec::new();
    }
    BUDGETS.iter().filter_map(|text| text.parse().ok()).collect()
}

/// Plans for other budgets as for the one that was chosen. Budgets without a plan are left out, and
/// more memory never makes a plan slower.
pub(crate) fn points(
    setting: Setting<'_>,
    choices: &Choices,
    budgets: &[Budget],
) -> Result<Vec<Budgeted>, Failure> {
    let chosen = choices.strategy.with(&choices.settings)?;
    let needs = figures::needs(setting, Some(&chosen.method))?;
    let mut budgets: Vec<_> = budgets.iter().map(|budget| budget.bytes(&needs)).collect();
    budgets.sort_unstable();
    budgets.dedup();
    let bar = compare::progress("planning the curve", budgets.len());
    let (mut points, mut less) = (Vec::new(), None);
    for budget_bytes in budgets {
        let placed = !choices.no_placements;
        let memory = MemoryOptions { budget_bytes, placed, less: less.as_ref() };
        let draft: Draft = plan::draft(setting, &chosen, needs, memory)?;
        if let Ok(plan) = &draft.plan {
            let defect = |reason: String| plan::defect(chosen.name, &reason);
            let schedule = proof::lower(setting, plan).map_err(defect)?;
            proof::prove(setting, plan, &schedule).map_err(defect)?;
            points.push(Budgeted { budget_bytes, period_ns: plan.predicted.period_ns });
            less = Some(draft);
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(points)
}
