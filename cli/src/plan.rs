//! `spillway plan`.

use crate::failure::Failure;
use crate::figures::{self, Figures};
use crate::names;
use crate::strategy::{self, Chosen};
use crate::work::{self, Setting, Work};
use crate::{curve, machine, output, proof, shortage, summary};
use clap::Args;
use planner_core::planner::{PlanningError, Request};
use spillway::figures::Needs;
use spillway::planning::{self, OwnedSchedule};
use spillway::report::Beside;
use spillway::{Budget, Error, Graph, Plan};
use std::path::PathBuf;
use std::time::Instant;
use workloads::{OwnedPlan, format};

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
    /// Write a report of the plan to this file: one self-contained page of HTML
    #[arg(long, value_name = "F.html")]
    report: Option<PathBuf>,
    /// Plan for these budgets too, and draw the curve of period over budget in the report
    /// [default: 100%,75%,50%,35%,25%,min, if the plan took at most five seconds]
    #[arg(long, value_name = "B,B,…", requires = "report", value_delimiter = ',')]
    curve: Option<Vec<Budget>>,
    /// Draw one iteration of the plan to this file: an SVG image
    #[arg(long, value_name = "F.svg")]
    picture: Option<PathBuf>,
    /// Write the predicted timeline to this file, for Perfetto or Chrome's tracing page
    #[arg(long, value_name = "F.json")]
    trace: Option<PathBuf>,
    /// Write a certificate of a bound on the period to this file: prices that prove it, which
    /// `check` adds up
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to plan for, and how.
#[derive(Args, Debug)]
pub(crate) struct Choices {
    /// A machine file or the name of a built-in machine (`--machine list` shows them)
    /// [default: the machine in the chain file, else v100-pcie3]
    #[arg(short, long, value_name = "M")]
    pub(crate) machine: Option<String>,
    /// Device memory for the plan: a size (4GiB, 512MiB, 1000000), a percentage of what the
    /// work needs in-core (35%; from 100% on, enough for an in-core plan in whole chunks), or min
    /// for the smallest possible [default: all of it]
    #[arg(short, long, value_name = "B", allow_hyphen_values = true)]
    pub(crate) budget: Option<Budget>,
    /// How to plan
    #[arg(short, long, value_name = "S", value_enum, default_value = "auto")]
    pub(crate) strategy: &'static strategy::Entry,
    /// Set a parameter of the strategy; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Do not fix physical objects: memory is then mapped as the plan runs [default: objects
    /// are fixed if that costs at most 1 % of the period]
    #[arg(long)]
    pub(crate) no_placements: bool,
}

/// What planning came to.
#[derive(Debug)]
pub(crate) struct Draft {
    /// What is known so far.
    pub(crate) figures: Figures,
    /// A plan that is not proved yet; or why there is none.
    pub(crate) plan: Result<OwnedPlan, PlanningError>,
}

/// How much memory a plan gets, and how it uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryOptions<'d> {
    pub(crate) budget_bytes: u64,
    /// Whether physical objects are to be fixed.
    pub(crate) placed: bool,
    /// What the same strategy made of less memory: the new plan is no worse.
    pub(crate) less: Option<&'d Draft>,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let machine_file = arguments.choices.machine.as_deref().and_then(machine::file);
    let Arguments { output, report, picture, trace, certificate, .. } = arguments;
    let outputs = [output, report, picture, trace, certificate];
    let inputs = [work::file(&arguments.work), machine_file];
    let stdout_is_taken = output::check(&inputs, &outputs, arguments.json)?;
    let Work { graph: work, machine } = work::load(&arguments.work)?;
    let machine = machine::choose(arguments.choices.machine.as_deref(), machine)?;
    let graph = Graph::new(work).map_err(|error| Failure::cannot(error.to_string()))?;
    let setting = Setting { work: graph.owned(), machine: &machine };
    let (figures, plan) = choose(setting, &arguments.choices)?;
    let context = figures.context.clone();
    let mut plan = Plan::in_context(graph, machine, plan, context)
        .map_err(|error| defect(&figures.context.strategy, &error.to_string()).with(&figures))?;
    let certificate = plan.certify().map_err(|error| Failure::cannot(error.to_string()))?;
    let mut figures = figures.with_figures(*plan.figures());
    figures.context.certified = plan.context().certified;
    if let Some(path) = &arguments.certificate {
        let bytes = format::write_certificate(&certificate);
        output::save(path, &bytes).map_err(|failure| failure.with(&figures))?;
    }
    save(arguments, &plan).map_err(|failure| failure.with(&figures))?;
    if arguments.json {
        return output::print_json("plan", &figures);
    }
    output::summarize(&summary::of(&figures, plan.machine()), stdout_is_taken)
}

/// Writes the files that are wanted.
fn save(arguments: &Arguments, plan: &Plan) -> Result<(), Failure> {
    let cannot = |error: Error| Failure::cannot(error.to_string());
    if let Some(path) = &arguments.output {
        output::save(path, &plan.to_json())?;
    }
    if let Some(path) = &arguments.trace {
        output::save(path, &plan.trace().map_err(cannot)?)?;
    }
    if let Some(path) = &arguments.picture {
        output::save(path, plan.picture().map_err(cannot)?.as_bytes())?;
    }
    if let Some(path) = &arguments.report {
        let setting = Setting { work: plan.graph().owned(), machine: plan.machine() };
        let budgets = curve::budgets(arguments.curve.as_deref(), plan);
        let curve = curve::points(setting, &arguments.choices, &budgets)?;
        let beside = Beside { curve, ..Beside::default() };
        output::save(path, plan.report_beside(&beside).map_err(cannot)?.as_bytes())?;
    }
    Ok(())
}

/// The failure when a planner's own plan is invalid. Such a plan is never written or run.
pub(crate) fn defect(strategy: &str, reason: &str) -> Failure {
    Failure::cannot(format!(
        "{strategy}: the planner made an invalid plan (a bug in spillway): {reason}"
    ))
}

/// Plans as chosen, and lowers the plan.
///
/// # Errors
/// The reason why there is no plan, with the figures.
pub(crate) fn plan_for(
    setting: Setting<'_>,
    choices: &Choices,
) -> Result<(Figures, OwnedPlan, OwnedSchedule), Failure> {
    let (figures, plan) = choose(setting, choices)?;
    let schedule =
        proof::lower(setting, &plan).map_err(|reason| defect(&plan.strategy, &reason))?;
    Ok((figures, plan, schedule))
}

/// Plans as chosen.
fn choose(setting: Setting<'_>, choices: &Choices) -> Result<(Figures, OwnedPlan), Failure> {
    let chosen = choices.strategy.with(&choices.settings)?;
    let needs = figures::needs(setting, Some(&chosen.method))?;
    let device_bytes = setting.machine.machine.device_bytes;
    let budget_bytes = choices.budget.map_or(device_bytes, |budget| budget.bytes(&needs));
    let memory = MemoryOptions { budget_bytes, placed: !choices.no_placements, less: None };
    let Draft { figures, plan } = draft(setting, &chosen, needs, memory)?;
    match plan {
        Ok(plan) => Ok((figures, plan)),
        Err(error) => {
            let mut reason = names::planning_error(setting.work, &error, budget_bytes);
            if matches!(error, PlanningError::Infeasible { min_feasible_bytes, .. }
                if min_feasible_bytes > budget_bytes)
            {
                let of_core = chosen.method.of_core();
                let parts = of_core.map(|strategy| shortage::list(setting, strategy));
                if let Some(parts) = parts.transpose().map_err(Failure::cannot)? {
                    reason = format!("{reason}:{parts}");
                }
            }
            Err(Failure::cannot(format!("{}: {reason}", chosen.name)).with(&figures))
        }
    }
}

/// Plans within a budget, with fixed physical objects if they are wanted and possible.
pub(crate) fn draft(
    setting: Setting<'_>,
    chosen: &Chosen,
    needs: Needs,
    MemoryOptions { budget_bytes, placed, less }: MemoryOptions<'_>,
) -> Result<Draft, Failure> {
    let mut figures = Figures::without_plan(setting, chosen.name, budget_bytes, needs)?;
    let graph = proof::graph(setting.work).map_err(Failure::cannot)?;
    let request = Request { graph: &graph, machine: &setting.machine.machine, budget_bytes };
    // If there is none, planning says why.
    figures.context.cycle_ns = chosen
        .method
        .of_core()
        .and_then(|strategy| planning::cycle_ns(&request, strategy).ok().flatten());
    let started = Instant::now();
    let less_plan = less.and_then(|less| less.plan.as_ref().ok());
    let planned = chosen.method.plan(&request, placed, less_plan);
    figures.context.planning_ns = u64::try_from(started.elapsed().as_nanos()).ok();
    let plan = match planned {
        Ok((plan, unplaced)) => {
            if placed && plan.placements.is_none() {
                let of_less = less.and_then(|less| less.figures.context.unplaced);
                figures.context.unplaced = unplaced.or(of_less);
            }
            figures.context.method = spillway::figures::method(&plan, chosen.name);
            Ok(OwnedPlan {
                graph: setting.work.name.clone(),
                machine: setting.machine.name.clone(),
                strategy: chosen.name.to_owned(),
                ..plan
            })
        }
        Err(error) => Err(error),
    };
    Ok(Draft { figures, plan })
}
