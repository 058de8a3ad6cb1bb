//! What every strategy makes of every budget.

use super::{Bound as Bounds, lp};
use crate::failure::Failure;
use crate::figures::{self, Figures};
use crate::names;
use crate::plan::{self, Draft, MemoryOptions};
use crate::proof;
use crate::strategy::{self, Chosen};
use crate::work::Setting;
use indicatif::{ProgressBar, ProgressStyle};
use planner_core::bounds::BoundOrder;
use planner_core::planner::{Request, Strategy};
use serde::Serialize;
use spillway::Budget;
use spillway::figures::Needs;
use spillway::planning;

/// All plans of a comparison.
#[derive(Debug, Serialize)]
pub(super) struct Grid {
    pub(super) graph: String,
    pub(super) machine: String,
    pub(super) in_core_peak_bytes: u64,
    pub(super) compute_ns: u64,
    /// With memory enough for everything; not known where times exceed 64 bits.
    pub(super) in_core_period_ns: Option<u64>,
    pub(super) budgets: Vec<Column>,
    pub(super) bounds: Vec<Bound>,
    /// Budget by budget of one strategy after the other.
    pub(super) rows: Vec<Cell>,
}

/// What is asked of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) bound: Bounds,
    /// Whether physical objects are to be fixed.
    pub(super) placed: bool,
}

/// One of the budgets.
#[derive(Debug, Serialize)]
pub(super) struct Column {
    pub(super) budget: String,
    pub(super) budget_bytes: u64,
}

/// Periods that no plan can beat that keeps to an order and runs each op once.
#[derive(Debug, Serialize)]
pub(super) struct Bound {
    pub(super) name: &'static str,
    /// One for each budget; none where there is no plan.
    pub(super) period_ns: Vec<Option<u64>>,
}

/// One strategy under one budget.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Cell {
    #[serde(flatten)]
    pub(super) figures: Figures,
    /// Why there is no plan.
    pub(super) reason: Option<String>,
}

impl Grid {
    /// Plans and proves them all.
    pub(super) fn plan(
        setting: Setting<'_>,
        entries: &[&strategy::Entry],
        budgets: &[Budget],
        wanted: Wanted,
    ) -> Result<Self, Failure> {
        let mut strategies = Vec::new();
        for entry in entries {
            let chosen = entry.with(&[])?;
            let needs = figures::needs(setting, Some(&chosen.method))?;
            strategies.push((chosen, needs));
        }
        let graph = proof::graph(setting.work).map_err(Failure::cannot)?;
        let least = strategies.iter().filter_map(|(_, needs)| needs.min_feasible_bytes);
        let mut needs = figures::needs(setting, None)?;
        needs.min_feasible_bytes = least.min();
        let column = |budget: &Budget| Column {
            budget: budget.to_string(),
            budget_bytes: budget.bytes(&needs),
        };
        let budgets: Vec<_> = budgets.iter().map(column).collect();
        let mut bounds = vec![cheap_bound(setting, &budgets)?];
        let mut lp_bounds_ns = vec![None; budgets.len()];
        if wanted.bound == Bounds::Lp {
            lp_bounds_ns = lp::period_ns(setting, &budgets)?;
            let period_ns = lp_bounds_ns.clone();
            bounds.push(Bound { name: "lp bound, given order", period_ns });
        }
        Ok(Self {
            graph: setting.work.name.clone(),
            machine: setting.machine.name.clone(),
            in_core_peak_bytes: needs.in_core_peak_bytes,
            compute_ns: graph.compute_ns(),
            in_core_period_ns: in_core_period_ns(setting),
            bounds,
            rows: cells(setting, &strategies, &budgets, &lp_bounds_ns, wanted.placed)?,
            budgets,
        })
    }

    /// The strategies, each with its cells.
    pub(super) fn strategies(&self) -> impl Iterator<Item = (&str, &[Cell])> {
        let lines = self.rows.chunks(self.budgets.len().max(1));
        lines.filter_map(|cells| Some((cells.first()?.figures.context.strategy.as_str(), cells)))
    }
}

/// The period with all the memory that in-core can use.
fn in_core_period_ns(setting: Setting<'_>) -> Option<u64> {
    let graph = proof::graph(setting.work).ok()?;
    let (device_bytes, host_bytes) = (u64::MAX, u64::MAX);
    let machine =
        setting.machine.machine.with_device_bytes(device_bytes).with_host_bytes(host_bytes);
    let mut request = Request { graph: &graph, machine: &machine, budget_bytes: 0 };
    let (least_bytes, _) = planning::min_feasible(&request, Strategy::InCore).ok()?;
    // The next iteration's inputs fit beside everything else.
    request.budget_bytes = least_bytes.saturating_mul(2);
    let plan = planning::plan(&request, Strategy::InCore).ok()?;
    Some(plan.predicted.period_ns)
}

fn cheap_bound(setting: Setting<'_>, budgets: &[Column]) -> Result<Bound, Failure> {
    let graph = proof::graph(setting.work).map_err(Failure::cannot)?;
    let machine = &setting.machine.machine;
    let bound_ns = |column: &Column| {
        planning::lower_bound_ns(&graph, machine, column.budget_bytes, BoundOrder::Any)
            .map(Some)
            .map_err(|error| Failure::cannot(error.to_string()))
    };
    let period_ns = budgets.iter().map(bound_ns).collect::<Result<_, _>>()?;
    Ok(Bound { name: "bound, any order", period_ns })
}

fn cells(
    setting: Setting<'_>,
    strategies: &[(Chosen, Needs)],
    budgets: &[Column],
    lp_bounds_ns: &[Option<u64>],
    placed: bool,
) -> Result<Vec<Cell>, Failure> {
    let bar = progress("planning", strategies.len() * budgets.len());
    let mut ascending: Vec<_> = (0..budgets.len()).collect();
    ascending.sort_by_key(|&at| budgets[at].budget_bytes);
    let mut all = Vec::new();
    for (chosen, needs) in strategies {
        let mut cells = vec![None; budgets.len()];
        let mut less = None;
        for &at in &ascending {
            let column = &budgets[at];
            bar.set_message(format!("{} at {}", chosen.name, column.budget));
            let memory =
                MemoryOptions { budget_bytes: column.budget_bytes, placed, less: less.as_ref() };
            let draft = plan::draft(setting, chosen, *needs, memory)?;
            cells[at] = Some(cell(setting, chosen, &draft, lp_bounds_ns[at])?);
            less = Some(draft).filter(|draft| draft.plan.is_ok()).or(less);
            bar.inc(1);
        }
        all.extend(cells.into_iter().flatten());
    }
    bar.finish_and_clear();
    Ok(all)
}

fn cell(
    setting: Setting<'_>,
    chosen: &Chosen,
    draft: &Draft,
    lp_bound_ns: Option<u64>,
) -> Result<Cell, Failure> {
    let figures = draft.figures.clone();
    match &draft.plan {
        Ok(plan) => {
            let defect = |reason: String| plan::defect(chosen.name, &reason);
            let schedule = proof::lower(setting, plan).map_err(defect)?;
            let proved = proof::prove(setting, plan, &schedule).map_err(defect)?;
            let figures = figures.with_plan(&proved).with_lp_bound(lp_bound_ns);
            Ok(Cell { figures, reason: None })
        }
        Err(error) => {
            let budget_bytes = figures.context.budget_bytes;
            let reason = names::planning_error(setting.work, error, budget_bytes);
            Ok(Cell { figures, reason: Some(reason) })
        }
    }
}

/// A progress bar for pieces of work.
pub(crate) fn progress(verb: &str, pieces: usize) -> ProgressBar {
    let bar = ProgressBar::new(pieces as u64);
    let style = format!("{verb} {{bar:40}} {{pos}}/{{len}} {{elapsed}} {{msg}}");
    // The template is a constant. Without it the bar only looks different.
    ProgressStyle::with_template(&style).map_or_else(|_| bar.clone(), |s| bar.clone().with_style(s))
}
