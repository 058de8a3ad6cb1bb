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

Plans are predicted with the speeds of copies both ways at once: plans wait for links when both
are in use. The file has those of one way beside them. SPILLWAY_CUDA_DEVICE=N picks a device by its number. The device should have nothing else
to do.";

/// Measure a CUDA device of this machine, and write the machine file that plans are made for
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Arguments {
    /// Size of chunks, a multiple of the device's pages [default: 2MiB, or the device's pages
    /// where they are larger]
    #[arg(long, value_name = "SIZE", value_parser = chunk_bytes)]
    chunk: Option<u64>,
    /// The machine's name, which plans refer to [default: the device's name]
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
    let bytes = parse_bytes(text).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| "the chunk size must be a size such as 2MiB".to_owned())
}

/// Measures nothing: the program is built without CUDA.
#[cfg(not(feature = "cuda"))]
pub(crate) fn run(_: &Arguments) -> Result<(), crate::failure::Failure> {
    Err(crate::failure::Failure::without("cuda"))
}
