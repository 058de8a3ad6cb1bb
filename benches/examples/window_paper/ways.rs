//! The ways to run a work: combinations of a strategy and a memory manager.

use crate::Result;
use backend_sim::contiguous::{CachingAllocator, replay};
use backend_sim::{SimDevice, SimKernels};
use planner_core::planner::{Auto, Lms, PlanningError, Repeats, Request, Strategy, Window};
use planner_core::{Graph, Launched, Machine, Part, Step, TensorId};
use spillway::{placing, planning};
use spillway_benches::fragmentation::{Largest, Manager, largest_budget};
use workloads::{OwnedGraph, OwnedPlan};

/// The published strategy, which also copies values that the host already holds.
pub(crate) const WINDOW: Strategy = Strategy::Window(Window::new().with_published(true));
pub(crate) const LMS: Strategy = Strategy::Lms(Lms::new());
/// `auto` with each op once.
pub(crate) const ONCE: Strategy = auto(Repeats::Never);
pub(crate) const AUTO: Strategy = auto(Repeats::Allowed);

const fn auto(repeats: Repeats) -> Strategy {
    Strategy::Auto(Auto::new().with_repeats(repeats))
}

/// The chunks of the paper.
pub(crate) const PAPER_CHUNK_BYTES: u64 = 40 << 20;
/// The step between the budgets that are tried with contiguous blocks.
const STEP_BYTES: u64 = 128 << 20;
/// The number of iterations before the measurement, and the number of measured iterations.
const WARM_UP: u64 = 6;
const MEASURED: u64 = 6;

/// The costs of an iteration after the first ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Simulated {
    pub(crate) period_ns: u64,
    pub(crate) map_calls: u64,
    pub(crate) chunks_mapped: u64,
}

/// The in-core period, if all tensors fit.
pub(crate) fn in_core_ns(graph: &Graph<'_>, machine: &Machine) -> Result<Option<u64>> {
    let fits = planning::in_core_peak_bytes(graph, machine)? <= machine.device_bytes;
    Ok(fits.then(|| graph.compute_ns()))
}

/// The largest budget with which a run fits contiguous blocks from a caching allocator.
pub(crate) fn in_blocks(
    graph: &Graph<'_>,
    machine: &Machine,
    strategy: Strategy,
) -> Result<Option<Largest>> {
    largest_budget(graph, machine, strategy, Manager::BestFit, STEP_BYTES)
}

/// The memory that a caching allocator takes for a plan of `window` for this budget, on an
/// unlimited device.
pub(crate) fn blocks_taken(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
) -> Result<Option<u64>> {
    let machine = Machine::new((**machine).with_chunk_bytes(512))?;
    let request = Request { graph, machine: &machine, budget_bytes };
    let Some(plan) = none_if_infeasible(planning::plan(&request, WINDOW))? else {
        return Ok(None);
    };
    let mut allocator = CachingAllocator::new(u64::MAX);
    Ok(Some(replay(graph, &plan.plan(), WARM_UP, &mut allocator)?.reserved_bytes))
}

/// A plan for all of the device's memory, if there is one.
pub(crate) fn in_pages(
    graph: &Graph<'_>,
    machine: &Machine,
    strategy: Strategy,
) -> Result<Option<OwnedPlan>> {
    let request = Request { graph, machine, budget_bytes: machine.device_bytes };
    none_if_infeasible(planning::plan(&request, strategy))
}

/// The plan of [`in_pages`] with fixed objects. If they lengthen the period, tries objects that are
/// fixed over more iterations.
pub(crate) fn in_placements(
    graph: &Graph<'_>,
    machine: &Machine,
    strategy: Strategy,
) -> Result<Option<OwnedPlan>> {
    let Some(plain) = in_pages(graph, machine, strategy)? else { return Ok(None) };
    let request = Request { graph, machine, budget_bytes: machine.device_bytes };
    let (placed, unplaced) = placing::plan(&request, strategy)?;
    if let Some(unplaced) = unplaced {
        eprintln!("mapped as it runs: {unplaced}");
    }
    if placed.predicted.period_ns <= plain.predicted.period_ns {
        return Ok(Some(placed));
    }
    let over_more = placing::place(graph, machine, &plain, plain.predicted.period_ns);
    let over_more = over_more.ok().filter(|over_more| {
        placed.placements.is_none() || over_more.predicted.period_ns < placed.predicted.period_ns
    });
    Ok(Some(over_more.unwrap_or(placed)))
}

fn none_if_infeasible<T>(planned: std::result::Result<T, PlanningError>) -> Result<Option<T>> {
    match planned {
        Err(PlanningError::Infeasible { .. }) => Ok(None),
        planned => Ok(Some(planned?)),
    }
}

/// Proves a plan and runs it on the simulated device, on which the host maps chunks.
pub(crate) fn simulate(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
) -> Result<Simulated> {
    let plan = plan.plan();
    let schedule = planning::schedule(graph, machine, &plan)?;
    let schedule = schedule.schedule();
    let verified = planning::prove(graph, machine, &plan, &schedule)?;
    let (mut device, mut kernels) = (SimDevice::new(*machine), SimKernels::new(*graph));
    let run = planning::with_executor(&verified, &mut device, &mut kernels, |mut run, d, k| {
        run.run(d, k, WARM_UP)?;
        let before = d.counters();
        run.run(d, k, MEASURED)?;
        Ok((before, d.counters()))
    });
    let (before, after) = run.map_err(|error| format!("{error:?}"))?;
    Ok(Simulated {
        period_ns: device.period_ns(WARM_UP, WARM_UP + MEASURED).ok_or("no iteration")?,
        map_calls: (after.map_calls - before.map_calls) / MEASURED,
        chunks_mapped: (after.chunks_mapped - before.chunks_mapped) / MEASURED,
    })
}

/// The period of a plan of whole tensors if the compute stream waits while chunks are mapped and
/// unmapped. Each launch is longer by the mapping time since the launch before it.
pub(crate) fn held_up_ns(work: &OwnedGraph, machine: &Machine, plan: &OwnedPlan) -> Result<u64> {
    let mut slower = work.clone();
    let graph = work.graph()?;
    let chunks = |tensor: TensorId| graph.tensor(tensor).bytes.div_ceil(machine.chunk_bytes);
    let mut mapped = vec![false; graph.tensors().len()];
    // Tensors in the arena count as mapped, because they need no mapping.
    plan.arena.iter().for_each(|entry| mapped[entry.tensor.index()] = true);
    plan.resident_at_start.iter().for_each(|entry| mapped[entry.part.tensor.index()] = true);
    let (mut pending_ns, mut last) = (0, None);
    for step in &plan.steps {
        match *step {
            Step::Prefetch(Part { tensor, .. }) => {
                if !std::mem::replace(&mut mapped[tensor.index()], true) {
                    pending_ns += chunks(tensor) * machine.map_ns_per_chunk;
                }
            }
            Step::Evict(Part { tensor, .. }) => {
                mapped[tensor.index()] = false;
                pending_ns += chunks(tensor) * machine.unmap_ns_per_chunk;
            }
            Step::Launch(Launched { op, .. }) => {
                for &tensor in graph.writes(op) {
                    if !std::mem::replace(&mut mapped[tensor.index()], true) {
                        pending_ns += chunks(tensor) * machine.map_ns_per_chunk;
                    }
                }
                slower.ops[op.index()].time_ns += std::mem::take(&mut pending_ns);
                last = Some(op);
            }
            Step::Offload(_) | Step::Host(_) => {}
        }
    }
    if let Some(op) = last {
        slower.ops[op.index()].time_ns += pending_ns;
    }
    let slower = slower.graph()?;
    let schedule = planning::schedule(&slower, machine, &plan.plan())?;
    let (predicted, _) = planning::predict(&slower, machine, &plan.plan(), &schedule.schedule())?;
    Ok(predicted.period_ns)
}

/// The linear program's bound in the given order, for plans that launch each op once.
#[cfg(feature = "highs")]
pub(crate) fn bound_ns(graph: &Graph<'_>, machine: &Machine) -> Result<Option<u64>> {
    let options = lp_bound::Options { pages: Some(lp_bound::Pages::of(machine)) };
    let bound = lp_bound::period_ns(graph, machine, machine.device_bytes, options)?;
    Ok(Some(bound.period_ns))
}

/// The linear program's bound in the given order, for plans that repeat ops.
#[cfg(feature = "highs")]
pub(crate) fn bound_with_repeats_ns(graph: &Graph<'_>, machine: &Machine) -> Result<Option<u64>> {
    let bound = lp_bound::period_with_repeats_ns(graph, machine, machine.device_bytes)?;
    Ok(Some(bound.period_ns))
}

/// `None`, because the bound needs a solver.
#[cfg(not(feature = "highs"))]
pub(crate) fn bound_ns(_: &Graph<'_>, _: &Machine) -> Result<Option<u64>> {
    Ok(None)
}

/// `None`, because the bound needs a solver.
#[cfg(not(feature = "highs"))]
pub(crate) fn bound_with_repeats_ns(_: &Graph<'_>, _: &Machine) -> Result<Option<u64>> {
    Ok(None)
}
