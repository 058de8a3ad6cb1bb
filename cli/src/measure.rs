//! `spillway measure`.

#[cfg(feature = "cuda")]
mod cuda;

#[cfg(feature = "cuda")]
pub(crate) use cuda::run;

use clap::Args;
use spillway::units::parse_bytes;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  spillway measure -o machine.json
  spillway plan step.graph.json.gz --machine machine.json --budget 50% -o plan.json
  spillway run step.graph.json.gz --plan plan.json --machine machine.json --backend cuda

Predictions use the copy speeds measured while both directions are busy, because plans wait for
copies mostly at such times. The machine file also records the speeds of each direction alone.
SPILLWAY_CUDA_DEVICE=N selects the device with the number N. No other program should use the device
during the measurement.";

/// Measure a CUDA device of this machine, and write a machine file to plan with
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// The chunk size, a multiple of the device's page size [default: 2MiB, or the page size if it
    /// is larger]
    #[arg(long, value_name = "SIZE", value_parser = chunk_bytes)]
    chunk: Option<u64>,
    /// The machine's host memory, for example 64GiB. The command fails if the memory cannot be pinned
    /// [default: the memory that can be pinned]
    #[arg(long, value_name = "SIZE", value_parser = host_bytes)]
    host: Option<u64>,
    /// The machine's name, by which plans refer to it [default: the device's name]
    #[arg(long)]
    name: Option<String>,
    /// Write the machine to this file
    #[arg(short, long, value_name = "MACHINE")]
    output: Option<PathBuf>,
    /// Print one JSON object and nothing else
    #[arg(long)]
    pub(crate) json: bool,
}

fn chunk_bytes(text: &str) -> Result<u64, String> {
    size(text).ok_or_else(|| "the chunk size must be a size such as 2MiB".to_owned())
}

fn host_bytes(text: &str) -> Result<u64, String> {
    size(text).ok_or_else(|| "the host memory must be a size such as 64GiB".to_owned())
}

fn size(text: &str) -> Option<u64> {
    parse_bytes(text).filter(|&bytes| bytes > 0)
}

/// Fails, because the program is built without CUDA.
#[cfg(not(feature = "cuda"))]
pub(crate) fn run(_: &Arguments) -> Result<(), crate::failure::Failure> {
    Err(crate::failure::Failure::without("cuda"))
}
