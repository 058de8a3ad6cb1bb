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
    use crate::plan::{Location, Part, Placements, Plan, Pool, Prediction, Step};
    use crate::schedule::Scheduled;
    use crate::timeline::predict;
    use crate::verify::verify;

    /// Counts the mappings of a plan with placements. Of its only tensor, only object `first` is ever
    /// on the device.
    fn mappings_of_one(
        object_bytes: u64,
        tensor_bytes: u64,
        first: u64,
    ) -> Result<Mappings, PlanError> {
        let tensors = [Tensor { bytes: tensor_bytes, kind: Kind::State }];
        let ops = [Op::new(1)];
        let mut memory = [0; 2000];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&tensors, &ops, &[], &mut scratch.reborrow()).unwrap();
        let parameters = MachineParameters::new()
            .with_device_bytes(object_bytes)
            .with_host_bytes(u64::MAX)
            .with_chunk_bytes(1)
            .with_h2d_bytes_per_s(object_bytes)
            .with_d2h_bytes_per_s(object_bytes);
        let machine = Machine::new(parameters).unwrap();
        let part = Part { first, count: 1, ..Part::whole(TensorId(0)) };
        let mut plan = Plan {
            budget_bytes: object_bytes,
            arena_bytes: 0,
            arena: &[],
            pools: &[Pool { object_bytes, count: 1 }],
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
        mappings(&verified, &mut scratch)
    }

    #[test]
    fn a_range_of_2_to_64_chunks_counts_as_the_most_that_fit_into_64_bits() {
        const OBJECT_BYTES: u64 = 1 << 40;
        let found = mappings_of_one(OBJECT_BYTES, u64::MAX - OBJECT_BYTES / 2, 0).unwrap();
        assert_eq!(found, Mappings { count: 2, bytes: u64::MAX });
    }

    #[test]
    fn a_piece_of_more_objects_than_fit_into_32_bits_is_refused() {
        const OBJECTS: u64 = (1 << 32) + 8;
        let found = mappings_of_one(1, OBJECTS, OBJECTS - 4);
        assert_eq!(found, Err(PlanError::Overflow(Location::Step(0))));
    }
}
