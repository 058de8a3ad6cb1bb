//! `spillway compare`.

mod grid;
mod lp;
mod plot;
mod table;

use crate::failure::Failure;
use crate::work::{self, Work};
use crate::{attempt, machine, output};
use clap::{Args, ValueEnum};
use grid::Grid;
use spillway::strategy::Planner;
use spillway::{Budget, Error, Prepared, Strategy};
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
/// More memory never makes `auto` slower: it keeps a plan for less memory if that plan is faster.
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
    /// Budgets, as `plan` takes them; min is the smallest budget that any of the strategies can use
    #[arg(short, long, value_name = "B,B,…", value_delimiter = ',', allow_hyphen_values = true)]
    #[arg(default_value = "100%,75%,50%,35%,25%,min")]
    budgets: Vec<Budget>,
    /// Strategies, or all for every strategy except joint, which searches for seconds. If the work
    /// is not a chain, all also leaves out the strategies for chains
    #[arg(short, long, value_name = "S,S,…", value_delimiter = ',', default_value = "all")]
    strategies: Vec<Choice>,
    /// The bound on the period that is shown; it holds for plans that run each op once
    #[arg(long, value_name = "BOUND", value_enum, default_value = "cheap")]
    bound: Bound,
    /// Plan without fixing physical objects, as `plan --no-placements` does
    #[arg(long)]
    no_placements: bool,
    /// Draw the comparison to this file, as a self-contained SVG image
    #[arg(long, value_name = "F.svg")]
    plot: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// Which bound to compare with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Bound {
    /// The compute time, and the bytes that must cross each link in any order of the ops
    Cheap,
    /// Also the bound of a linear program for the given order: much tighter, but takes seconds to
    /// minutes per budget for thousands of ops (not in every build)
    Lp,
}

/// Which strategies to compare.
#[derive(Clone, Debug)]
enum Choice {
    All,
    One(Strategy),
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        Strategy::named(text).map(Self::One).ok_or_else(|| {
            let names: Vec<_> = Strategy::all().map(|strategy| strategy.name()).collect();
            format!("a strategy is one of {}, or all", names.join(", "))
        })
    }
}

/// Each requested strategy once, in the given order, ready to plan. `all` means every strategy that
/// does not search and that can plan the work.
fn chosen(
    choices: &[Choice],
    prepare: impl Fn(Strategy) -> Result<Prepared, Error>,
) -> Result<Vec<Prepared>, Failure> {
    let mut chosen: Vec<Prepared> = Vec::new();
    for choice in choices {
        let (meant, all): (Vec<_>, _) = match choice {
            Choice::All => (Strategy::all().filter(|it| it.limit().is_none()).collect(), true),
            Choice::One(one) => (vec![one.clone()], false),
        };
        for strategy in meant {
            if chosen.iter().any(|other| other.strategy().name() == strategy.name()) {
                continue;
            }
            // All strategies have the same bounds, which the first one has computed.
            let prepared = match chosen.first() {
                Some(first) => first.with_strategy(strategy),
                None => prepare(strategy),
            };
            match prepared {
                Ok(prepared) => chosen.push(prepared),
                Err(Error::Planning { error, .. }) if all && error.is_refusal() => {}
                Err(error) => return Err(Failure::cannot(attempt::reason(&error))),
            }
        }
    }
    Ok(chosen)
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let machine_file = arguments.machine.as_deref().and_then(machine::file);
    let inputs = [work::file(&arguments.work), machine_file];
    let stdout_is_taken = output::check(&inputs, &[&arguments.plot], arguments.json)?;
    let Work { graph, machine } = work::load(&arguments.work)?;
    let machine = machine::choose(arguments.machine.as_deref(), machine)?;
    let strategies = chosen(&arguments.strategies, |strategy| {
        graph.plan(&machine).strategy(strategy).placed(!arguments.no_placements).prepare()
    })?;
    let grid = Grid::plan(&graph, &machine, &strategies, &arguments.budgets, arguments.bound)?;
    if let Some(path) = &arguments.plot {
        let saved = output::save(path, plot::render(&grid).as_bytes());
        saved.map_err(|failure| failure.with(&grid))?;
    }
    if arguments.json {
        return output::print_json("compare", &grid);
    }
    output::summarize(&table::render(&grid), stdout_is_taken)
}
