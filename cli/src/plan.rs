//! `spillway plan`.

use crate::budget::Budget;
use crate::course::Course;
use crate::failure::Failure;
use crate::figures::{Figures, Needs};
use crate::names::Names;
use crate::proof::Proved;
use crate::strategy::{self, Chosen};
use crate::work::{self, Setting, Work};
use crate::{machine, output, proof, report, shortage, summary, trace};
use clap::Args;
use planner_core::planner::{PlanningError, Request};
use spillway::planning::{self, OwnedSchedule};
use std::path::PathBuf;
use std::time::Instant;
use workloads::{OwnedPlan, format};

const EXAMPLES: &str = "\
Examples:
  spillway plan resnet50:batch=512 --machine v100-nvlink
  spillway plan step.graph.json.gz --budget 35% --strategy window -o plan.json
  spillway plan step.graph.json.gz --strategy window --set bytes=512MiB
  spillway plan resnet50:batch=256 --budget min --report report.html --trace trace.json
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
    /// Write the predicted timeline to this file, for Perfetto or Chrome's tracing page
    #[arg(long, value_name = "F.json")]
    trace: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// What to plan for, and how.
#[derive(Args, Debug)]
pub(crate) struct Choices {
    /// A machine file or the name of a built-in machine (`--machine list` shows them)
    /// [default: the one that a chain brings, else v100-pcie3]
    #[arg(short, long, value_name = "M")]
    pub(crate) machine: Option<String>,
    /// Device memory for the plan: a size (4GiB, 512MiB, 1000000), a percentage of what the
    /// work needs in-core (35%), or min for the least that will do [default: all of it]
    #[arg(short, long, value_name = "B", allow_hyphen_values = true)]
    pub(crate) budget: Option<Budget>,
    /// How to plan
    #[arg(short, long, value_name = "S", value_enum, default_value = "auto")]
    pub(crate) strategy: &'static strategy::Entry,
    /// Set a parameter of the strategy; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub(crate) settings: Vec<String>,
    /// Do not fix the physical objects of everything: memory is then mapped as the plan runs
    /// [default: they are fixed where that costs at most 1 % of the period]
    #[arg(long)]
    pub(crate) no_placements: bool,
}

/// What planning came to.
#[derive(Debug)]
pub(crate) struct Draft {
    /// What is known so far.
    pub(crate) figures: Figures,
    /// A plan with its schedule, not proved yet; or why there is none.
    pub(crate) plan: Result<(OwnedPlan, OwnedSchedule), PlanningError>,
}

/// How much memory a plan gets, and how it uses it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room<'d> {
    pub(crate) budget_bytes: u64,
    /// Whether physical objects are to be fixed.
    pub(crate) placed: bool,
    /// What the same strategy made of less memory: the new plan is no worse.
    pub(crate) less: Option<&'d Draft>,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let machine_file = arguments.choices.machine.as_deref().and_then(machine::file);
    let outputs = [&arguments.output, &arguments.report, &arguments.trace];
    let inputs = [work::file(&arguments.work), machine_file];
    let stdout_is_taken = output::check(&inputs, &outputs, arguments.json)?;
    let Work { graph: work, machine } = work::load(&arguments.work)?;
    let machine = machine::choose(arguments.choices.machine.as_deref(), machine)?;
    let setting = Setting { work: &work, machine: &machine };
    let (figures, plan, schedule) = plan_for(setting, &arguments.choices)?;
    let proved = proof::prove(setting, &plan, &schedule);
    let proved = proved.map_err(|reason| defect(&plan.strategy, &reason).with(&figures))?;
    let figures = figures.with_plan(&proved);
    save(arguments, setting, &plan, &proved, &figures).map_err(|failure| failure.with(&figures))?;
    if arguments.json {
        return output::print_json(&figures);
    }
    output::summarize(&summary::of(&figures, &machine.machine), stdout_is_taken)
}

/// Writes the files that are wanted.
fn save(
    arguments: &Arguments,
    setting: Setting<'_>,
    plan: &OwnedPlan,
    proved: &Proved<'_>,
    figures: &Figures,
) -> Result<(), Failure> {
    if let Some(path) = &arguments.output {
        output::save(path, &format::write_plan(plan))?;
    }
    if arguments.trace.is_some() || arguments.report.is_some() {
        let course = Course::of(&proved.verified).map_err(|e| Failure::cannot(e.to_string()))?;
        if let Some(path) = &arguments.trace {
            output::save(path, &trace::render(setting, proved, &course))?;
        }
        if let Some(path) = &arguments.report {
            output::save(path, report::render(setting, proved, &course, figures).as_bytes())?;
        }
    }
    Ok(())
}

/// A plan of our own that does not pass is never written or run.
pub(crate) fn defect(strategy: &str, reason: &str) -> Failure {
    Failure::cannot(format!(
        "{strategy}: the plan is invalid, which is a defect of this program: {reason}"
    ))
}

/// Plans as chosen.
///
/// # Errors
/// The reason why there is no plan, with the figures.
pub(crate) fn plan_for(
    setting: Setting<'_>,
    choices: &Choices,
) -> Result<(Figures, OwnedPlan, OwnedSchedule), Failure> {
    let chosen = choices.strategy.with(&choices.settings)?;
    let needs = Needs::of(setting, Some(&chosen.method))?;
    let least_bytes = needs.min_feasible.map_or(0, |(bytes, _)| bytes);
    let budget_bytes = choices.budget.map_or(setting.machine.machine.device_bytes, |budget| {
        budget.bytes(needs.in_core_peak_bytes, least_bytes)
    });
    let room = Room { budget_bytes, placed: !choices.no_placements, less: None };
    let Draft { figures, plan } = draft(setting, &chosen, needs, room)?;
    match plan {
        Ok((plan, schedule)) => Ok((figures, plan, schedule)),
        Err(error) => {
            let mut reason = Names::new(setting.work, &[]).planning_error(&error, budget_bytes);
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

/// Plans within so many bytes, with fixed physical objects where that is wanted and can be.
pub(crate) fn draft(
    setting: Setting<'_>,
    chosen: &Chosen,
    needs: Needs,
    Room { budget_bytes, placed, less }: Room<'_>,
) -> Result<Draft, Failure> {
    let mut figures = Figures::without_plan(setting, chosen.name, budget_bytes, needs)?;
    let graph = proof::graph(setting.work).map_err(Failure::cannot)?;
    let request = Request { graph: &graph, machine: &setting.machine.machine, budget_bytes };
    // Why there is none, planning will say.
    figures.cycle_ns = chosen
        .method
        .of_core()
        .and_then(|strategy| planning::cycle_ns(&request, strategy).ok().flatten());
    let started = Instant::now();
    let less_plan = less.and_then(|less| less.plan.as_ref().ok()).map(|(plan, _)| plan);
    let planned = chosen.method.plan(&request, placed, less_plan);
    figures.planning_ns = u64::try_from(started.elapsed().as_nanos()).ok();
    let plan = match planned {
        Ok((plan, unplaced)) => {
            if placed && plan.placements.is_none() {
                let of_less = less.and_then(|less| less.figures.unplaced.clone());
                figures.unplaced = unplaced.map(|unplaced| unplaced.to_string()).or(of_less);
            }
            let plan = OwnedPlan {
                graph: setting.work.name.clone(),
                machine: setting.machine.name.clone(),
                strategy: chosen.name.to_owned(),
                ..plan
            };
            let schedule = proof::lower(setting, &plan);
            let schedule = schedule.map_err(|reason| defect(chosen.name, &reason))?;
            Ok((plan, schedule))
        }
        Err(error) => Err(error),
    };
    Ok(Draft { figures, plan })
}
