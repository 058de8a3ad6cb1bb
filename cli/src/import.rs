//! `spillway import`.

use crate::failure::Failure;
use crate::graph_file;
use crate::output;
use clap::{Args, Subcommand, ValueEnum};
use spillway::units::{count, percent};
use std::path::{Path, PathBuf};
use workloads::{OwnedGraph, Shown, format, renaming};
use zoo::pytorch::{self, ImportError, Nodes, Report, Source};

const EXAMPLES: &str = "\
Examples:
  spillway import pytorch trace.json.gz -o step.graph.json.gz
  spillway import pytorch trace.json --device cpu -o step.graph.json.gz
  spillway import pytorch trace.json --kineto kineto.json | spillway plan - --budget 50%
  spillway import pytorch trace.json --names names.tsv -o step.graph.json.gz

To record both traces in PyTorch, with two active steps:
  from torch.profiler import ExecutionTraceObserver, profile, schedule

  observer = ExecutionTraceObserver().register_callback(\"trace.json\")
  with profile(
      schedule=schedule(wait=1, warmup=1, active=2, repeat=1),
      execution_trace_observer=observer,
      on_trace_ready=lambda profiler: profiler.export_chrome_trace(\"kineto.json\"),
  ) as profiler:
      for _ in range(4):
          train_step()
          profiler.step()

Times come from the Kineto trace. Without a Kineto trace, they are roofline estimates.";

/// Make a graph from a recorded trace or from a chain of layers.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    from: From,
}

#[derive(Subcommand, Debug)]
enum From {
    Pytorch(Pytorch),
    Chain(Chain),
}

/// Make the graph of a chain of layers.
#[derive(Args, Debug)]
struct Chain {
    /// The chain (.json, .json.gz), or - for standard input
    chain: PathBuf,
    #[command(flatten)]
    renamed: Renamed,
    /// Write the graph to this file [default: standard output]
    #[arg(short, long, value_name = "GRAPH")]
    output: Option<PathBuf>,
}

/// Make the graph of one iteration of a PyTorch execution trace.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct Pytorch {
    /// The execution trace (.json, .json.gz), or - for standard input
    trace: PathBuf,
    /// The Kineto trace of the same run, with the times of kernels (on a CPU, of operators)
    #[arg(long, value_name = "FILE")]
    kineto: Option<PathBuf>,
    /// The device whose memory will be planned
    #[arg(long, value_enum, default_value = "cuda")]
    device: Device,
    #[command(flatten)]
    renamed: Renamed,
    /// The graph's name [default: the trace's file name]
    #[arg(long)]
    name: Option<String>,
    /// Write the graph to this file [default: standard output]
    #[arg(short, long, value_name = "GRAPH")]
    output: Option<PathBuf>,
}

/// New names for tensors and ops.
#[derive(Args, Debug)]
struct Renamed {
    /// Rename tensors and ops with this file; each line has a name, a tab and the new name
    #[arg(long, value_name = "FILE")]
    names: Option<PathBuf>,
}

impl Renamed {
    fn apply(&self, graph: &mut OwnedGraph) -> Result<(), Failure> {
        let Some(path) = &self.names else { return Ok(()) };
        renaming::rename(graph, &load(path)?)
            .map_err(|error| Failure::bad_input(format!("{}: {error}", Shown::path(path))))
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Device {
    /// Tensors on CUDA devices
    Cuda,
    /// Tensors in main memory, for traces from machines without an accelerator
    Cpu,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.from {
        From::Pytorch(arguments) => import_trace(arguments),
        From::Chain(arguments) => import_chain(arguments),
    }
}

fn load(path: &Path) -> Result<Vec<u8>, Failure> {
    format::load(path).map_err(|error| Failure::reading(&error))
}

fn import_chain(Chain { chain: path, renamed, output }: &Chain) -> Result<(), Failure> {
    output::check(&[Some(path), renamed.names.as_deref()], &[output], false)?;
    let chain = format::read_chain(&load(path)?);
    let chain = chain.map_err(|error| Failure::reading(&error.in_file(path)))?;
    let layers = [("layers", count(chain.layers.len() as u64))];
    let mut graph = chain.graph();
    renamed.apply(&mut graph)?;
    graph_file::write(&graph, &layers, output.as_deref())
}

fn import_trace(arguments: &Pytorch) -> Result<(), Failure> {
    let names = arguments.renamed.names.as_deref();
    let inputs = [Some(arguments.trace.as_path()), arguments.kineto.as_deref(), names];
    output::check(&inputs, &[&arguments.output], false)?;
    let trace = load(&arguments.trace)?;
    let kineto = arguments.kineto.as_deref().map(load).transpose()?;
    let name = arguments.name.clone().unwrap_or_else(|| stem(&arguments.trace));
    let device = match arguments.device {
        Device::Cuda => pytorch::Device::Cuda,
        Device::Cpu => pytorch::Device::Cpu,
    };
    let (mut graph, report) = pytorch::import_with_report(&trace, kineto.as_deref(), device, &name)
        .map_err(|error| failure(&error, arguments))?;
    arguments.renamed.apply(&mut graph)?;
    graph_file::write(&graph, &found(&report, arguments.device), arguments.output.as_deref())?;
    warnings(&report).iter().for_each(|warning| output::note(&format!("warning: {warning}")));
    Ok(())
}

/// A file's name without its endings.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let name = name.strip_suffix(".gz").unwrap_or(&name);
    let name = name.strip_suffix(".json").unwrap_or(name);
    if name == "-" { "pytorch".to_owned() } else { name.to_owned() }
}

fn failure(error: &ImportError, arguments: &Pytorch) -> Failure {
    let kineto = arguments.kineto.as_deref().unwrap_or(Path::new("-"));
    let (trace, kineto) = (Shown::path(&arguments.trace), Shown::path(kineto));
    match error {
        ImportError::Malformed { source: Source::Kineto, .. }
        | ImportError::Text { source: Source::Kineto, .. } => {
            Failure::bad_input(format!("{kineto}: {error}"))
        }
        ImportError::NoStepMatches | ImportError::NoKernelMatches => {
            Failure::cannot(format!("{trace} and {kineto}: {error}"))
        }
        ImportError::OnlyCpu => {
            Failure::bad_input(format!("{trace}: {error}: import it with --device cpu"))
        }
        _ => Failure::bad_input(format!("{trace}: {error}")),
    }
}

/// Further findings of the import, for the summary.
fn found(report: &Report, device: Device) -> Vec<(&'static str, String)> {
    let step = report.step.as_deref().unwrap_or("the whole trace");
    let mut rows = vec![("iteration", Shown::name(step).to_string())];
    rows.push(match report.kineto {
        None => ("times", "roofline estimates".to_owned()),
        Some(kineto) => {
            let (kernels, with_op) = (kineto.kernels as u64, kineto.kernels_with_op as u64);
            let (share, with_op) = (percent(with_op, kernels), count(with_op));
            let (kernels, ops) = (count(kernels), count(kineto.ops_with_kernel as u64));
            let what = match device {
                Device::Cuda => "kernels",
                Device::Cpu => "operators",
            };
            ("times", format!("{with_op} of {kernels} {what} ({share}) belong to {ops} ops"))
        }
    });
    rows
}

/// Warnings about behaviour of the recorded program that the graph lacks.
fn warnings(report: &Report) -> Vec<String> {
    let found = |nodes: &Nodes| {
        let (number, first) = (count(nodes.count as u64), Shown::name(&nodes.first));
        format!("{number}, the first is {first}")
    };
    let compiled = report.compiled_regions.as_ref().map(|regions| {
        let found = found(regions);
        format!("compiled regions: {found}; the trace and the graph lack their kernels")
    });
    let waits = report.synchronisations.as_ref().map(|waits| {
        let found = found(waits);
        format!("synchronisations: {found}; a plan runs the recorded ops, whatever the host reads")
    });
    compiled.into_iter().chain(waits).collect()
}
