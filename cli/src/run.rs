//! `spillway run`.

use crate::attempt::Attempt;
use crate::backend::{self, Entry, Job, Options, Outcome, Runner, Stopped};
use crate::failure::Failure;
use crate::figures::Figures;
use crate::plan::Choices;
use crate::work::{self, Work};
use crate::{certificate, machine, output, plan_file, summary};
use clap::Args;
use indicatif::ProgressBar;
use integrity::reference_digest;
use planner_core::planner::{Request, Strategy};
use serde::Serialize;
use spillway::planning;
use spillway::report::{Actual, Beside};
use spillway::units::{bytes, count, time};
use spillway::{Error, Graph, Plan};
use std::path::{Path, PathBuf};
use workloads::{OwnedMachine, Shown};

const EXAMPLES: &str = "\
Examples:
  spillway run resnet50:batch=2,image=64 --budget 50%
  spillway run step.graph.json.gz --plan plan.json --iterations 100
  spillway run step.graph.json.gz --budget min --strategy window --seed 7 --json
  spillway run resnet50:batch=2 --budget 35% --backend vulkan
  spillway run resnet50:batch=2 --budget 35% --backend cuda --graph --iterations 32
  spillway run resnet50:batch=2 --budget 35% --delays 1 --report report.html --trace trace.json

On a Vulkan or CUDA device, each op is a test kernel that mixes every word it reads into every word
it writes. The run moves and checks all bytes of the work, but it does not run the real ops. The
measured period is wall-clock time, and it does not predict the period of the real ops.

The simulated device has exactly the memory of the budget. It keeps no bytes. Instead, it tracks
which value each part of memory should hold, so it can rehearse work of any size. With 8 or more
iterations, the measured period is the mean of iterations 5 to 8, as in the prediction. With fewer,
it is the mean of all iterations after the first. The measured period includes the time to map
memory; the prediction leaves this time out. A plan with placements maps all memory before the first
iteration.";

/// Rehearse a plan, and compare its results with the results of an in-core run.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// A graph or chain file (.json, .json.gz), - for standard input, or a model spec
    work: String,
    /// Run this plan file instead of making a plan; the plan's machine is then the default
    #[arg(long, value_name = "PLAN", conflicts_with_all = ["budget", "strategy", "settings", "no_placements"])]
    plan: Option<PathBuf>,
    #[command(flatten)]
    choices: Choices,
    /// The backend that runs the plan
    #[arg(long, value_name = "BACKEND", default_value = "sim",
          value_parser = backend::parser(backend::runners()))]
    backend: &'static Entry,
    /// Run iterations as CUDA graphs; the plan must have placements. A graph holds a fixed number
    /// of iterations; the iterations left over run first, without a graph
    #[arg(long)]
    graph: bool,
    /// The number of iterations to run
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..))]
    iterations: u64,
    /// The seed of a random order of the work on the simulated device, among all orders that the
    /// plan's waits allow [default: the order of submission]
    #[arg(long)]
    seed: Option<u64>,
    /// Make one copy in four take up to sixteen times as long on the simulated device; the seed
    /// chooses the copies and their delays
    #[arg(long, value_name = "SEED")]
    delays: Option<u64>,
    /// Write the report of `plan` to this file, with the predicted and the measured iterations side
    /// by side and the largest differences between them
    #[arg(long, value_name = "F.html")]
    report: Option<PathBuf>,
    /// Write the predicted and the measured timeline to this file, for Perfetto or Chrome's
    /// tracing page
    #[arg(long, value_name = "F.json")]
    trace: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

/// The figures of the plan and of its run.
#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    figures: Figures,
    backend: &'static str,
    device: String,
    iterations: u64,
    measured_period_ns: u64,
    /// The predicted period if iterations run as graphs. Each graph waits for the graph before it.
    graph_period_ns: Option<u64>,
    map_calls_per_iteration: f64,
    setup_virtual_ranges: u64,
    setup_map_calls: u64,
    /// The host's time for reserving these ranges and for these map calls.
    setup_mapping_ns: u64,
    digest: String,
    /// `None` if the work cannot be planned in-core, or the device is too small for an in-core run.
    in_core_digest: Option<String>,
    reference_digest: String,
    digests_match: bool,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { seed, delays, graph, .. } = *arguments;
    let runner = arguments.backend.open(Options { seed, delays, graph })?;
    let machine_file = arguments.choices.machine.as_deref().and_then(machine::file);
    let inputs = [work::file(&arguments.work), arguments.plan.as_deref(), machine_file];
    let outputs = [&arguments.report, &arguments.trace];
    let stdout_is_taken = output::check(&inputs, &outputs, arguments.json)?;
    if let Some(path) = &arguments.plan {
        plan_file::check_inputs(&arguments.work, path)?;
    }
    let Work { graph, machine: own } = work::load(&arguments.work)?;
    let given = arguments.choices.machine.as_deref();
    let mut plan = match &arguments.plan {
        Some(path) => read(&graph, path, given, own)?,
        None => {
            let prepared = arguments.choices.prepare(&graph, &machine::choose(given, own)?)?;
            Attempt::make(prepared.clone())?.into_plan(&prepared)?.1
        }
    };
    certificate::find(&mut plan)?;
    let figures = Figures::of(&plan);
    let (report, actual) = carry_out(&plan, &figures, arguments, runner.as_ref())
        .map_err(|failure| failure.with(&figures))?;
    if arguments.draws() {
        draw(&plan, actual, arguments).map_err(|failure| failure.with(&report))?;
    }
    if !arguments.json {
        let text = summary::of(&report.figures, plan.machine()) + &shown(&report);
        output::summarize(&text, stdout_is_taken)?;
    }
    if report.digests_match {
        return if arguments.json { output::print_json("run", &report) } else { Ok(()) };
    }
    let failure = Failure::cannot(format!(
        "the results differ: digest {}, in-core {}, from the graph alone {}",
        report.digest,
        report.in_core_digest.as_deref().unwrap_or("none"),
        report.reference_digest
    ));
    Err(failure.with(&report))
}

impl Arguments {
    /// Whether the run writes its timeline to a file.
    const fn draws(&self) -> bool {
        self.report.is_some() || self.trace.is_some()
    }
}

/// Writes the requested report and trace.
fn draw(plan: &Plan, actual: Option<Actual>, arguments: &Arguments) -> Result<(), Failure> {
    let cannot = |error: Error| Failure::cannot(error.to_string());
    if actual.is_none() {
        output::note("note: this run measures no step times; the files show only the prediction");
    }
    if let Some(path) = &arguments.trace {
        let trace = match &actual {
            None => plan.trace(),
            Some(actual) => plan.trace_beside(actual).map_err(cannot)?,
        };
        output::save(path, &trace)?;
    }
    if let Some(path) = &arguments.report {
        let beside = Beside::new().with_actual(actual);
        output::save(path, plan.report_beside(&beside).map_err(cannot)?.as_bytes())?;
    }
    Ok(())
}

/// Reads a plan file and proves the plan on its machine.
fn read(
    graph: &Graph,
    path: &Path,
    machine: Option<&str>,
    own: Option<OwnedMachine>,
) -> Result<Plan, Failure> {
    let plan = plan_file::load(path)?;
    let machine = plan_file::machine_for(&plan.machine, machine, own)?;
    let (figures, proved) = plan_file::prove(graph, &machine, plan)?;
    proved.map_err(|reason| {
        Failure::cannot(format!("{}: {reason}", Shown::path(path))).with(&figures)
    })
}

fn carry_out(
    plan: &Plan,
    figures: &Figures,
    arguments: &Arguments,
    runner: &dyn Runner,
) -> Result<(Report, Option<Actual>), Failure> {
    let &Arguments { backend, iterations, .. } = arguments;
    let device = runner.device(&plan.machine().name)?;
    let verified = plan.verified();
    let progress = progress(iterations);
    let job = Job { iterations, progress: &progress, timed: arguments.draws() };
    let outcome = runner.run(verified, &plan.names(), job);
    let outcome = outcome.map_err(|stopped| Failure::cannot(stopped.reason))?;
    let in_order = backend.open(Options::default())?;
    let in_core = in_core_digest(plan, in_order.as_ref(), Job { timed: false, ..job })?;
    progress.finish_and_clear();
    let reference = reference_digest(verified.graph(), iterations);
    let Outcome { ranges, set_up_maps, mapping_ns, period_ns, map_calls, digest, steps_ns } =
        outcome;
    let first_iteration = job.first_timed() - 1;
    let named = |steps_ns| Actual::new(device.as_str(), first_iteration, steps_ns);
    let actual = steps_ns.map(named);
    let report = Report {
        figures: figures.clone(),
        backend: backend.name,
        device,
        iterations,
        measured_period_ns: period_ns,
        graph_period_ns: runner.predicted_ns(verified, iterations),
        map_calls_per_iteration: map_calls,
        setup_virtual_ranges: ranges,
        setup_map_calls: set_up_maps,
        setup_mapping_ns: mapping_ns,
        digest: hex(digest),
        in_core_digest: in_core.map(hex),
        reference_digest: hex(reference),
        digests_match: agree(digest, in_core, reference),
    };
    Ok((report, actual))
}

/// The digest of the same work with all tensors resident, on a device with enough memory. `None` if
/// the work is too large for any in-core plan, or if the real device is too small.
fn in_core_digest(plan: &Plan, runner: &dyn Runner, job: Job<'_>) -> Result<Option<u64>, Failure> {
    let unlimited = plan.machine().machine.with_host_bytes(u64::MAX);
    let request = Request { graph: plan.verified().graph(), machine: &unlimited, budget_bytes: 0 };
    let Ok((budget_bytes, _)) = planning::min_feasible(&request, Strategy::InCore) else {
        return Ok(None);
    };
    let machine = unlimited.with_device_bytes(budget_bytes);
    let machine = plan.machine().clone().with_machine(machine);
    let in_core = plan.graph().plan(&machine).strategy(Strategy::InCore).placed(false).run();
    let in_core = match in_core {
        Ok(in_core) => in_core,
        Err(Error::Invalid { message, .. }) => {
            return Err(Failure::cannot(format!("in-core: {message}")));
        }
        Err(_) => return Ok(None),
    };
    match runner.run(in_core.verified(), &in_core.names(), job) {
        Ok(outcome) => Ok(Some(outcome.digest)),
        Err(Stopped { too_large: true, .. }) => Ok(None),
        Err(Stopped { reason, .. }) => Err(Failure::cannot(format!("in-core: {reason}"))),
    }
}

/// A progress bar for two runs of each iteration: with the plan, and in-core. It appears only if
/// standard error is a terminal.
fn progress(iterations: u64) -> ProgressBar {
    crate::progress::bar(iterations.saturating_mul(2), "running {bar:40} {pos}/{len}, {eta} left")
}

/// Whether the digests agree. The in-core digest counts only if there is an in-core run.
fn agree(digest: u64, in_core: Option<u64>, reference: u64) -> bool {
    digest == reference && in_core.is_none_or(|in_core| in_core == digest)
}

fn hex(digest: u64) -> String {
    format!("{digest:016x}")
}

/// The summary of the run.
fn shown(report: &Report) -> String {
    let planned_ns = report.figures.period_ns().unwrap_or(0);
    let predicted_ns = report.graph_period_ns.unwrap_or(planned_ns);
    let measured_ns = report.measured_period_ns;
    let compared = match measured_ns.cmp(&predicted_ns) {
        std::cmp::Ordering::Equal => "as predicted".to_owned(),
        std::cmp::Ordering::Less => {
            format!("{} less than predicted", time(predicted_ns - measured_ns))
        }
        std::cmp::Ordering::Greater => {
            format!("{} more than predicted", time(measured_ns - predicted_ns))
        }
    };
    let verdict = match (&report.in_core_digest, report.digests_match) {
        (Some(_), true) => "the same as in-core and as computed from the graph alone",
        (None, true) => "the same as computed from the graph alone; it does not fit in-core",
        (_, false) => "WRONG",
    };
    let plural = if report.iterations == 1 { "" } else { "s" };
    format!(
        "\n  {:<10}{} iteration{plural} on the {} with {}\n  {:<10}{} map calls for {} ranges, {}\n  \
         {:<10}{} an iteration, {compared}; {:.1} map calls\n  {:<10}{}, {verdict}\n",
        "run",
        report.iterations,
        Shown::name(&report.device),
        bytes(report.figures.context.budget_bytes),
        "set-up",
        count(report.setup_map_calls),
        count(report.setup_virtual_ranges),
        time(report.setup_mapping_ns),
        "measured",
        time(measured_ns),
        report.map_calls_per_iteration,
        "digest",
        report.digest
    )
}

#[cfg(test)]
mod tests {
    use super::agree;

    #[test]
    fn all_results_must_agree() {
        assert!(agree(1, Some(1), 1) && agree(1, None, 1));
        assert!(!agree(1, Some(1), 2) && !agree(1, Some(2), 1) && !agree(2, None, 1));
    }
}
