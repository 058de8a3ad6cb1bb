//! `spillway export`.

use crate::failure::Failure;
use crate::{machine, output, work};
use clap::{Args, Subcommand};
use spillway::units::{bytes, count, time};
use std::path::{Path, PathBuf};
use workloads::chain::Layer;
use workloads::{OwnedChain, Shown, format};
use zoo::layers;

const EXAMPLES: &str = "\
Examples:
  spillway export chain gpt:batch=8,layers=24,width=1024 --recompute -o gpt.chain.json
  spillway export chain step.graph.json.gz --machine a100-pcie4 | spillway plan - --strategy weights

The chain's memory is the machine's memory without the tensors that several layers share and
without the largest temporary need of a layer.";

/// Convert work to another format.
#[derive(Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    to: To,
}

#[derive(Subcommand, Debug)]
enum To {
    Chain(Chain),
}

/// Convert a training step to a chain of layers, for weight offloading.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
struct Chain {
    /// A graph file, - for standard input, or a model spec
    work: String,
    /// A machine file or the name of a built-in machine (`--machine list` shows them)
    #[arg(short, long)]
    machine: Option<String>,
    /// Keep only the outputs of each layer, and recompute the layer for its backward op
    #[arg(long)]
    recompute: bool,
    /// Write the chain to this file [default: standard output]
    #[arg(short, long, value_name = "CHAIN")]
    output: Option<PathBuf>,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let To::Chain(Chain { work: name, machine, recompute, output: path }) = &arguments.to;
    let inputs = [work::file(name), machine.as_deref().and_then(machine::file)];
    output::check(&inputs, &[path], false)?;
    let work = work::load(name)?;
    let on = machine::choose(machine.as_deref(), work.machine)?;
    let chain = layers::chain(work.graph.owned(), &on, *recompute).map_err(|error| {
        let (name, on) = (Shown::name(name), Shown::name(&on.name));
        Failure::cannot(format!("{name} on {on}: {error}"))
    })?;
    let path = path.as_deref().unwrap_or(Path::new("-"));
    output::save(path, &format::write_chain(&chain))?;
    output::summarize(&summary(&chain), output::is_stdout(path))
}

fn summary(chain: &OwnedChain) -> String {
    let sum = |of: fn(&Layer) -> u64| chain.layers.iter().map(of).sum::<u64>();
    let compute_ns = sum(|layer| layer.forward_ns) + sum(|layer| layer.backward_ns);
    let layers = chain.layers.len() as u64;
    let rows = [
        ("layers", format!("{}, {} of compute", count(layers), time(compute_ns))),
        ("weights", bytes(sum(|layer| layer.weight_bytes))),
        ("optimizer", bytes(sum(|layer| layer.optimizer_bytes))),
        ("activations", bytes(sum(|layer| layer.activation_bytes))),
        ("memory", bytes(chain.device_bytes)),
    ];
    let lines = rows.iter().map(|(name, value)| format!("  {name:<13}{value}\n"));
    format!("{}\n{}", Shown::name(&chain.name), lines.collect::<String>())
}
