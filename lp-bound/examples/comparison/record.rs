//! A file of bounds of the linear program, because each bound takes minutes to solve.

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

/// All inputs of a bound. The names are for readers only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Key {
    graph: String,
    /// The hash of the graph's file.
    crc32: u32,
    h2d_bytes_per_s: u64,
    d2h_bytes_per_s: u64,
    chunk_bytes: u64,
    /// The budget in whole chunks, because a plan cannot use the rest.
    budget_bytes: u64,
}

/// A bound, and the time to solve it.
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

/// Solves for a bound, in nanoseconds. `None` if there is no solver, or no plan.
type Solve = fn(&Graph<'_>, &Machine, u64) -> Result<Option<u64>, Box<dyn Error>>;

/// A file of bounds, one per line, ordered by graph, links and budget.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    bounds: BTreeMap<Key, Solved>,
    solve: Solve,
}

impl Record {
    /// Reads a file. A missing file has no bounds.
    ///
    /// # Errors
    /// The file cannot be read, or it is malformed.
    pub(crate) fn open(path: &Path, solve: Solve) -> Result<Self, Box<dyn Error>> {
        let entries: Vec<Entry> = match fs::read(path) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        let bounds = entries.into_iter().map(|Entry { key, solved }| (key, solved)).collect();
        Ok(Self { path: path.to_owned(), bounds, solve })
    }

    /// The bound in nanoseconds. If the file lacks it, calls `about_to_solve`, solves for the bound
    /// and writes it to the file.
    ///
    /// # Errors
    /// The solver fails, or the file cannot be written.
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
