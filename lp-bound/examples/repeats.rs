//! Compares plans that launch ops again with those that do not, with activation checkpointing, and
//! with the bound for plans with repeats, and writes a table in Markdown. Without the feature `highs` the bound is left
//! out.

use clap::Parser;
use planner_core::planner::{Auto, Order, PlanningError, Repeats, Request, Strategy};
use planner_core::{Graph, Machine};
use spillway::planning;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use workloads::{OwnedGraph, format, machines, models};

/// A built-in model to plan in addition to the graph files.
const MODEL: &str = "resnet50:batch=64";

const fn auto(repeats: Repeats) -> Strategy {
    Strategy::Auto(Auto { effort: None, order: Order::Free, repeats })
}

const ROWS: [(&str, Strategy); 4] = [
    ("auto, each op once", auto(Repeats::Never)),
    ("checkpoint", Strategy::Checkpoint),
    ("checkpoint-offload", Strategy::CheckpointOffload),
    ("**auto**", auto(Repeats::Allowed)),
];

/// Compares plans with and without repeats.
#[derive(Parser, Debug)]
struct Arguments {
    /// Folder of graph files (.graph.json.gz); there may be none
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
    /// Solve the linear program only for budgets up to this share, in percent; 0 for none
    #[arg(long, default_value_t = 50)]
    bounds_up_to: u64,
    /// Write the table to this file [default: standard output]
    #[arg(short, long)]
    output: Option<PathBuf>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let machine = machines::builtin(&arguments.machine)
        .ok_or_else(|| format!("no machine {}", arguments.machine))?;
    let mut works = vec![OwnedGraph { name: MODEL.to_owned(), ..models::generate(MODEL)? }];
    works.extend(format::load_graphs(&arguments.folder)?.unwrap_or_default());
    let wanted = &arguments.graphs;
    works.retain(|work| {
        wanted.is_empty() || wanted.iter().any(|start| work.name.starts_with(start))
    });
    let budgets = arguments.budgets.iter();
    let mut text = budgets
        .clone()
        .fold("| work | |".to_owned(), |head, percent| head + &format!(" {percent} % |"));
    text += &budgets.fold("\n|---|---|".to_owned(), |line, _| line + "--:|");
    text += "\n";
    for work in &works {
        text += &table(work, &machine.machine, &arguments)?;
    }
    match &arguments.output {
        Some(path) => fs::write(path, text)?,
        None => print!("{text}"),
    }
    Ok(())
}

/// The rows of one work: periods over compute.
fn table(
    work: &OwnedGraph,
    machine: &Machine,
    arguments: &Arguments,
) -> Result<String, Box<dyn Error>> {
    let graph = work.graph()?;
    let in_core_bytes = planning::in_core_peak_bytes(&graph, machine)?;
    let ratio = |period_ns: Option<u64>| match period_ns {
        Some(period_ns) => format!("{:.3}", period_ns as f64 / graph.compute_ns() as f64),
        None => "–".to_owned(),
    };
    let mut text = String::new();
    let mut name = format!("`{}`", work.name);
    let mut row = |title: &str, cells: Vec<String>| {
        let name = std::mem::take(&mut name);
        writeln!(text, "| {name} | {title} | {} |", cells.join(" | "))
    };
    let budgets =
        || arguments.budgets.iter().map(|&percent| (percent, in_core_bytes / 100 * percent));
    for (title, strategy) in ROWS {
        let mut cells = Vec::new();
        for (percent, budget_bytes) in budgets() {
            eprintln!("{}: {title} at {percent} %", work.name);
            let request = Request { graph: &graph, machine, budget_bytes };
            cells.push(ratio(match planning::plan(&request, strategy) {
                Ok(plan) => Some(plan.predicted.period_ns),
                Err(PlanningError::Infeasible { .. }) => None,
                Err(error) => return Err(error.into()),
            }));
        }
        row(title, cells)?;
    }
    let mut cells = Vec::new();
    for (percent, budget_bytes) in budgets() {
        let is_wanted = percent <= arguments.bounds_up_to;
        cells.push(ratio(if is_wanted { bound_ns(&graph, machine, budget_bytes)? } else { None }));
    }
    row("*bound with repeats, given order*", cells)?;
    Ok(text)
}

/// What the linear program gives; none where there is no plan, or no solver.
#[cfg(feature = "highs")]
fn bound_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
) -> Result<Option<u64>, Box<dyn Error>> {
    eprintln!("the bound under {budget_bytes} bytes");
    match lp_bound::period_with_repeats_ns(graph, machine, budget_bytes) {
        Ok(bound) => Ok(Some(bound.period_ns)),
        Err(lp_bound::Error::Infeasible { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(feature = "highs"))]
fn bound_ns(_: &Graph<'_>, _: &Machine, _: u64) -> Result<Option<u64>, Box<dyn Error>> {
    Ok(None)
}
