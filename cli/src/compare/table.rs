//! A comparison as a table.

use super::grid::{Cell, Grid};
use spillway::units::{bytes, ratio, time};
use std::fmt::Write;
use workloads::Shown;

/// The table, with a row per strategy and a column per budget.
pub(super) fn render(grid: &Grid) -> String {
    let Grid { graph, machine, in_core_peak_bytes, compute_ns, .. } = grid;
    let mut text = format!(
        "{}\n  on {}; needs {} in-core; {} of compute an iteration\n\n  \
         Period, relative to compute alone\n\n",
        Shown::name(graph),
        Shown::name(machine),
        bytes(*in_core_peak_bytes),
        time(*compute_ns)
    );
    let lines = lines(grid);
    let columns = lines.first().map_or(0, Vec::len);
    let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..columns).map(width).collect();
    for line in &lines {
        let mut row = String::new();
        for (at, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            // Writing to a string does not fail.
            let _ = match at {
                0 => write!(row, "  {cell:<width$}"),
                _ => write!(row, "   {cell:>width$}"),
            };
        }
        let _ = writeln!(text, "{}", row.trim_end());
    }
    text + "\n  Bounds are for plans that run each op once.\n"
}

/// The cells of the table, line by line.
fn lines(grid: &Grid) -> Vec<Vec<String>> {
    let line = |head: &str, cells: Vec<String>| {
        let head = std::iter::once(head.to_owned());
        head.chain(cells).collect::<Vec<_>>()
    };
    let columns = grid.budgets.iter();
    let mut lines = vec![
        line("budget", columns.clone().map(|column| column.budget.clone()).collect()),
        line("", columns.map(|column| bytes(column.budget_bytes)).collect()),
    ];
    for (name, cells) in grid.strategies() {
        lines.push(line(name, cells.iter().map(shown).collect()));
    }
    for bound in &grid.bounds {
        let cells = bound
            .period_ns
            .iter()
            .map(|&ns| ns.map_or_else(|| "no plan".to_owned(), |ns| relative(ns, grid.compute_ns)));
        lines.push(line(bound.name, cells.collect()));
    }
    lines
}

/// The period, or why there is no plan.
fn shown(cell: &Cell) -> String {
    let figures = &cell.figures;
    let context = &figures.context;
    match (figures.period_ns(), context.min_feasible_bytes) {
        (Some(period_ns), _) => relative(period_ns, context.compute_ns),
        (None, Some(least_bytes)) if least_bytes > context.budget_bytes => {
            format!("needs {}", bytes(least_bytes))
        }
        // The budget exceeds the device, or host memory is too small. The JSON object says which.
        _ => "cannot".to_owned(),
    }
}

fn relative(period_ns: u64, compute_ns: u64) -> String {
    ratio(period_ns, compute_ns).map_or_else(|| time(period_ns), |ratio| format!("{ratio:.3}"))
}
