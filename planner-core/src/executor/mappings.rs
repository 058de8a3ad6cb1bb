//! Counts the mappings that a plan needs, before it runs.

use super::memory::Memory;
use super::spares::SetUp;
use crate::machine::Machine;
use crate::plan::PlanError;
use crate::scratch::Scratch;
use crate::switch::{ChunkMap, ChunkRun};
use crate::verify::Verified;

/// The mappings that an [`Executor`](super::Executor) makes for a plan on a device of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mappings {
    /// Rows of addresses with consecutive chunks mapped, or with nothing mapped between two such
    /// rows. For a plan that is mapped as it runs, an upper bound of the rows at one time.
    pub count: u64,
    /// The bytes of all rows. A chunk counts once for each row that maps it.
    pub bytes: u64,
}

impl Mappings {
    /// The set-up in which everything is mapped and nothing unmapped.
    #[must_use]
    pub fn set_up(self, machine: &Machine) -> SetUp {
        // A machine's chunk has bytes, so the division has a result.
        let mapped_chunks = self.bytes.checked_div(machine.chunk_bytes).unwrap_or(0);
        SetUp { mapped_chunks, unmapped_chunks: 0 }
    }
}

/// Counts the mappings that an executor makes on a device without a limit of its ranges, in as much
/// scratch as the executor takes.
/// O(objects).
///
/// # Errors
/// Scratch that is too small.
pub fn mappings<'a>(
    verified: &Verified<'a>,
    scratch: &mut Scratch<'a>,
) -> Result<Mappings, PlanError> {
    let count = crate::switch::chunks(verified);
    let all = scratch.take(1, ChunkRun { first: 0, device_first: 0, count })?;
    let memory = Memory::new(verified, ChunkMap(all), u64::MAX, scratch)?;
    let mut chunks = 0u64;
    memory.each_range(|_, its_chunks, _| chunks = chunks.saturating_add(its_chunks));
    let bytes = chunks.saturating_mul(verified.machine().chunk_bytes);
    Ok(Mappings { count: memory.mappings(), bytes })
}
