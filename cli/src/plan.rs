//! `spillway plan`.

use crate::attempt::{self, Attempt};
use crate::failure::Failure;
use crate::figures::Figures;
use crate::work::{self, Work};
use crate::{certificate, curve, machine, output, strategy, summary};
use clap::Args;
use spillway::report::Beside;
use spillway::{Budget, Graph, Plan, Prepared, Strategy};
use std::path::PathBuf;
use workloads::{OwnedMachine, format};

const EXAMPLES: &str = "\
Examples:
  spillway plan resnet50:batch=512 --machine v100-nvlink
  spillway plan step.graph.json.gz --budget 35% --strategy window -o plan.json
  spillway plan step.graph.json.gz --strategy window --set bytes=512MiB
  spillway plan resnet50:batch=256 --budget min --report report.html --trace trace.json
  spillway plan llama:billions=8 --machine rtx4090 --budget 22GiB --certificate bound.json
  spillway model resnet50 | spillway plan - --json

The trace opens in https://ui.perfetto.dev or chrome://tracing.";

/// Plan every transfer of some work under a memory budget.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A graph or chain file (.json, .json.gz), - for standard input, or a model spec such as
    /// resnet50:batch=512 (see `spillway model list`)
    work: String,
    #[command(flatten)]
    choices: Choices,
    /// Write the plan to this file (- for standard output)
    #[arg(short, long, value_name = "PLAN")]
    output: Option<PathBuf>,
    /// Write a report of the plan to this file, as one self-contained HTML page
    #[arg(long, value_name = "F.html")]
    report: Option<PathBuf>,
    /// Plan for these budgets too, and draw the curve of period over budget in the report
    /// [default: 100%,75%,50%,35%,25%,min if planning took at most 5 seconds, else no curve]
    #[arg(long, value_name = "B,B,…", requires = "report", value_delimiter = ',')]
    curve: Option<Vec<Budget>>,
    /// Draw one iteration of the plan to this file, as an SVG image
    #[arg(long, value_name = "F.svg")]
    picture: Option<PathBuf>,
    /// Write the predicted timeline to this file, for Perfetto or Chrome's tracing page
    #[arg(long, value_name = "F.json")]
    trace: Option<PathBuf>,
    /// Write a certificate to this file: a lower bound on the period, with prices that prove it.
    /// `check --certificate` checks the proof
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// The machine, the budget and the strategy.
#[derive(Args, Debug)]
pub(crate) struct Choices {
    /// A machine file or the name of a built-in machine (`--machine list` shows them)
    /// [default: the machine in the chain file, else v100-pcie3]
    #[arg(short, long, value_name = "M")]
    pub(crate) machine: Option<String>,
    /// The device memory for the plan: a size (4GiB, 512MiB, 1000000), a percentage of the memory
    /// that the work needs in-core (35%; 100% or more always suffices for an in-core plan in whole
    /// chunks), or min for the smallest possible budget [default: all device memory]
    #[arg(short, long, value_name = "B", allow_hyphen_values = true)]
    pub(crate) budget: Option<Budget>,
    /// The strategy that makes the plan
    #[arg(short, long, value_name = "S", value_parser = strategy::parser(), default_value = "auto")]
    pub(crate) strategy: Strategy,
    /// Set a parameter of the strategy; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Do not assign fixed physical objects to the tensors; the plan then maps memory while it runs
    /// [default: assign fixed objects if they cost at most 1 % of the period]
    #[arg(long)]
    pub(crate) no_placements: bool,
}

impl Choices {
    /// Prepares the work for planning with these choices.
    pub(crate) fn prepare(
        &self,
        graph: &Graph,
        machine: &OwnedMachine,
    ) -> Result<Prepared, Failure> {
        let strategy = strategy::with(&self.strategy, &self.settings)?;
        let builder = graph.plan(machine).strategy(strategy).placed(!self.no_placements);
        let builder = match self.budget {
            Some(budget) => builder.budget(budget),
            None => builder,
        };
        builder.prepare().map_err(|error| Failure::cannot(attempt::reason(&error)))
    }
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let machine_file = arguments.choices.machine.as_deref().and_then(machine::file);
    let Arguments { output, report, picture, trace, certificate, .. } = arguments;
    let outputs = [output, report, picture, trace, certificate];
    let inputs = [work::file(&arguments.work), machine_file];
    let stdout_is_taken = output::check(&inputs, &outputs, arguments.json)?;
    let Work { graph, machine } = work::load(&arguments.work)?;
    let machine = machine::choose(arguments.choices.machine.as_deref(), machine)?;
    let prepared = arguments.choices.prepare(&graph, &machine)?;
    let (_, mut plan) = Attempt::make(prepared.clone())?.into_plan(&prepared)?;
    let proof = certificate::find(&mut plan)?;
    let figures = Figures::of(&plan);
    if let Some(path) = &arguments.certificate {
        let proof = format::write_certificate(&proof);
        output::save(path, &proof).map_err(|failure| failure.with(&figures))?;
    }
    save(arguments, &prepared, &plan).map_err(|failure| failure.with(&figures))?;
    if arguments.json {
        return output::print_json("plan", &figures);
    }
    output::summarize(&summary::of(&figures, plan.machine()), stdout_is_taken)
}

/// Writes the requested files.
fn save(arguments: &Arguments, prepared: &Prepared, plan: &Plan) -> Result<(), Failure> {
    if let Some(path) = &arguments.output {
        output::save(path, &plan.to_json())?;
    }
    if let Some(path) = &arguments.trace {
        output::save(path, &plan.trace())?;
    }
    if let Some(path) = &arguments.picture {
        output::save(path, plan.picture().as_bytes())?;
    }
    if let Some(path) = &arguments.report {
        let budgets = curve::budgets(arguments.curve.as_deref(), plan);
        let curve = curve::points(prepared, &budgets)?;
        let page = plan.report_beside(&Beside::new().with_curve(curve));
        let page = page.map_err(|error| Failure::cannot(error.to_string()))?;
        output::save(path, page.as_bytes())?;
    }
    Ok(())
}
