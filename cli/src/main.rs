//! Plans, checks and runs computations that need more memory than the device has.

mod attempt;
mod backend;
mod certificate;
mod check;
mod compare;
mod completions;
mod conformance;
mod curve;
mod devices;
mod export;
mod failure;
mod figures;
mod graph_file;
mod import;
mod machine;
mod man;
mod measure;
mod model;
mod output;
mod plan;
mod plan_file;
mod progress;
mod run;
mod searching;
mod shortage;
mod signals;
mod strategy;
mod summary;
mod usage;
mod work;

use clap::{CommandFactory, Parser, Subcommand};
use failure::Failure;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  spillway plan resnet50:batch=512 --budget 50% -o plan.json
  spillway check resnet50:batch=512 plan.json
  spillway run resnet50:batch=512 --plan plan.json
  spillway plan step.graph.json.gz --machine v100-nvlink --budget min --report report.html
  spillway compare resnet50:batch=512 --plot compare.svg
  spillway model list
  spillway plan --machine list
  spillway devices
  spillway measure -o machine.json
  spillway conformance --backend sim

Exit status:
  0      The command succeeded.
  1      The request is valid but cannot be met, for example because the budget is too small, the
         plan is invalid or the results differ.
  2      The usage is wrong or a file is malformed.
  128+N  Signal N ended the program.";

/// Run computations that need more memory than the device has. Spillway plans every transfer and
/// proves it safe before the first transfer starts.
#[derive(Parser)]
#[command(name = "spillway", bin_name = "spillway", version, after_help = EXAMPLES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Plan(plan::Arguments),
    Run(run::Arguments),
    Check(check::Arguments),
    Compare(compare::Arguments),
    Model(model::Arguments),
    Import(import::Arguments),
    Devices(devices::Arguments),
    Measure(measure::Arguments),
    Export(export::Arguments),
    Conformance(conformance::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

fn main() -> ExitCode {
    signals::catch(searching::interrupt);
    let done = output::check_stdout();
    if done.is_err() || machine::list_is_asked_for(std::env::args_os().skip(1)) {
        return exit(done.and_then(|()| machine::print_list()), None);
    }
    match Cli::try_parse() {
        Ok(Cli { command }) => exit(execute(&command), json_command(&command)),
        Err(error) => exit(usage::answer(error), None),
    }
}

/// Ends the program. `json` is the command's name if the command prints JSON.
fn exit(done: Result<(), Failure>, json: Option<&str>) -> ExitCode {
    let Err(failure) = done else { return ExitCode::SUCCESS };
    if let Some((command, report)) = json.zip(failure.report()) {
        // If standard output is closed, the message below still appears.
        let _ = output::print_json(command, &report);
    }
    output::note(&format!("error: {}", failure.message));
    ExitCode::from(failure.status)
}

/// The command's name if its arguments include `--json`.
const fn json_command(command: &Command) -> Option<&'static str> {
    let (name, json) = match command {
        Command::Plan(arguments) => ("plan", arguments.json),
        Command::Run(arguments) => ("run", arguments.json),
        Command::Check(arguments) => ("check", arguments.json),
        Command::Compare(arguments) => ("compare", arguments.json),
        Command::Devices(arguments) => ("devices", arguments.json),
        Command::Measure(arguments) => ("measure", arguments.json),
        Command::Conformance(arguments) => ("conformance", arguments.json),
        Command::Model(_)
        | Command::Import(_)
        | Command::Export(_)
        | Command::Completions(_)
        | Command::Man(_) => return None,
    };
    if json { Some(name) } else { None }
}

fn execute(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Plan(arguments) => plan::run(arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Devices(arguments) => devices::run(arguments),
        Command::Measure(arguments) => measure::run(arguments),
        Command::Check(arguments) => check::run(arguments),
        Command::Compare(arguments) => compare::run(arguments),
        Command::Model(arguments) => model::run(arguments),
        Command::Import(arguments) => import::run(arguments),
        Command::Export(arguments) => export::run(arguments),
        Command::Conformance(arguments) => conformance::run(arguments),
        Command::Completions(arguments) => completions::run(arguments, Cli::command()),
        Command::Man(arguments) => man::run(arguments, Cli::command()),
    }
}
