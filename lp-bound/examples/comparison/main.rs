//! Compares every strategy with the bound on the period for all works, links and budgets. Writes a
//! page in Markdown. Filters select works and budgets.

mod cells;
mod record;
mod table;

use cells::Cell;
use clap::Parser;
use planner_core::{Graph, Machine};
use record::Record;
use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;
use workloads::{OwnedGraph, format, machines};
use zoo::models;

/// Built-in models to plan in addition to the graph files.
const MODELS: [&str; 3] =
    ["resnet50:batch=64", "resnet152:batch=64", "resnet50:batch=64,mode=inference"];

/// Compares every strategy with the bound of the linear program.
#[derive(Parser, Debug)]
struct Arguments {
    /// Folder of graph files (.graph.json.gz), if there are any
    #[arg(long, default_value = "../shared/graphs")]
    folder: PathBuf,
    /// Only works whose names begin with one of these
    #[arg(long, value_delimiter = ',')]
    graphs: Vec<String>,
    /// Built-in machines; only their links and chunks matter
    #[arg(long, value_delimiter = ',', default_value = "v100-pcie3,v100-nvlink")]
    machines: Vec<String>,
    /// Shares of the in-core need in percent, or min
    #[arg(long, value_delimiter = ',', default_value = "75%,50%,35%,25%,min")]
    budgets: Vec<Budget>,
    /// File of known bounds; newly solved bounds are added
    #[arg(long, default_value = "docs/research/bounds.json")]
    bounds: PathBuf,
    /// Write the table to this file [default: standard output]
    #[arg(short, long)]
    output: Option<PathBuf>,
    /// Write all figures to this file as JSON
    #[arg(long)]
    json: Option<PathBuf>,
}

/// The device memory for a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Budget {
    Percent(u64),
    Min,
}

impl FromStr for Budget {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.strip_suffix('%').map(str::parse) {
            Some(Ok(percent)) => Ok(Self::Percent(percent)),
            None if text == "min" => Ok(Self::Min),
            _ => Err("a budget is a whole percentage (35%) or min"),
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments = Arguments::parse();
    let mut record = Record::open(&arguments.bounds, solve)?;
    let mut cells: Vec<Cell> = Vec::new();
    let works = works(&arguments)?;
    for name in &arguments.machines {
        let machine = machines::builtin(name).ok_or_else(|| format!("no machine {name}"))?;
        for work in &works {
            cells.extend(cells::of(work, &machine, &arguments.budgets, &mut record)?);
        }
    }
    if let Some(path) = &arguments.json {
        fs::write(path, serde_json::to_vec_pretty(&cells)?)?;
    }
    let text = table::render(&cells);
    match &arguments.output {
        Some(path) => fs::write(path, text)?,
        None => print!("{text}"),
    }
    Ok(())
}

/// The works that match the filter.
fn works(arguments: &Arguments) -> Result<Vec<OwnedGraph>, Box<dyn Error>> {
    let mut works = format::load_graphs(&arguments.folder)?.unwrap_or_else(|| {
        eprintln!("skipped: there is no folder {}", arguments.folder.display());
        Vec::new()
    });
    for spec in MODELS {
        works.push(models::generate(spec)?.with_name(spec));
    }
    let wanted = &arguments.graphs;
    works.retain(|work| {
        wanted.is_empty() || wanted.iter().any(|start| work.name.starts_with(start))
    });
    Ok(works)
}

/// The bound for plans on pages in the given order.
#[cfg(feature = "highs")]
fn solve(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
) -> Result<Option<u64>, Box<dyn Error>> {
    let options = lp_bound::Options { pages: Some(lp_bound::Pages::of(machine)) };
    Ok(Some(lp_bound::period_ns(graph, machine, budget_bytes, options)?.period_ns))
}

#[cfg(not(feature = "highs"))]
fn solve(_: &Graph<'_>, _: &Machine, _: u64) -> Result<Option<u64>, Box<dyn Error>> {
    Ok(None)
}
