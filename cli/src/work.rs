//! The work: a graph file, standard input, or a model spec.

use crate::failure::Failure;
use std::path::Path;
use workloads::format::{self, Document};
use workloads::models::{self, SpecError};
use workloads::{OwnedGraph, OwnedMachine};

/// Whether an argument that may be a file or a name means a file.
pub(crate) fn is_file(argument: &str) -> bool {
    argument == "-"
        || argument.ends_with(".json")
        || argument.ends_with(".gz")
        || argument.contains(std::path::is_separator)
        || Path::new(argument).exists()
}

/// The graph that a WORK argument names. A model is one even beside a file of its name.
pub(crate) fn load(work: &str) -> Result<OwnedGraph, Failure> {
    let name = work.split(':').next().unwrap_or(work);
    let is_model = models::list().iter().any(|model| model.name == name);
    if !is_model && is_file(work) { from_file(work) } else { generate(work) }
}

/// The graph of a model spec.
pub(crate) fn generate(spec: &str) -> Result<OwnedGraph, Failure> {
    models::generate(spec).map_err(|error| match &error {
        SpecError::Graph(_) => Failure::cannot(format!("{spec}: {error}")),
        SpecError::UnknownModel(_) => {
            Failure::bad_input(format!("{error} (and there is no such file)"))
        }
        _ => Failure::bad_input(format!("{spec}: {error}")),
    })
}

fn from_file(path: &str) -> Result<OwnedGraph, Failure> {
    let bytes = format::load(path).map_err(|error| Failure::reading(&error))?;
    let in_file = |error: format::FormatError| Failure::reading(&error.in_file(path));
    if format::document(&bytes).map_err(in_file)? == Document::Chain {
        return Err(Failure::cannot(format!("{path}: chains are not supported yet")));
    }
    format::read_graph(&bytes).map_err(in_file)
}

/// Where work meets a machine: both with their names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting<'s> {
    /// The work.
    pub(crate) work: &'s OwnedGraph,
    /// Where it runs.
    pub(crate) machine: &'s OwnedMachine,
}
