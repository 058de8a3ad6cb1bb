//! Measures what mapping and copying cost on a device, how long plans take with kernels that
//! last as long as was recorded, and judges what was predicted of them: the tables of
//! `docs/research/cuda.md`. Its arguments are graph files and model specs; `backend-cuda/measure` runs
//! it.

mod judge;
mod kernels;
mod order;
mod plans;
mod run;
mod tables;

use backend_cuda::{Cuda, Integrity, Measured, Measurement, Options};
use kernels::Occupying;
use planner_core::Graph;
use std::process::ExitCode;
use workloads::{OwnedGraph, format};
use zoo::models;

/// Where plans run, and what is known of it.
struct Bench {
    cuda: Cuda,
    ordinal: usize,
    measured: Measured,
    occupying: Occupying,
}

/// Some work with its name.
struct Work {
    name: String,
    graph: OwnedGraph,
}

impl Work {
    fn load(name: &str) -> Result<Self, String> {
        let graph = if name.ends_with(".json") || name.ends_with(".gz") {
            let bytes = format::load(name).map_err(|error| error.to_string())?;
            format::read_graph(&bytes).map_err(|error| format!("{name}: {error}"))?
        } else {
            models::generate(name).map_err(|error| format!("{name}: {error}"))?
        };
        let file = name.rsplit('/').next().unwrap_or(name);
        let name = file.split(".graph.json").next().unwrap_or(file).to_owned();
        Ok(Self { name, graph })
    }

    fn graph(&self) -> Result<Graph<'_>, String> {
        self.graph.graph().map_err(|error| error.to_string())
    }
}

fn main() -> ExitCode {
    match figures() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

/// Prints everything; whether all that could be planned has run.
fn figures() -> Result<bool, String> {
    let works = std::env::args().skip(1).map(|name| Work::load(&name));
    let works = works.collect::<Result<Vec<_>, _>>()?;
    let Integrity { driver, ordinal } = Integrity::from_environment()?;
    let cuda = Cuda::load(driver.as_deref())?;
    let options = Options { ordinal, chunk_bytes: None };
    let measured = cuda.measure(&Measurement { options, host_bytes: None }, |done, of| {
        if done.is_multiple_of(6) {
            note(&format!("copies: {done} of {of}"));
        }
    })?;
    println!("{}, driver {}\n", measured.info.name, measured.info.driver);
    tables::mapping(&cuda, &measured, ordinal)?;
    tables::copies(&measured);
    tables::machine(&measured);
    let occupying = Occupying::measure(&cuda, &options)?;
    occupying.print();
    println!(
        "Its timer ticks every {} ns. An op may last up to a tick longer. If the ops of less than ten \
         ticks may add more than the tolerance to a period, the period is not judged.\n",
        measured.costs.tick_ns
    );
    let bench = Bench { cuda, ordinal, measured, occupying };
    let periods = plans::measure(&bench, &works)?;
    let order = order::measure(&bench, &works)?;
    Ok(periods && order)
}

/// Shows progress on standard error.
fn note(text: &str) {
    eprintln!("{text}");
}
