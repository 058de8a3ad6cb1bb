//! Compares plans with repeats, plans without repeats, activation checkpointing, and the bound for
//! plans with repeats. Writes a table in Markdown, and draws the curves.

mod curves;
#[path = "../comparison/record.rs"]
mod record;

use clap::Parser;
use planner_core::planner::{Auto, PlanningError, Repeats, Request, Strategy};
use planner_core::{Graph, Machine};
use record::Record;
use spillway::planning;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use workloads::machines::OwnedMachine;
use workloads::{OwnedGraph, format, machines};
use zoo::models;

/// A built-in model to plan in addition to the graph files.
const MODEL: &str = "resnet50:batch=64";

const fn auto(repeats: Repeats) -> Strategy {
    Strategy::Auto(Auto::new().with_repeats(repeats))
}

const ROWS: [(&str, Strategy); 4] = [
    ("auto, each op once", auto(Repeats::Never)),
    ("checkpoint", Strategy::Checkpoint),
    ("checkpoint-offload", Strategy::CheckpointOffload),
    ("**auto**", auto(Repeats::Allowed)),
];
const BOUND: &str = "*bound with repeats, given order*";

/// Compares plans with and without repeats.
#[derive(Parser, Debug)]
struct Arguments {
    /// Folder of graph files (.graph.json.gz), if there are any
    #[arg(long, default_value = "../shared/graphs")]
    folder: PathBuf,
    /// Only works whose names begin with one of these
    #[arg(long, value_delimiter = ',')]
    graphs: Vec<String>,
    /// A built-in machine
    #[arg(long, default_value = "v100-pcie3")]
    machine: String,
    /// Shares of the in-core need, in percent
    #[arg(long, value_delimiter = ',', default_value = "75,50,35,25")]
    budgets: Vec<u64>,
    /// File of known bounds; newly solved bounds are added
    #[arg(long, default_value = "docs/research/repeats-bounds.json")]
    bounds: PathBuf,
    /// Write the table to this file [default: standard output]
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Draw the periods over the budgets to this file, as an SVG image
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// The periods of each strategy relative to compute, one per budget. `None` if there is no plan, or
/// if the bound is not known.
struct Measured {
    work: String,
    rows: Vec<(&'static str, Vec<Option<f64>>)>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let machine = machines::builtin(&arguments.machine)
        .ok_or_else(|| format!("no machine {}", arguments.machine))?;
    let mut works = vec![models::generate(MODEL)?.with_name(MODEL)];
    works.extend(format::load_graphs(&arguments.folder)?.unwrap_or_default());
    let wanted = &arguments.graphs;
    works.retain(|work| {
        wanted.is_empty() || wanted.iter().any(|start| work.name.starts_with(start))
    });
    let mut record = Record::open(&arguments.bounds, solve)?;
    let measured: Result<Vec<_>, _> =
        works.iter().map(|work| measure(work, &machine, &arguments.budgets, &mut record)).collect();
    let measured = measured?;
    if let Some(path) = &arguments.plot {
        curves::draw(path, &arguments.budgets, &measured)?;
    }
    let text = table(&arguments.budgets, &measured)?;
    match &arguments.output {
        Some(path) => fs::write(path, text)?,
        None => print!("{text}"),
    }
    Ok(())
}

fn measure(
    work: &OwnedGraph,
    OwnedMachine { name, machine, .. }: &OwnedMachine,
    percent: &[u64],
    record: &mut Record,
) -> Result<Measured, Box<dyn Error>> {
    let graph = work.graph()?;
    let in_core_bytes = planning::in_core_peak_bytes(&graph, machine)?;
    let budgets = || percent.iter().map(|&percent| (percent, in_core_bytes / 100 * percent));
    let over = |period_ns: u64| period_ns as f64 / graph.compute_ns() as f64;
    let mut bounds = Vec::new();
    for (percent, budget_bytes) in budgets() {
        let solving = || eprintln!("{} on {name}, {percent} %: solving for the bound", work.name);
        bounds.push(record.bound_ns(work, machine, budget_bytes, solving)?.map(over));
    }
    let mut rows = Vec::new();
    for (title, strategy) in ROWS {
        let mut cells = Vec::new();
        for (percent, budget_bytes) in budgets() {
            eprintln!("{} on {name}, {percent} %: {title}", work.name);
            let request = Request { graph: &graph, machine, budget_bytes };
            cells.push(match planning::plan(&request, strategy) {
                Ok(plan) => Some(over(plan.predicted.period_ns)),
                Err(PlanningError::Infeasible { .. }) => None,
                Err(error) => return Err(error.into()),
            });
        }
        rows.push((title, cells));
    }
    rows.push((BOUND, bounds));
    Ok(Measured { work: work.name.clone(), rows })
}

fn table(budgets: &[u64], measured: &[Measured]) -> Result<String, std::fmt::Error> {
    let mut text = "| work | |".to_owned();
    for percent in budgets {
        write!(text, " {percent} % |")?;
    }
    writeln!(text, "\n|---|---|{}", "--:|".repeat(budgets.len()))?;
    for Measured { work, rows } in measured {
        for (at, (title, cells)) in rows.iter().enumerate() {
            let work = if at == 0 { format!("`{work}`") } else { String::new() };
            let cells: Vec<_> = cells
                .iter()
                .map(|cell| cell.map_or_else(|| "–".to_owned(), |over| format!("{over:.3}")))
                .collect();
            writeln!(text, "| {work} | {title} | {} |", cells.join(" | "))?;
        }
    }
    Ok(text)
}

/// The bound for plans with repeats in the given order.
#[cfg(feature = "highs")]
fn solve(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
) -> Result<Option<u64>, Box<dyn Error>> {
    match lp_bound::period_with_repeats_ns(graph, machine, budget_bytes) {
        Ok(bound) => Ok(Some(bound.period_ns)),
        Err(lp_bound::Error::Infeasible { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(feature = "highs"))]
fn solve(_: &Graph<'_>, _: &Machine, _: u64) -> Result<Option<u64>, Box<dyn Error>> {
    Ok(None)
}
