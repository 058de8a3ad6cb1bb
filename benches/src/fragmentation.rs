//! The largest budget with which a run fits the device, for each memory manager.

use backend_sim::contiguous::{CachingAllocator, ReplayError, SizeClasses, replay};
use planner_core::planner::{PlanningError, Request, Strategy};
use planner_core::{Graph, Machine, Plan};
use spillway::planning::Buffers;
use std::error::Error;

/// The number of iterations of a run. After these, the memory use no longer changes.
const ITERATIONS: u64 = 16;

/// Allocators round contiguous blocks to multiples of this size, and so do the plans.
const BLOCK_STEP_BYTES: u64 = 512;

/// The memory manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// Pages of this size behind virtual addresses, in bytes.
    Pages(u64),
    /// A best-fit caching allocator.
    BestFit,
    /// Pools of blocks of one size each.
    SizeClasses,
}

/// The largest budget with which a run fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Largest {
    /// The budget of the plan.
    pub budget_bytes: u64,
    /// The most memory that the run takes from the device.
    pub taken_bytes: u64,
    /// The segments that each iteration takes from the driver. 0 with pages.
    pub segments_per_iteration: u64,
    /// The plan's period.
    pub period_ns: u64,
}

/// Tries all multiples of `step_bytes` from the device's memory down, because a run may fit with
/// one budget and not with a smaller one. With pages, the first plan fits, because it keeps its
/// budget. `None` if no budget fits.
///
/// # Errors
/// A plan moves parts of tensors in contiguous memory, or planning fails for another reason than a
/// budget that is too small.
pub fn largest_budget(
    graph: &Graph<'_>,
    machine: &Machine,
    strategy: Strategy,
    manager: Manager,
    step_bytes: u64,
) -> Result<Option<Largest>, Box<dyn Error>> {
    let chunk_bytes = match manager {
        Manager::Pages(bytes) => bytes,
        Manager::BestFit | Manager::SizeClasses => BLOCK_STEP_BYTES,
    };
    let machine = Machine::new((**machine).with_chunk_bytes(chunk_bytes))?;
    let mut buffers = Buffers::default();
    for steps in (1..=machine.device_bytes / step_bytes).rev() {
        let budget_bytes = steps * step_bytes;
        let request = Request { graph, machine: &machine, budget_bytes };
        let plan = match buffers.plan(&request, strategy) {
            Err(PlanningError::Infeasible { .. }) => return Ok(None),
            plan => plan?,
        };
        if let Some((taken_bytes, segments_per_iteration)) = run(graph, &machine, &plan, manager)? {
            let period_ns = plan.predicted.period_ns;
            let largest = Largest { budget_bytes, taken_bytes, segments_per_iteration, period_ns };
            return Ok(Some(largest));
        }
    }
    Ok(None)
}

/// Returns the bytes that a run takes from the device, and its segments per iteration, if it fits.
fn run(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    manager: Manager,
) -> Result<Option<(u64, u64)>, ReplayError> {
    let device_bytes = machine.device_bytes;
    let usage = match manager {
        Manager::Pages(_) => return Ok(Some((plan.predicted.peak_bytes, 0))),
        Manager::BestFit => {
            replay(graph, plan, ITERATIONS, &mut CachingAllocator::new(device_bytes))
        }
        Manager::SizeClasses => {
            replay(graph, plan, ITERATIONS, &mut SizeClasses::new(device_bytes))
        }
    };
    match usage {
        Ok(usage) => Ok(Some((usage.reserved_bytes, usage.segments_per_iteration))),
        Err(ReplayError::OutOfMemory { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training_step;
    use planner_core::planner::Auto;
    use workloads::machines;

    const MIB: u64 = 1 << 20;

    fn machine(device_bytes: u64) -> Machine {
        machines::builtin("v100-nvlink").unwrap().machine.with_device_bytes(device_bytes)
    }

    #[test]
    fn contiguous_memory_takes_a_smaller_budget_than_pages() {
        let owned = training_step(300);
        let (graph, machine) = (owned.graph().unwrap(), machine(96 * MIB));
        let largest = |manager| {
            largest_budget(&graph, &machine, Strategy::OnDemand, manager, MIB).unwrap().unwrap()
        };
        let pages = largest(Manager::Pages(2 * MIB));
        assert_eq!(pages.budget_bytes, machine.device_bytes);
        for manager in [Manager::BestFit, Manager::SizeClasses] {
            let largest = largest(manager);
            assert!(largest.budget_bytes < pages.budget_bytes, "{manager:?}: {largest:?}");
            assert!(largest.taken_bytes <= machine.device_bytes, "{manager:?}: {largest:?}");
            assert!(largest.period_ns > pages.period_ns, "{manager:?}: {largest:?}");
        }
    }

    #[test]
    fn a_device_may_be_too_small() {
        let owned = training_step(300);
        let graph = owned.graph().unwrap();
        for manager in [Manager::Pages(2 * MIB), Manager::BestFit] {
            let largest =
                largest_budget(&graph, &machine(8 * MIB), Strategy::Vdnn, manager, MIB).unwrap();
            assert_eq!(largest, None, "{manager:?}");
        }
    }

    #[test]
    fn parts_of_tensors_are_refused_in_contiguous_memory() {
        let owned = training_step(300);
        let graph = owned.graph().unwrap();
        let auto = Strategy::Auto(Auto::new().with_effort(2));
        let largest = |manager| largest_budget(&graph, &machine(128 * MIB), auto, manager, MIB);
        assert!(largest(Manager::Pages(2 * MIB)).unwrap().is_some());
        let error = largest(Manager::BestFit).unwrap_err().to_string();
        assert!(error.contains("on-demand, fit, vdnn, lms or window"), "{error}");
    }
}
