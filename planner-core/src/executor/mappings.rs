//! What a plan maps, counted ahead of a run.

use super::memory::Memory;
use super::spares::SetUp;
use crate::machine::Machine;
use crate::plan::PlanError;
use crate::scratch::Scratch;
use crate::switch::{ChunkMap, ChunkRun};
use crate::verify::Verified;

/// What an [`Executor`](super::Executor) maps for a plan on a device of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mappings {
    /// Rows of addresses with consecutive chunks behind them, or with nothing between two such rows.
    /// For a plan that is mapped as it runs, the most that there can be at once.
    pub count: u64,
    /// The addresses of all of them. A chunk counts in each row that it is in.
    pub bytes: u64,
}

impl Mappings {
    /// Everything is mapped, and nothing unmapped.
    #[must_use]
    pub fn set_up(self, machine: &Machine) -> SetUp {
        // A machine's chunk has bytes.
        let mapped_chunks = self.bytes.checked_div(machine.chunk_bytes).unwrap_or(0);
        SetUp { mapped_chunks, unmapped_chunks: 0 }
    }
}

/// Counts what an executor maps, in as much scratch as the executor has. O(objects).
///
/// # Errors
/// Scratch that is too small.
pub fn mappings<'a>(
    verified: &Verified<'a>,
    scratch: &mut Scratch<'a>,
) -> Result<Mappings, PlanError> {
    let count = crate::switch::chunks(verified);
    let all = scratch.take(1, ChunkRun { first: 0, device_first: 0, count })?;
    let memory = Memory::new(verified, ChunkMap(all), scratch)?;
    let mut chunks = 0u64;
    memory.each_range(|_, its_chunks, _| chunks = chunks.saturating_add(its_chunks));
    let bytes = chunks.saturating_mul(verified.machine().chunk_bytes);
    Ok(Mappings { count: memory.mappings(), bytes })
}
