//! The work: a graph or chain file, standard input, or a model spec.

use crate::failure::Failure;
use spillway::Graph;
use std::path::Path;
use workloads::format::{self, Document};
use workloads::{OwnedGraph, OwnedMachine, Shown};
use zoo::models::{self, SpecError};

/// Whether an argument means a file. It may also be a name.
pub(crate) fn is_file(argument: &str) -> bool {
    argument == "-"
        || argument.ends_with(".json")
        || argument.ends_with(".gz")
        || argument.contains(std::path::is_separator)
        || Path::new(argument).exists()
}

/// The work that a WORK argument names.
#[derive(Clone, Debug)]
pub(crate) struct Work {
    /// The graph to run.
    pub(crate) graph: Graph,
    /// The machine in the file, if the file holds a chain.
    pub(crate) machine: Option<OwnedMachine>,
}

/// The file that a WORK argument names. A model's name never means a file, even if the file exists.
pub(crate) fn file(work: &str) -> Option<&Path> {
    let name = work.split(':').next().unwrap_or(work);
    let is_model = models::list().iter().any(|model| model.name == name);
    (!is_model && is_file(work)).then_some(Path::new(work))
}

/// Loads or generates the work that a WORK argument names.
pub(crate) fn load(work: &str) -> Result<Work, Failure> {
    match file(work) {
        Some(path) => from_file(path),
        None => Ok(Work { graph: checked(generate(work)?)?, machine: None }),
    }
}

/// Generates the graph of a model spec.
pub(crate) fn generate(spec: &str) -> Result<OwnedGraph, Failure> {
    let shown = Shown::name(spec);
    models::generate(spec).map_err(|error| match &error {
        SpecError::Graph(_) => Failure::cannot(format!("{shown}: {error}")),
        SpecError::UnknownModel(_) => {
            Failure::bad_input(format!("{error} (and no file has that name)"))
        }
        _ => Failure::bad_input(format!("{shown}: {error}")),
    })
}

fn from_file(path: &Path) -> Result<Work, Failure> {
    let bytes = format::load(path).map_err(|error| Failure::reading(&error))?;
    let in_file = |error: format::FormatError| Failure::reading(&error.in_file(path));
    if format::document(&bytes).map_err(in_file)? == Document::Chain {
        let chain = format::read_chain(&bytes).map_err(in_file)?;
        let machine = chain
            .machine()
            .map_err(|error| Failure::bad_input(format!("{}: {error}", Shown::path(path))))?;
        return Ok(Work { graph: checked(chain.graph())?, machine: Some(machine) });
    }
    let graph = format::read_graph(&bytes).map_err(in_file)?;
    Ok(Work { graph: checked(graph)?, machine: None })
}

fn checked(graph: OwnedGraph) -> Result<Graph, Failure> {
    Graph::new(graph).map_err(|error| Failure::cannot(error.to_string()))
}
