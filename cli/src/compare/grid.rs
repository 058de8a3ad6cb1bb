//! The plans of every strategy under every budget.

use super::{Bound as Bounds, lp};
use crate::attempt::{self, Attempt};
use crate::failure::Failure;
use crate::figures::Figures;
use crate::progress;
use planner_core::bounds::BoundOrder;
use planner_core::planner::{Request, Strategy};
use serde::Serialize;
use spillway::figures::Needs;
use spillway::strategy::Planner;
use spillway::{Budget, Graph, OwnedMachine, Prepared, planning};

/// All plans of a comparison.
#[derive(Debug, Serialize)]
pub(super) struct Grid {
    pub(super) graph: String,
    pub(super) machine: String,
    pub(super) in_core_peak_bytes: u64,
    pub(super) compute_ns: u64,
    /// The period with enough memory for all tensors. `None` if times exceed 64 bits.
    pub(super) in_core_period_ns: Option<u64>,
    pub(super) budgets: Vec<Column>,
    pub(super) bounds: Vec<Bound>,
    /// All budgets of the first strategy, then all budgets of the next, and so on.
    pub(super) rows: Vec<Cell>,
}

/// One of the budgets.
#[derive(Debug, Serialize)]
pub(super) struct Column {
    pub(super) budget: String,
    pub(super) budget_bytes: u64,
}

/// Periods that no plan can beat if it keeps the bound's order and runs each op once.
#[derive(Debug, Serialize)]
pub(super) struct Bound {
    pub(super) name: &'static str,
    /// One period per budget. `None` if the budget has no plan.
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
    /// Makes and proves all plans.
    pub(super) fn plan(
        graph: &Graph,
        machine: &OwnedMachine,
        strategies: &[Prepared],
        budgets: &[Budget],
        bound: Bounds,
    ) -> Result<Self, Failure> {
        let core = &graph.graph();
        let least = strategies.iter().filter_map(|prepared| prepared.needs().min_feasible_bytes);
        let needs = Needs::of(core, &machine.machine, least.min())
            .map_err(|error| Failure::cannot(error.to_string()))?;
        let column = |budget: &Budget| Column {
            budget: budget.to_string(),
            budget_bytes: budget.bytes(&needs),
        };
        let budgets: Vec<_> = budgets.iter().map(column).collect();
        let mut bounds = vec![cheap_bound(core, machine, &budgets)?];
        let mut lp_bounds_ns = vec![None; budgets.len()];
        if bound == Bounds::Lp {
            lp_bounds_ns = lp::period_ns(core, machine, &budgets)?;
            let period_ns = lp_bounds_ns.clone();
            bounds.push(Bound { name: "lp bound, given order", period_ns });
        }
        Ok(Self {
            graph: graph.name().to_owned(),
            machine: machine.name.clone(),
            in_core_peak_bytes: needs.in_core_peak_bytes,
            compute_ns: core.compute_ns(),
            in_core_period_ns: in_core_period_ns(core, machine),
            bounds,
            rows: cells(strategies, &budgets, &lp_bounds_ns)?,
            budgets,
        })
    }

    /// The strategies, each with its cells.
    pub(super) fn strategies(&self) -> impl Iterator<Item = (&str, &[Cell])> {
        let lines = self.rows.chunks(self.budgets.len().max(1));
        lines.filter_map(|cells| Some((cells.first()?.figures.context.strategy.as_str(), cells)))
    }
}

/// The period with all the memory that an in-core plan can use.
fn in_core_period_ns(graph: &planner_core::Graph<'_>, machine: &OwnedMachine) -> Option<u64> {
    let (device_bytes, host_bytes) = (u64::MAX, u64::MAX);
    let machine = machine.machine.with_device_bytes(device_bytes).with_host_bytes(host_bytes);
    let mut request = Request { graph, machine: &machine, budget_bytes: 0 };
    let (least_bytes, _) = planning::min_feasible(&request, Strategy::InCore).ok()?;
    // With twice the memory, the next iteration's inputs fit beside all other tensors.
    request.budget_bytes = least_bytes.saturating_mul(2);
    let plan = planning::plan(&request, Strategy::InCore).ok()?;
    Some(plan.predicted.period_ns)
}

fn cheap_bound(
    graph: &planner_core::Graph<'_>,
    machine: &OwnedMachine,
    budgets: &[Column],
) -> Result<Bound, Failure> {
    let bound_ns = |column: &Column| {
        planning::lower_bound_ns(graph, &machine.machine, column.budget_bytes, BoundOrder::Any)
            .map(Some)
            .map_err(|error| Failure::cannot(error.to_string()))
    };
    let period_ns = budgets.iter().map(bound_ns).collect::<Result<_, _>>()?;
    Ok(Bound { name: "bound, any order", period_ns })
}

fn cells(
    strategies: &[Prepared],
    budgets: &[Column],
    lp_bounds_ns: &[Option<u64>],
) -> Result<Vec<Cell>, Failure> {
    let bar = progress::of_pieces("planning", strategies.len() * budgets.len());
    let mut ascending: Vec<_> = (0..budgets.len()).collect();
    ascending.sort_by_key(|&at| budgets[at].budget_bytes);
    let mut all = Vec::new();
    for prepared in strategies {
        let mut cells = vec![None; budgets.len()];
        let mut less = None;
        for &at in &ascending {
            let column = &budgets[at];
            bar.set_message(format!("{} at {}", prepared.strategy().name(), column.budget));
            let within = prepared.within(column.budget_bytes, less.as_ref());
            let within = within.map_err(|error| Failure::cannot(error.to_string()))?;
            let Attempt { figures, plan } = Attempt::make(within)?;
            let reason = plan.as_ref().err().map(attempt::reason);
            cells[at] = Some(Cell { figures: figures.with_lp_bound(lp_bounds_ns[at]), reason });
            less = plan.ok().or(less);
            bar.inc(1);
        }
        all.extend(cells.into_iter().flatten());
    }
    bar.finish_and_clear();
    Ok(all)
}
