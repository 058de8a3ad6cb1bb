//! Bounds of the linear program, kept in a file: what takes minutes is solved once.

use flate2::Crc;
use planner_core::{Graph, Machine};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fs, io};
use workloads::{OwnedGraph, format};

/// Everything that a bound depends on; names are for people.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Key {
    graph: String,
    /// Of the graph's file.
    crc32: u32,
    h2d_bytes_per_s: u64,
    d2h_bytes_per_s: u64,
    chunk_bytes: u64,
    /// In whole chunks, since a plan has no use for the rest.
    budget_bytes: u64,
}

/// A bound, and how long it took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Solved {
    period_ns: u64,
    seconds: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    key: Key,
    #[serde(flatten)]
    solved: Solved,
}

/// Solves for a bound, in nanoseconds; none where there is no solver, or no plan.
type Solve = fn(&Graph<'_>, &Machine, u64) -> Result<Option<u64>, Box<dyn Error>>;

/// A file of bounds, one a line, in the order of graphs, links and budgets.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    bounds: BTreeMap<Key, Solved>,
    solve: Solve,
}

impl Record {
    /// Reads a file; one that is not there holds nothing.
    ///
    /// # Errors
    /// A file that cannot be read or is malformed.
    pub(crate) fn open(path: &Path, solve: Solve) -> Result<Self, Box<dyn Error>> {
        let entries: Vec<Entry> = match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let bounds = entries.into_iter().map(|Entry { key, solved }| (key, solved)).collect();
        Ok(Self { path: path.to_owned(), bounds, solve })
    }

    /// The bound in nanoseconds: from the file, or solved now and written there. For solving,
    /// `about_to_solve` is called first.
    ///
    /// # Errors
    /// A solver that fails; a file that cannot be written.
    pub(crate) fn bound_ns(
        &mut self,
        graph: &OwnedGraph,
        machine: &Machine,
        budget_bytes: u64,
        about_to_solve: impl FnOnce(),
    ) -> Result<Option<u64>, Box<dyn Error>> {
        let key = Key {
            graph: graph.name.clone(),
            crc32: crc32(graph),
            h2d_bytes_per_s: machine.h2d_bytes_per_s,
            d2h_bytes_per_s: machine.d2h_bytes_per_s,
            chunk_bytes: machine.chunk_bytes,
            budget_bytes: budget_bytes - budget_bytes % machine.chunk_bytes.max(1),
        };
        if let Some(solved) = self.bounds.get(&key) {
            return Ok(Some(solved.period_ns));
        }
        about_to_solve();
        let started = Instant::now();
        let period_ns = (self.solve)(&graph.graph()?, machine, budget_bytes)?;
        let seconds = (started.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        if let Some(period_ns) = period_ns {
            self.bounds.insert(key, Solved { period_ns, seconds });
            self.save()?;
        }
        Ok(period_ns)
    }

    fn save(&self) -> io::Result<()> {
        let entries = self.bounds.iter().map(|(key, &solved)| Entry { key: key.clone(), solved });
        let lines: Result<Vec<_>, _> = entries.map(|entry| serde_json::to_string(&entry)).collect();
        let text = format!("[\n{}\n]\n", lines?.join(",\n"));
        let unfinished = self.path.with_extension("unfinished");
        fs::write(&unfinished, text)?;
        fs::rename(unfinished, &self.path)
    }
}

fn crc32(graph: &OwnedGraph) -> u32 {
    let mut crc = Crc::new();
    crc.update(&format::write_graph(graph));
    crc.sum()
}
