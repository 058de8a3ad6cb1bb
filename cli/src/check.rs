//! `spillway check`.

use crate::certificate::Proof;
use crate::failure::Failure;
use crate::figures::Figures;
use crate::work::{self, Work};
use crate::{certificate, output, plan_file, summary};
use clap::Args;
use serde::Serialize;
use spillway::Graph;
use std::path::{Path, PathBuf};
use workloads::{OwnedMachine, OwnedPlan, Shown};

const EXAMPLES: &str = "\
Examples:
  spillway check resnet50:batch=512 plan.json
  spillway check step.graph.json.gz plan.json.gz --machine my-machine.json
  spillway check llama:billions=8 --certificate bound.json

`check` trusts nothing in the plan. It checks the structure, works out the waits between the steps
and the prediction again, and proves that no step can go wrong. For a certificate, it adds up the
prices in whole numbers. Their sum proves the bound, no matter how the prices were found.";

/// Prove that a plan is safe for some work and that its predictions are exact, or prove the bound
/// of a certificate.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A graph or chain file (.json, .json.gz), - for standard input, or a model spec
    work: String,
    /// The plan file (- for standard input)
    #[arg(required_unless_present = "certificate")]
    plan: Option<PathBuf>,
    /// A certificate of a lower bound on the period, from `plan --certificate`. With a plan, the
    /// command also prints the plan's distance from the bound
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// A machine file or the name of a built-in machine [default: the machine that the plan or the
    /// certificate names]
    #[arg(short, long, value_name = "M")]
    machine: Option<String>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// The verdict, with the recomputed figures.
#[derive(Serialize)]
struct Verdict {
    valid: bool,
    reason: Option<String>,
    #[serde(flatten)]
    figures: Figures,
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate: Option<Proof>,
}

/// The verdict on a certificate alone.
#[derive(Serialize)]
struct Certified<'c> {
    valid: bool,
    graph: &'c str,
    machine: &'c str,
    certificate: Proof,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { work, plan, certificate, machine, json } = arguments;
    let inputs = [Some(Path::new(work)), plan.as_deref(), certificate.as_deref()];
    if inputs.iter().flatten().filter(|path| **path == Path::new("-")).count() > 1 {
        return Err(Failure::bad_input(
            "only one of WORK, PLAN and the certificate can be standard input",
        ));
    }
    let Work { graph, machine: own } = work::load(work)?;
    let certificate = certificate.as_deref().map(|path| Ok((path, certificate::load(path)?)));
    let certificate = certificate.transpose()?;
    let plan = plan.as_deref().map(|path| Ok((path, plan_file::load(path)?))).transpose()?;
    let named = plan.as_ref().map(|(_, plan)| &plan.machine);
    let named = named.or(certificate.as_ref().map(|(_, certificate)| &certificate.machine));
    let named = named.map_or("", String::as_str);
    let machine = plan_file::machine_for(named, machine.as_deref(), own)?;
    let Some((path, plan)) = plan else {
        return match certificate {
            Some((path, certificate)) => {
                let proof = Proof::of(&graph, &machine, &certificate, path)?;
                print_certified(graph.name(), &machine.name, proof, *json)
            }
            // The argument parser requires a plan or a certificate.
            None => Ok(()),
        };
    };
    let figures = check_plan(&graph, &machine, path, plan)?;
    let proof = certificate.map(|(path, certificate)| {
        let proof = Proof::of(&graph, &machine, &certificate, path)?;
        match proof.objection(&figures) {
            None => Ok(proof),
            Some(objection) => Err(Failure::cannot(format!(
                "{}: the certificate does not hold for this plan: {objection}",
                Shown::path(path)
            ))),
        }
    });
    let proof = proof.transpose().map_err(|failure| failure.with(&figures))?;
    if *json {
        let verdict = Verdict { valid: true, reason: None, figures, certificate: proof };
        return output::print_json("check", &verdict);
    }
    output::print("valid: safe in every order that its waits allow; the prediction is exact\n")?;
    if let Some(proof) = proof {
        let gap = proof.gap(figures.period_ns().unwrap_or(0));
        output::print(format!("proved: {}{gap}\n", proof.sentence()))?;
    }
    output::print(summary::of(&figures, &machine))
}

fn print_certified(graph: &str, machine: &str, proof: Proof, json: bool) -> Result<(), Failure> {
    if json {
        let certified = Certified { valid: true, graph, machine, certificate: proof };
        return output::print_json("check", &certified);
    }
    output::print(format!("proved: {}\n", proof.sentence()))
}

/// Proves a plan from a file, and returns its figures.
fn check_plan(
    graph: &Graph,
    machine: &OwnedMachine,
    path: &Path,
    plan: OwnedPlan,
) -> Result<Figures, Failure> {
    let (figures, proved) = plan_file::prove(graph, machine, plan)?;
    let Err(reason) = proved else { return Ok(figures) };
    let failure = Failure::cannot(format!("{}: {reason}", Shown::path(path)));
    let (valid, certificate) = (false, None);
    Err(failure.with(&Verdict { valid, reason: Some(reason), figures, certificate }))
}
