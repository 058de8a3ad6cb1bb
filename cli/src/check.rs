//! `spillway check`.

use crate::failure::Failure;
use crate::figures::Figures;
use crate::work::{self, Setting, Work};
use crate::{output, plan_file, proof, summary};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use workloads::{OwnedPlan, Shown};

const EXAMPLES: &str = "\
Examples:
  spillway check resnet50:batch=512 plan.json
  spillway check step.graph.json.gz plan.json.gz --machine my-machine.json

Nothing in the plan is believed: its structure, the waits between its steps, the proof that
no step can go wrong, and its prediction are all worked out again.";

/// Prove that a plan is safe for some work, and that its predictions are exact.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A graph or chain file (.json, .json.gz), - for standard input, or a model spec
    work: String,
    /// The plan file (- for standard input)
    plan: PathBuf,
    /// A machine file or the name of a built-in machine [default: the machine that the
    /// plan names]
    #[arg(short, long, value_name = "M")]
    machine: Option<String>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// The verdict, and the figures as worked out again.
#[derive(Serialize)]
struct Verdict {
    valid: bool,
    reason: Option<String>,
    #[serde(flatten)]
    figures: Figures,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    plan_file::check_inputs(&arguments.work, &arguments.plan)?;
    let Work { graph: work, machine: own } = work::load(&arguments.work)?;
    let plan = plan_file::load(&arguments.plan)?;
    let machine = plan_file::machine_for(&plan, arguments.machine.as_deref(), own)?;
    let setting = Setting { work: &work, machine: &machine };
    let figures = Figures::of_file(setting, &plan)?;
    let figures = match figures_of(setting, &plan, &figures) {
        Ok(figures) => figures,
        Err(reason) => {
            let failure = Failure::cannot(format!("{}: {reason}", Shown::path(&arguments.plan)));
            return Err(failure.with(&Verdict { valid: false, reason: Some(reason), figures }));
        }
    };
    if arguments.json {
        return output::print_json(&Verdict { valid: true, reason: None, figures });
    }
    output::print("valid: safe in every order that its waits allow; the prediction is exact\n")?;
    output::print(summary::of(&figures, &machine))
}

fn figures_of(setting: Setting<'_>, plan: &OwnedPlan, known: &Figures) -> Result<Figures, String> {
    plan_file::check_names(plan, setting.work, setting.machine)?;
    let schedule = proof::lower(setting, plan)?;
    let proved = proof::prove(setting, plan, &schedule)?;
    Ok(known.clone().with_plan(&proved))
}
