//! From the layers to stream to a plan: the core plans the list, places it and times it.

use super::candidates;
use super::streamed::{Layers, Shape, Slots, Streamed};
use crate::placing;
use crate::planning;
use planner_core::bounds::Order;
use planner_core::placement::Over;
use planner_core::plan::{ArenaPlacement, Part, PlanError, Pool, Prediction, Resident, Step};
use planner_core::planner::{Groups, PlanningError, Request, Strategy};
use planner_core::{Graph, Kind, Machine, MachineParameters, TensorId};
use std::iter;
use workloads::{OwnedGraph, OwnedPlacements, OwnedPlan};

/// Most iterations over which slots are given. More of them let slots take turns.
const MOST_ITERATIONS: u32 = 6;

/// Packed choices that are tried, times the square of the layers: a few milliseconds' worth.
const PACKED: usize = 9_000;

/// Settings of the knobs that are tried, times the layers: a few milliseconds' worth. All of them for
/// up to 20 layers.
const SETTINGS: usize = 4_000;

/// Settings that are laid out although they are a little longer than the best plan.
const NEAR: usize = 16;

/// So many layers are laid out in a fraction of a millisecond.
const FEW: usize = 24;

/// Steps of a search for a tighter packing: a fraction of a millisecond.
const STEPS: u64 = 1 << 14;

/// Ops ahead of a layer at which it comes at most: as soon as there is memory, or later, which packed
/// layers may need.
const AHEAD: [usize; 3] = [1024, 2, 1];

/// The best plan: choices are carried out in the order of their estimates, which their plans hardly
/// ever beat, until the next estimate is no better than the best plan.
pub(super) fn best(
    layers: &Layers,
    graph: &Graph<'_>,
    machine: &Machine,
) -> Result<OwnedPlan, PlanningError> {
    let mut best: Option<OwnedPlan> = None;
    let mut packed = PACKED / layers.len().saturating_pow(2).max(1);
    let shapes = [Shape::Slots, Shape::Ring, Shape::Packed];
    let shapes = if packed > 0 { &shapes[..] } else { &shapes[..2] };
    for streamed in candidates::all(layers, shapes) {
        let period_ns = best.as_ref().map_or(u64::MAX, |best| best.predicted.period_ns);
        if streamed.period_ns >= period_ns {
            break;
        }
        if streamed.shape == Shape::Packed {
            let Some(left) = packed.checked_sub(1) else { continue };
            packed = left;
        }
        let plan = carry_out(layers, graph, machine, &streamed)?;
        best = match (best, plan) {
            (Some(best), Some(plan)) if plan.predicted.period_ns >= period_ns => Some(best),
            (best, plan) => plan.or(best),
        };
    }
    with_knobs(best.ok_or(PlanningError::Stuck)?, layers, graph, machine)
}

/// A plan, or a shorter one by a setting of the knobs of servers, where layers of different sizes lie
/// better by that. If the plan is as short as the bound, there is none.
fn with_knobs(
    mut best: OwnedPlan,
    layers: &Layers,
    graph: &Graph<'_>,
    machine: &Machine,
) -> Result<OwnedPlan, PlanningError> {
    let settings = Groups::settings(layers.len()).take(SETTINGS / layers.len().max(1));
    let strategies = iter::once(Strategy::Fit).chain(settings.map(Strategy::Groups));
    let request = Request { graph, machine, budget_bytes: layers.budget_bytes };
    let mut near = if layers.len() <= FEW { NEAR } else { 0 };
    let mut buffers = planning::Buffers::default();
    let least_ns = planning::lower_bound_ns(graph, machine, layers.budget_bytes, Order::Given)?;
    for strategy in strategies {
        if best.predicted.period_ns <= least_ns {
            break;
        }
        let paged = match buffers.plan(&request, strategy) {
            Err(PlanningError::Infeasible { .. }) => continue,
            paged => paged?,
        };
        let (paged_ns, best_ns) = (paged.predicted.period_ns, period_ns(&best));
        // Laid out in one piece, lists have become up to 3 % shorter.
        let is_near = paged_ns >= best_ns && near > 0 && paged_ns - paged_ns / 16 < best_ns;
        near -= usize::from(is_near);
        if (paged_ns < best_ns || is_near)
            && let Some(placed) = lay_out(graph, machine, &OwnedPlan::from(&paged), Shape::Packed)
        {
            best = if period_ns(&placed) < best_ns { placed } else { best };
        }
    }
    Ok(best)
}

/// Plans for a choice; none where its layers cannot be laid out.
fn carry_out(
    layers: &Layers,
    graph: &Graph<'_>,
    machine: &Machine,
    streamed: &Streamed,
) -> Result<Option<OwnedPlan>, PlanningError> {
    let Streamed { is_streamed, shape, .. } = streamed;
    let Some(slots) = layers.slots(is_streamed, *shape) else { return Ok(None) };
    let all: &[usize] = if *shape == Shape::Packed { &AHEAD } else { &AHEAD[..1] };
    let mut best: Option<OwnedPlan> = None;
    for &ahead in all {
        let Some(mut plan) = list(layers, machine, is_streamed, &slots, ahead)? else { break };
        plan.placements = slots.first.as_ref().map(|first| ring(layers, is_streamed, &plan, first));
        plan.predicted = predict(graph, machine, &plan)?;
        let placed = match plan.placements {
            Some(_) => Some(plan),
            None => lay_out(graph, machine, &plan, *shape),
        };
        best = best.into_iter().chain(placed).min_by_key(period_ns);
        if best.as_ref().is_some_and(|best| best.predicted.period_ns <= streamed.period_ns) {
            break;
        }
    }
    Ok(best)
}

/// The list for streamed layers, with the others in the arena. Layers leave as soon as they have been
/// used, and come as soon as there is memory. None where there is no such list.
fn list(
    layers: &Layers,
    machine: &Machine,
    is_streamed: &[bool],
    slots: &Slots,
    ahead: usize,
) -> Result<Option<OwnedPlan>, PlanningError> {
    let (mut graph, mut layer_of) = (OwnedGraph::new(""), Vec::new());
    let mut taken = slots.taken.iter();
    for (layer, &is_streamed) in (0..).zip(is_streamed) {
        let objects = is_streamed.then(|| taken.next()).flatten();
        let weights = objects.map(|&objects| {
            layer_of.push(TensorId(layer));
            graph.push_tensor("", objects * slots.object_bytes, Kind::State)
        });
        graph.push_op("", 1, 0, weights.as_slice(), &[]);
    }
    let Ok(work) = graph.graph() else { return Ok(None) };
    let pool = Pool { object_bytes: slots.object_bytes, count: slots.count };
    let budget_bytes = pool.object_bytes * pool.count;
    let machine = with_chunks(machine, pool.object_bytes, budget_bytes)?;
    // A layer that is needed again within as many ops would not leave.
    let ahead = is_streamed.len().saturating_sub(2).clamp(1, ahead) as u32;
    let groups = Groups { size: Some(1), leaving: Some(1), ahead: Some(ahead) };
    let request = Request { graph: &work, machine: &machine, budget_bytes };
    let planned = match planning::plan(&request, Strategy::Groups(groups)) {
        Err(PlanningError::Infeasible { .. }) => return Ok(None),
        planned => whole(planned?),
    };
    let part = |part: Part| Part::whole(layer_of[part.tensor.index()]);
    let steps = planned.steps.iter().map(|step| match *step {
        Step::Prefetch(of) => Step::Prefetch(part(of)),
        Step::Offload(of) => Step::Offload(part(of)),
        Step::Evict(of) => Step::Evict(part(of)),
        Step::Launch(launched) => Step::Launch(launched),
    });
    let streamed = planned.resident_at_start.iter().map(|resident| part(resident.part));
    let (arena, arena_bytes) = arena(layers, is_streamed);
    let staying = arena.iter().map(|placement| Part::whole(placement.tensor));
    let resident = staying.chain(streamed).map(|part| Resident { part, host_copy: true });
    Ok(Some(OwnedPlan {
        resident_at_start: resident.collect(),
        steps: steps.collect(),
        pools: vec![pool],
        budget_bytes: layers.budget_bytes,
        arena,
        arena_bytes,
        ..OwnedPlan::default()
    }))
}

/// The list with each tensor whole: where it came in parts, it comes when the last of them did. Each
/// is read by one op.
fn whole(mut plan: OwnedPlan) -> OwnedPlan {
    let tensors = plan.steps.iter().filter_map(|step| match step {
        Step::Prefetch(part) => Some(part.tensor.index() + 1),
        _ => None,
    });
    // Where its last prefetch is: one after its evict is for the next iteration.
    let tensors = tensors.max().unwrap_or(0);
    let (mut last, mut before_evict) = (vec![None; tensors], vec![None; tensors]);
    for (at, step) in plan.steps.iter().enumerate() {
        match step {
            Step::Prefetch(part) => last[part.tensor.index()] = Some(at),
            Step::Evict(part) if part.tensor.index() < tensors => {
                before_evict[part.tensor.index()] = last[part.tensor.index()];
            }
            _ => {}
        }
    }
    let is_at = |tensor: TensorId| match before_evict.get(tensor.index()) {
        Some(&Some(at)) => Some(at),
        _ => last.get(tensor.index()).copied().flatten(),
    };
    let comes_in_time =
        |tensor: TensorId| matches!(before_evict.get(tensor.index()), Some(Some(_)));
    plan.resident_at_start.retain(|resident| !comes_in_time(resident.part.tensor));
    plan.resident_at_start.dedup_by_key(|resident| resident.part.tensor);
    let mut at = 0..;
    plan.steps.retain(|step| match (step, at.next()) {
        (Step::Prefetch(part), at) => is_at(part.tensor) == at,
        _ => true,
    });
    plan
}

/// The objects of a ring, from the first one of each layer.
fn ring(layers: &Layers, is_streamed: &[bool], plan: &OwnedPlan, first: &[u64]) -> OwnedPlacements {
    let streamed = (0..).zip(is_streamed).filter(|&(_, &is_streamed)| is_streamed);
    let mut first_of = vec![None; is_streamed.len()];
    streamed
        .zip(first)
        .for_each(|((layer, _), &first): ((usize, _), _)| first_of[layer] = Some(first));
    let object_bytes = plan.pools.first().map_or(1, |pool| pool.object_bytes);
    let at_start = plan.resident_at_start.iter().map(|resident| resident.part.tensor);
    let prefetched = plan.steps.iter().filter_map(|step| match step {
        Step::Prefetch(part) => Some(part.tensor),
        _ => None,
    });
    let (mut objects, mut ends) = (Vec::new(), Vec::new());
    for tensor in at_start.chain(prefetched) {
        if let Some(first) = first_of[tensor.index()] {
            objects.extend(first..first + layers.bytes[tensor.index()].div_ceil(object_bytes));
            ends.push(objects.len() as u32);
        }
    }
    OwnedPlacements { iterations: 1, objects, ends }
}

/// The layers that stay, one after the other, and the bytes that they take.
fn arena(layers: &Layers, is_streamed: &[bool]) -> (Vec<ArenaPlacement>, u64) {
    let mut end_bytes = 0;
    let staying = (0..).zip(is_streamed).filter(|&(_, &is_streamed)| !is_streamed);
    let placements = staying.map(|(layer, _)| {
        let offset_bytes = end_bytes;
        // They fit in the budget.
        end_bytes += layers.bytes[layer as usize];
        ArenaPlacement { tensor: TensorId(layer), offset_bytes }
    });
    (placements.collect(), end_bytes)
}

/// A machine as large as the memory for streamed layers, mapped in their objects.
fn with_chunks(
    machine: &Machine,
    chunk_bytes: u64,
    device_bytes: u64,
) -> Result<Machine, PlanningError> {
    let host_bytes = u64::MAX;
    let parameters = MachineParameters { chunk_bytes, device_bytes, host_bytes, ..**machine };
    Machine::new(parameters).map_err(|_| PlanningError::Stuck)
}

fn predict(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
) -> Result<Prediction, PlanError> {
    let plan = plan.plan();
    let schedule = planning::schedule(graph, machine, &plan)?;
    Ok(planning::predict(graph, machine, &plan, &schedule.schedule())?.0)
}

/// Gives each layer a slot: over the fewest iterations that make the period no longer, or else over
/// those that make it shortest.
fn lay_out(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
    shape: Shape,
) -> Option<OwnedPlan> {
    let mut best: Option<OwnedPlan> = None;
    for iterations in 1..=MOST_ITERATIONS {
        let over = Over { iterations, settled: false, spares_due: true };
        let placed = match shape {
            Shape::Packed => placing::place_contiguously(graph, machine, plan, iterations, STEPS),
            _ => placing::place_over(graph, machine, plan, over),
        };
        let Ok(placed) = placed else { continue };
        if placed.predicted.period_ns <= plan.predicted.period_ns {
            return Some(placed);
        }
        best = best.into_iter().chain([placed]).min_by_key(period_ns);
    }
    best
}

fn period_ns(plan: &OwnedPlan) -> u64 {
    plan.predicted.period_ns
}
