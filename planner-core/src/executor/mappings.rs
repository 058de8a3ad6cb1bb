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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Kind, Op, OpId, Tensor, TensorId};
    use crate::host::HostLayout;
    use crate::lower::lower;
    use crate::machine::MachineParameters;
    use crate::plan::{Part, Placements, Plan, Pool, Prediction, Step};
    use crate::schedule::Scheduled;
    use crate::timeline::predict;
    use crate::verify::verify;

    const OBJECT_BYTES: u64 = 1 << 40;

    /// One of 2^24 objects of a tensor is ever on the device, but all are in its range.
    #[test]
    fn a_range_of_2_to_64_chunks_counts_as_the_most_that_fit_into_64_bits() {
        let tensors = [Tensor { bytes: u64::MAX - OBJECT_BYTES / 2, kind: Kind::State }];
        let ops = [Op::new(1)];
        let mut memory = [0; 2000];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&tensors, &ops, &[], &mut scratch.reborrow()).unwrap();
        let parameters = MachineParameters::new()
            .with_device_bytes(OBJECT_BYTES)
            .with_host_bytes(u64::MAX)
            .with_chunk_bytes(1)
            .with_h2d_bytes_per_s(OBJECT_BYTES)
            .with_d2h_bytes_per_s(OBJECT_BYTES);
        let machine = Machine::new(parameters).unwrap();
        let part = Part { first: 0, count: 1, ..Part::whole(TensorId(0)) };
        let mut plan = Plan {
            budget_bytes: OBJECT_BYTES,
            arena_bytes: 0,
            arena: &[],
            pools: &[Pool { object_bytes: OBJECT_BYTES, count: 1 }],
            tensor_pool: &[],
            workspace_pool: &[],
            resident_at_start: &[],
            steps: &[Step::Prefetch(part), Step::launch(OpId(0)), Step::Evict(part)],
            placements: Some(Placements { iterations: 1, objects: &[0], ends: &[1] }),
            predicted: Prediction::default(),
        };
        let mut entries = [Scheduled::EMPTY; 3];
        let schedule = lower(&graph, &machine, &plan, &mut entries, &mut scratch.reborrow());
        let schedule = schedule.unwrap();
        let (predicted, _) = predict(&graph, &machine, &plan, &schedule, &mut scratch).unwrap();
        let host = HostLayout::new(&graph, &machine, &plan, &mut scratch.reborrow()).unwrap();
        plan.predicted = Prediction { host_bytes: host.moved_bytes(), ..predicted };
        let verified = verify(&graph, &machine, &plan, &schedule, &mut scratch.reborrow()).unwrap();
        let found = mappings(&verified, &mut scratch).unwrap();
        assert_eq!(found, Mappings { count: 2, bytes: u64::MAX });
    }
}
