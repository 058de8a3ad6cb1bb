//! `spillway compare`.

mod grid;
mod lp;
mod plot;
mod table;

use crate::failure::Failure;
use crate::strategy;
use crate::work::{self, Setting, Work};
use crate::{machine, output, proof};
use clap::{Args, ValueEnum};
pub(crate) use grid::progress;
use grid::{Grid, Wanted};
use planner_core::planner::{Request, Strategy};
use spillway::Budget;
use spillway::planning;
use std::path::PathBuf;
use std::str::FromStr;

const EXAMPLES: &str = "\
Examples:
  spillway compare resnet50:batch=512 --machine v100-nvlink
  spillway compare step.graph.json.gz --budgets 60%,40%,min --strategies window,auto
  spillway compare step.graph.json.gz --plot compare.svg --json
  spillway compare step.graph.json.gz --bound lp --strategies auto";

/// Plan the same work with several strategies under several budgets.
///
/// The table shows each plan's period, relative to compute alone. Every plan is proved safe.
/// More memory never makes `auto` slower: if it would, the plan for less memory is used.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A graph or chain file (.json, .json.gz), - for standard input, or a model spec such as
    /// resnet50:batch=512 (see `spillway model list`)
    work: String,
    /// A machine file or the name of a built-in machine (`--machine list` shows them)
    /// [default: the machine in the chain file, else v100-pcie3]
    #[arg(short, long, value_name = "M")]
    machine: Option<String>,
    /// Budgets, as `plan` takes them; min is the smallest that any of the strategies can use
    #[arg(short, long, value_name = "B,B,…", value_delimiter = ',', allow_hyphen_values = true)]
    #[arg(default_value = "100%,75%,50%,35%,25%,min")]
    budgets: Vec<Budget>,
    /// Strategies, or all: every strategy except joint, which searches for seconds, and except
    /// those for chains if the work is not a chain
    #[arg(short, long, value_name = "S,S,…", value_delimiter = ',', default_value = "all")]
    strategies: Vec<Choice>,
    /// The bound that plans are compared with; it holds for plans that run each op once
    #[arg(long, value_name = "BOUND", value_enum, default_value = "cheap")]
    bound: Bound,
    /// Plan without fixing physical objects, as `plan --no-placements` does
    #[arg(long)]
    no_placements: bool,
    /// Draw the comparison to this file: a self-contained SVG image
    #[arg(long, value_name = "F.svg")]
    plot: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which bound to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Bound {
    /// Compute time, and the bytes that must cross each link in any order of the ops
    Cheap,
    /// Also a linear program for the given order: much tighter, but takes seconds to minutes
    /// per budget for thousands of ops (not in every build)
    Lp,
}

/// Which strategies to compare.
#[derive(Clone, Copy, Debug)]
enum Choice {
    All,
    One(&'static strategy::Entry),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        strategy::find(text).map(Self::One).ok_or_else(|| {
            let names: Vec<_> = strategy::ALL.iter().map(|strategy| strategy.name).collect();
            format!("a strategy is one of {}, or all", names.join(", "))
        })
    }
}

/// Each strategy once, in the order asked for; all are those that can plan the work.
fn chosen(choices: &[Choice], is_chain: bool, has_host_ops: bool) -> Vec<&'static strategy::Entry> {
    let mut chosen: Vec<&strategy::Entry> = Vec::new();
    for choice in choices {
        let meant = strategy::ALL.iter().filter(|strategy| match choice {
            Choice::All => strategy.compared.holds(is_chain, has_host_ops),
            Choice::One(one) => strategy.name == one.name,
        });
        for &strategy in meant {
            if chosen.iter().all(|other| other.name != strategy.name) {
                chosen.push(strategy);
            }
        }
    }
    chosen
}

/// Whether the strategies for chains can plan the work.
fn is_chain(setting: Setting<'_>) -> Result<bool, Failure> {
    let graph = proof::graph(setting.work).map_err(Failure::cannot)?;
    let machine = &setting.machine.machine;
    let request = Request { graph: &graph, machine, budget_bytes: machine.device_bytes };
    Ok(planning::min_feasible(&request, Strategy::LayerToLayer).is_ok())
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let machine_file = arguments.machine.as_deref().and_then(machine::file);
    let inputs = [work::file(&arguments.work), machine_file];
    let stdout_is_taken = output::check(&inputs, &[&arguments.plot], arguments.json)?;
    let Work { graph: work, machine } = work::load(&arguments.work)?;
    let machine = machine::choose(arguments.machine.as_deref(), machine)?;
    let setting = Setting { work: &work, machine: &machine };
    let Arguments { strategies, budgets, bound, no_placements, .. } = arguments;
    let wanted = Wanted { bound: *bound, placed: !no_placements };
    let has_host_ops = work.ops.iter().any(|op| op.host_ns.is_some());
    let strategies = chosen(strategies, is_chain(setting)?, has_host_ops);
    let grid = Grid::plan(setting, &strategies, budgets, wanted)?;
    if let Some(path) = &arguments.plot {
        let saved = output::save(path, plot::render(&grid).as_bytes());
        saved.map_err(|failure| failure.with(&grid))?;
    }
    if arguments.json {
        return output::print_json("compare", &grid);
    }
    output::summarize(&table::render(&grid), stdout_is_taken)
}
