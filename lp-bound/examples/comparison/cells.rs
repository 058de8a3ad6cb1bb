//! The plans of all strategies for one work under one budget.

use crate::Budget;
use crate::record::Record;
use planner_core::planner::{Auto, Lms, Order, PlanningError, Repeats, Request, Strategy, Window};
use planner_core::{Graph, Machine};
use serde::Serialize;
use spillway::planning;
use std::error::Error;
use std::time::Instant;
use workloads::machines::OwnedMachine;
use workloads::{OwnedGraph, OwnedPlan};

/// A strategy, and whether the table shows its distance from the bound.
pub(crate) struct Column {
    pub(crate) title: &'static str,
    strategy: Strategy,
    pub(crate) gap: bool,
}

pub(crate) const COLUMNS: [Column; 7] = [
    Column { title: "on-demand", strategy: Strategy::OnDemand, gap: false },
    Column { title: "fit", strategy: Strategy::Fit, gap: false },
    Column { title: "vdnn", strategy: Strategy::Vdnn, gap: false },
    Column { title: "lms", strategy: Strategy::Lms(LMS), gap: false },
    Column { title: "window", strategy: Strategy::Window(WINDOW), gap: false },
    Column { title: "auto, given order", strategy: Strategy::Auto(IN_ORDER), gap: true },
    Column { title: "auto", strategy: Strategy::Auto(AUTO), gap: false },
];
const LMS: Lms = Lms::new();
const WINDOW: Window = Window::new();
const IN_ORDER: Auto = Auto::new().with_order(Order::Given).with_repeats(Repeats::Never);
const AUTO: Auto = Auto::new().with_repeats(Repeats::Never);

/// One work under one budget.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    pub(crate) graph: String,
    pub(crate) machine: String,
    pub(crate) link_bytes_per_s: u64,
    pub(crate) ops: usize,
    pub(crate) compute_ns: u64,
    pub(crate) in_core_peak_bytes: u64,
    /// The largest size of an op's operands and workspace.
    pub(crate) largest_op_bytes: u64,
    /// `None` means the least budget that suffices.
    pub(crate) percent: Option<u64>,
    pub(crate) budget_bytes: u64,
    /// The bound in the given order.
    pub(crate) lp_bound_ns: u64,
    /// One plan for each of `COLUMNS`. `None` if there is no plan.
    pub(crate) plans: Vec<Option<Planned>>,
}

/// One plan.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Planned {
    pub(crate) strategy: &'static str,
    pub(crate) period_ns: u64,
    pub(crate) planning_ns: u64,
}

/// The cells of one work on one machine, in the order of the budgets. Leaves out budgets that are
/// too small for every plan.
pub(crate) fn of(
    work: &OwnedGraph,
    machine: &OwnedMachine,
    budgets: &[Budget],
    record: &mut Record,
) -> Result<Vec<Cell>, Box<dyn Error>> {
    let OwnedMachine { name, machine, .. } = machine;
    let graph = work.graph()?;
    let in_core_peak_bytes = planning::in_core_peak_bytes(&graph, machine)?;
    let request = Request { graph: &graph, machine, budget_bytes: 0 };
    let (least_bytes, _) = planning::min_feasible(&request, Strategy::Auto(AUTO))?;
    let mut cells = Vec::new();
    for &budget in budgets {
        let (percent, budget_bytes) = match budget {
            Budget::Min => (None, least_bytes),
            Budget::Percent(percent) => {
                let bytes = u128::from(in_core_peak_bytes) * u128::from(percent) / 100;
                (Some(percent), u64::try_from(bytes)?)
            }
        };
        if budget_bytes < least_bytes {
            continue;
        }
        let label = percent.map_or_else(|| "min".to_owned(), |percent| format!("{percent} %"));
        let unknown = "a bound is not on record; with `--features highs` it is solved";
        let solving = || eprintln!("{} on {name}, {label}: solving for the bound", work.name);
        cells.push(Cell {
            graph: work.name.clone(),
            machine: name.clone(),
            link_bytes_per_s: machine.h2d_bytes_per_s,
            ops: graph.ops().len(),
            compute_ns: graph.compute_ns(),
            in_core_peak_bytes,
            largest_op_bytes: largest_op_bytes(&graph),
            percent,
            budget_bytes,
            lp_bound_ns: record.bound_ns(work, machine, budget_bytes, solving)?.ok_or(unknown)?,
            plans: Vec::new(),
        });
    }
    eprintln!("{} on {name}: planning", work.name);
    for column in &COLUMNS {
        plan(&graph, machine, column, &mut cells)?;
    }
    Ok(cells)
}

fn largest_op_bytes(graph: &Graph<'_>) -> u64 {
    let op_bytes = |op| {
        let operands = graph.touches(op).map(|tensor| graph.tensor(tensor).bytes);
        graph.op(op).workspace_bytes + operands.sum::<u64>()
    };
    graph.op_ids().map(op_bytes).max().unwrap_or(0)
}

/// Adds one strategy's plans to all cells, from the smallest budget to the largest.
fn plan(
    graph: &Graph<'_>,
    machine: &Machine,
    column: &Column,
    cells: &mut [Cell],
) -> Result<(), Box<dyn Error>> {
    let mut ascending: Vec<_> = cells.iter_mut().collect();
    ascending.sort_by_key(|cell| cell.budget_bytes);
    let mut less: Option<OwnedPlan> = None;
    for cell in ascending {
        let request = Request { graph, machine, budget_bytes: cell.budget_bytes };
        let started = Instant::now();
        let planned = planning::plan_with_more(&request, column.strategy, less.as_ref());
        let planning_ns = u64::try_from(started.elapsed().as_nanos())?;
        let planned = match planned {
            Ok(plan) => Some(plan),
            Err(PlanningError::Infeasible { .. } | PlanningError::BudgetAboveDevice { .. }) => None,
            Err(error) => return Err(error.into()),
        };
        if let Some(plan) = &planned {
            let schedule = planning::schedule(graph, machine, &plan.plan())?;
            planning::prove(graph, machine, &plan.plan(), &schedule.schedule())?;
            planning::check_prediction(graph, machine, &plan.plan(), &schedule.schedule())?;
        }
        cell.plans.push(planned.as_ref().map(|plan| Planned {
            strategy: column.title,
            period_ns: plan.predicted.period_ns,
            planning_ns,
        }));
        less = planned.or(less);
    }
    Ok(())
}
