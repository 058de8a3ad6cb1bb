//! Writes a graph that the program has made, with a summary.

use crate::failure::Failure;
use crate::machine;
use crate::output;
use spillway::figures::ByKind;
use spillway::planning;
use spillway::units::{bytes, count, time};
use std::path::Path;
use workloads::{OwnedGraph, Shown, format};

/// Writes a graph to a file and its summary to standard output. Without a file, writes the graph
/// to standard output and the summary to standard error.
pub(crate) fn write(
    graph: &OwnedGraph,
    more: &[(&str, String)],
    path: Option<&Path>,
) -> Result<(), Failure> {
    let summary = summary(graph, more)?;
    let path = path.unwrap_or(Path::new("-"));
    output::save(path, &format::write_graph(graph))?;
    output::summarize(&summary, output::is_stdout(path))
}

fn summary(work: &OwnedGraph, more: &[(&str, String)]) -> Result<String, Failure> {
    let graph = work.graph().map_err(|error| Failure::cannot(error.to_string()))?;
    let (mut counts, mut sizes) = (ByKind::default(), ByKind::default());
    for tensor in &work.tensors {
        counts.add(tensor.kind, 1);
        sizes.add(tensor.kind, tensor.bytes);
    }
    let machine = machine::find(machine::DEFAULT)?.machine;
    let peak_bytes = planning::in_core_peak_bytes(&graph, &machine)
        .map_err(|error| Failure::cannot(error.to_string()))?;
    let of = |number, size| format!("{} of {}", count(number), bytes(size));
    let mut rows = vec![
        (
            "ops",
            format!("{}, {} of compute", count(work.ops.len() as u64), time(graph.compute_ns())),
        ),
        ("states", of(counts.state, sizes.state)),
        ("inputs", of(counts.input, sizes.input)),
        ("temporaries", of(counts.temporary, sizes.temporary)),
        ("in-core", format!("{} in chunks of {}", bytes(peak_bytes), bytes(machine.chunk_bytes))),
    ];
    rows.extend(more.iter().cloned());
    let lines = rows.iter().map(|(name, value)| format!("  {name:<13}{value}\n"));
    Ok(format!("{}\n{}", Shown::name(&work.name), lines.collect::<String>()))
}
