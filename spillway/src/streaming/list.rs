//! Turns a choice of streamed layers into a plan: makes its list, which the core places and times.

use super::course::Upload;
use super::kept::Kept;
use super::streamed::{Layers, Shape, Slots, Streamed};
use super::{bound, candidates, hosts, knobs, layout};
use crate::placing;
use crate::planning;
use planner_core::bounds::BoundOrder;
use planner_core::machine::Direction;
use planner_core::placement::Over;
use planner_core::plan::{ArenaPlacement, Part, PlanError, Pool, Prediction, Resident, Step};
use planner_core::planner::PlanningError;
use planner_core::{Graph, Machine, OpId, TensorId};
use workloads::{OwnedPlacements, OwnedPlan};

/// The most iterations over which slots are fixed. With several iterations, a layer can use slots in turn.
pub(super) const MOST_ITERATIONS: u32 = 6;

/// The most choices as short as the bound that become plans before the search for better choices.
const IDEAL: usize = 4;

/// The most layers to place in slots, over all iterations and attempts, which takes a few milliseconds.
const PLACED: usize = 2_500;

/// The most layers that estimates of other offsets look at, over all attempts, which takes a few
/// milliseconds.
const LOOKS: usize = 20_000;

/// A choice uses at most one part in this many of the remaining effort.
const SHARE: usize = 2;

/// The most iterations in which each layer has its own offset.
const MOST_FIXED: usize = 2;

/// The most layers with fixed offsets, over all iterations and attempts, which takes a few milliseconds.
const FIXED: usize = 1_000;

/// The steps of a search for a tighter packing, which takes a fraction of a millisecond.
pub(super) const STEPS: u64 = 1 << 14;

/// The iteration with known times that becomes the list. Its times have settled, and later launches are
/// known.
const KEPT: usize = 5;

/// The position of an upload in the list.
#[derive(Clone, Copy, Debug)]
enum When {
    /// At the start of the upload, as soon as there is memory and the link is free.
    InTime,
    /// As late as its launch allows, so that the layer takes memory for the shortest time.
    Late,
    /// As soon as there is memory, even if the link is busy, but at most this many launches ahead.
    Ahead(usize),
}

/// The better positions come first. The others need less memory.
const WHEN: [When; 6] = [
    When::InTime,
    When::Late,
    When::Ahead(usize::MAX),
    When::Ahead(4),
    When::Ahead(2),
    When::Ahead(1),
];

/// Returns the best plan: with all layers on the device, or with some on the host if this is shorter. `graph`
/// is without caches and outputs.
pub(super) fn best(
    layers: &Layers,
    graph: &Graph<'_>,
    machine: &Machine,
    kept: &Kept<'_>,
) -> Result<OwnedPlan, PlanningError> {
    let complete = |plan: OwnedPlan| kept.complete(plan);
    let bare = on_device(layers, graph, machine)?;
    let alone = bare.clone().map(complete).transpose()?;
    let least_ns = bound::period_ns(kept.layers, machine, kept.budget_bytes);
    let is_shortest = |plan: &OwnedPlan| period_ns(plan) <= least_ns;
    let may_be_on_host = layers.host_ns.iter().any(Option::is_some);
    if !may_be_on_host || alone.as_ref().is_some_and(is_shortest) {
        return alone.ok_or(PlanningError::Stuck);
    }
    let mut attempt = Attempt::new(layers, graph, machine);
    let joint = attempt.best_of(hosts::choices(layers).iter(), bare, least_ns)?;
    let joint = joint.map(complete).transpose()?;
    let split = knobs::split(kept.graph, machine, kept.budget_bytes)?;
    // Downloads of outputs may change which plan is shorter. The split is always tried.
    let plans = [joint, alone, split].into_iter().flatten();
    plans.min_by_key(period_ns).ok_or(PlanningError::Stuck)
}

/// Returns the best plan with all layers on the device, or `None` if a layer does not fit. Makes plans in the
/// order of the estimates, which plans hardly ever beat. If no choice with an estimate at the bound reaches
/// it, searches better choices. Then tries the knobs of servers.
fn on_device(
    layers: &Layers,
    graph: &Graph<'_>,
    machine: &Machine,
) -> Result<Option<OwnedPlan>, PlanningError> {
    let least_ns =
        planning::lower_bound_ns(graph, machine, layers.bare_budget_bytes(), BoundOrder::Given)?;
    let mut attempt = Attempt::new(layers, graph, machine);
    let guessed = candidates::guessed(layers);
    let ideal = guessed.iter().take_while(|streamed| streamed.period_ns <= least_ns);
    let mut best = attempt.best_of(ideal.take(IDEAL), None, least_ns)?;
    if best.as_ref().is_none_or(|best| period_ns(best) > least_ns) {
        let all = candidates::improved(layers, guessed);
        best = attempt.best_of(all.iter(), best, least_ns)?;
    }
    best.map(|best| knobs::shorter(best, layers, graph, machine, least_ns)).transpose()
}

/// The work of the choices, and the remaining effort.
struct Attempt<'a, 'g> {
    layers: &'a Layers,
    graph: &'a Graph<'g>,
    machine: &'a Machine,
    looks: usize,
    fixed: usize,
    placed: usize,
}

impl<'a, 'g> Attempt<'a, 'g> {
    const fn new(layers: &'a Layers, graph: &'a Graph<'g>, machine: &'a Machine) -> Self {
        Self { layers, graph, machine, looks: LOOKS, fixed: FIXED, placed: PLACED }
    }

    /// Makes plans of choices while their estimates are better than the best plan.
    fn best_of<'s>(
        &mut self,
        choices: impl Iterator<Item = &'s Streamed>,
        mut best: Option<OwnedPlan>,
        least_ns: u64,
    ) -> Result<Option<OwnedPlan>, PlanningError> {
        for streamed in choices {
            let estimate_ns = streamed.period_ns.max(least_ns);
            if best.as_ref().is_some_and(|best| estimate_ns >= period_ns(best)) {
                break;
            }
            let plan = self.carry_out(streamed)?;
            best = best.into_iter().chain(plan).min_by_key(period_ns);
        }
        Ok(best)
    }

    /// Makes a plan of a choice. Returns `None` if its layers cannot be placed.
    fn carry_out(&mut self, streamed: &Streamed) -> Result<Option<OwnedPlan>, PlanningError> {
        let Streamed { order, shape, on_host, yields, period_ns: estimate_ns, .. } = streamed;
        let layers = &self.layers.with_host(on_host, *yields);
        let Some(slots) = layers.slots(order, *shape) else { return Ok(None) };
        let mut best = None;
        let keep = self.placed - self.placed / SHARE;
        let is_good = |best: &Option<OwnedPlan>| {
            best.as_ref().is_some_and(|best| period_ns(best) <= *estimate_ns)
        };
        for iterations in 1..=MOST_FIXED {
            if *shape == Shape::Slots || is_good(&best) {
                break;
            }
            let Some(left) = self.fixed.checked_sub(layers.len() * iterations) else { break };
            self.fixed = left;
            let fixed = self.fix(layers, order, &slots, *estimate_ns, iterations)?;
            best = best.into_iter().chain(fixed).min_by_key(period_ns);
        }
        for when in WHEN {
            let is_spent = *shape == Shape::Packed && self.placed < keep + layers.len();
            if is_good(&best) || is_spent {
                break;
            }
            let Some(mut plan) = list(layers, order, &slots, when, 1) else { continue };
            plan.predicted = predict(self.graph, self.machine, &plan)?;
            best = best.into_iter().chain(self.lay_out(&plan, *shape, keep)).min_by_key(period_ns);
        }
        Ok(best)
    }

    /// Gives each layer its own offset in each of `iterations`.
    fn fix(
        &mut self,
        one: &Layers,
        order: &[usize],
        slots: &Slots,
        least_ns: u64,
        iterations: usize,
    ) -> Result<Option<OwnedPlan>, PlanningError> {
        let (count, layers) = (one.len(), one.repeated(iterations));
        let numbers =
            (0..iterations).flat_map(|at| order.iter().map(move |layer| layer + at * count));
        let numbers: Vec<_> = numbers.collect();
        let slots = Slots { taken: slots.taken.repeat(iterations), ..slots.clone() };
        let least_ns = least_ns.saturating_mul(iterations as u64);
        let mut looks = self.looks / SHARE;
        self.looks -= looks;
        let slots = layout::fixed(&layers, &numbers, &slots, least_ns, &mut looks);
        self.looks += looks;
        let Some(slots) = slots else { return Ok(None) };
        let Some(mut plan) = list(&layers, &numbers, &slots, When::InTime, iterations) else {
            return Ok(None);
        };
        plan.placements = Some(objects(one, order, &plan, &slots, iterations));
        plan.predicted = predict(self.graph, self.machine, &plan)?;
        Ok(Some(plan))
    }

    /// Gives each layer a slot: over the fewest iterations that make the period no longer, or over the count
    /// with the shortest period.
    fn lay_out(&mut self, plan: &OwnedPlan, shape: Shape, keep: usize) -> Option<OwnedPlan> {
        let Self { layers, graph, machine, .. } = *self;
        let mut best: Option<OwnedPlan> = None;
        for iterations in 1..=MOST_ITERATIONS {
            let over = Over { iterations, settled: false, spares_due: true, most_lacking: 0 };
            let placed = match shape {
                Shape::Packed => {
                    let placed = layers.len() * iterations as usize;
                    if self.placed < keep + placed {
                        break;
                    }
                    self.placed -= placed;
                    placing::place_contiguously(graph, machine, plan, iterations, STEPS)
                }
                Shape::Slots => placing::place_over(graph, machine, plan, over),
            };
            let Ok(placed) = placed else { continue };
            if period_ns(&placed) <= period_ns(plan) {
                return Some(placed);
            }
            best = best.into_iter().chain([placed]).min_by_key(period_ns);
        }
        best
    }
}

/// Makes the list of one iteration from the times of `iterations`, with the staying layers in the arena. A
/// layer leaves after its launch, and comes at the latest of its positions in these iterations. Returns
/// `None` if a layer does not come.
fn list(
    layers: &Layers,
    order: &[usize],
    slots: &Slots,
    when: When,
    iterations: usize,
) -> Option<OwnedPlan> {
    let (all, count) = (layers.len(), layers.len() / iterations);
    let mut times = layers.times(order, slots)?;
    if matches!(when, When::Late) {
        times.delay(layers);
    }
    let position = |upload: &Upload, launch: usize| match when {
        When::Ahead(most) => upload.launches.max(launch.saturating_sub(most)),
        When::InTime | When::Late => {
            times.launch_ends_ns.partition_point(|&end_ns| end_ns <= upload.start_ns)
        }
    };
    // For each streamed layer, the number of launches ahead that it comes, and its place in the order.
    let mut comes: Vec<Option<(usize, usize)>> = vec![None; count];
    let mut rounds = vec![0; all];
    for (number, upload) in times.uploads.iter().enumerate() {
        if rounds[upload.layer] == KEPT {
            let launch = KEPT * all + upload.layer;
            // Saturated times give no order.
            let ahead = launch.checked_sub(position(upload, launch))?;
            if ahead >= count {
                return None;
            }
            let comes = &mut comes[upload.layer % count];
            *comes =
                Some(comes.map_or((ahead, number), |(least, first)| (least.min(ahead), first)));
        }
        rounds[upload.layer] += 1;
    }
    let is_streamed: Vec<_> = comes.iter().map(Option::is_some).collect();
    let streamed = order.len() / iterations;
    if comes.iter().flatten().count() < streamed {
        return None;
    }
    // Uploads after the launch of their layer are for the next iteration.
    let ahead_of = comes.iter().enumerate().filter_map(|(layer, comes)| Some((layer, (*comes)?)));
    let mut uploads: Vec<_> = ahead_of
        .map(|(layer, (ahead, number))| match layer.checked_sub(ahead) {
            Some(before) => (before, number, layer),
            None => (layer + count - ahead, number + streamed, layer),
        })
        .collect();
    uploads.sort_unstable();
    let mut uploads = uploads.into_iter().peekable();
    let part = |layer: usize| Part::whole(TensorId(layer as u32));
    let (mut steps, mut is_there) = (Vec::new(), vec![false; count]);
    let stays = |&layer: &usize| !is_streamed[layer] && !layers.on_host[layer];
    let mut resident: Vec<_> = (0..count).filter(stays).map(part).collect();
    let mut pools = vec![Pool { object_bytes: slots.object_bytes, count: slots.count }];
    let (mut arena, mut arena_bytes, mut tensor_pool) = (Vec::new(), 0, Vec::new());
    if layers.stay_in_arena() {
        (arena, arena_bytes) = arena_of(layers, &is_streamed);
    } else {
        let object_bytes = layers.chunk_bytes;
        let staying = resident.iter().map(|part| layers.bytes[part.tensor.index()] / object_bytes);
        pools.push(Pool { object_bytes, count: staying.sum() });
        tensor_pool = is_streamed.iter().map(|&is_streamed| u32::from(!is_streamed)).collect();
    }
    if let Some(pool) = layers.activations {
        tensor_pool.resize(count, 0);
        tensor_pool.resize(2 * count, pools.len() as u32);
        pools.push(pool);
        let last = layers.before(0) % count;
        resident.extend((!layers.on_host[last]).then(|| part(count + last)));
    }
    for launched in 0..count {
        let (before, op) = (part(count + layers.before(launched) % count), OpId(launched as u32));
        let crossing = layers.crossing(launched).map(|(direction, _)| direction);
        // The upload that the device waits for comes before uploads for later launches.
        steps.extend((crossing == Some(Direction::HostToDevice)).then_some(Step::Prefetch(before)));
        while let Some((.., layer)) = uploads.next_if(|&(before, ..)| before == launched) {
            steps.push(Step::Prefetch(part(layer)));
            is_there[layer] = true;
        }
        if crossing == Some(Direction::DeviceToHost) {
            steps.extend([Step::Offload(before), Step::Evict(before)]);
        }
        steps.push(if layers.on_host[launched] { Step::Host(op) } else { Step::launch(op) });
        if layers.activations.is_some() && count > 1 && !layers.on_host[launched] {
            steps.push(Step::Evict(before));
        }
        if is_streamed[launched] {
            steps.push(Step::Evict(part(launched)));
            resident.extend((!is_there[launched]).then(|| part(launched)));
        }
    }
    // Only the device has the value of the last activation.
    let host_copy = |part: Part| part.tensor.index() < count;
    let resident = resident.into_iter().map(|part| Resident { part, host_copy: host_copy(part) });
    let mut plan = OwnedPlan::new(pools, resident.collect(), steps);
    plan.tensor_pool = tensor_pool;
    plan.budget_bytes = layers.bare_budget_bytes();
    (plan.arena, plan.arena_bytes) = (arena, arena_bytes);
    Some(plan)
}

/// Returns the placements of streamed layers, whose first object is fixed in each iteration, and of layers
/// that stay in a pool, one after the other.
fn objects(
    layers: &Layers,
    order: &[usize],
    plan: &OwnedPlan,
    slots: &Slots,
    iterations: usize,
) -> OwnedPlacements {
    let (objects, ends) = (Vec::new(), Vec::new());
    let mut stays = 0;
    let mut placements = OwnedPlacements::new(iterations as u32, objects, ends);
    let mut place = |tensor: TensorId, iteration: usize| {
        let position = order.iter().position(|&layer| layer == tensor.index());
        let (first, count) = match (tensor.index().checked_sub(layers.len()), position) {
            (Some(layer), _) => (layers.activation_object(layer), 1),
            (None, Some(at)) => {
                let at = at + iteration % iterations * order.len();
                (slots.first.as_ref().map_or(0, |first| first[at]), slots.taken[at])
            }
            (None, None) if layers.stay_in_arena() => return,
            (None, None) => {
                let count = layers.bytes[tensor.index()] / layers.chunk_bytes;
                stays += count;
                (stays - count, count)
            }
        };
        placements.objects.extend(first..first + count);
        placements.ends.push(placements.objects.len() as u32);
    };
    let at_start = plan.resident_at_start.iter().map(|resident| resident.part.tensor);
    at_start.clone().for_each(|tensor| place(tensor, 0));
    for iteration in 0..iterations {
        for step in &plan.steps {
            match *step {
                Step::Prefetch(part) => {
                    let is_for_next = at_start.clone().any(|tensor| tensor == part.tensor);
                    place(part.tensor, iteration + usize::from(is_for_next));
                }
                // A single layer updates its activation in place.
                Step::Launch(launched) if layers.activations.is_some() && layers.len() > 1 => {
                    place(TensorId((layers.len() + launched.op.index()) as u32), iteration);
                }
                _ => {}
            }
        }
    }
    placements
}

/// Returns the staying layers, one after the other, and their bytes. Layers on the host take no memory of the
/// arena.
fn arena_of(layers: &Layers, is_streamed: &[bool]) -> (Vec<ArenaPlacement>, u64) {
    let mut end_bytes = 0;
    let mut placements = Vec::new();
    for ((layer, &bytes), &is_streamed) in layers.bytes.iter().enumerate().zip(is_streamed) {
        if !is_streamed && bytes > 0 {
            let tensor = TensorId(layer as u32);
            placements.push(ArenaPlacement { tensor, offset_bytes: end_bytes });
            // The layers fit in the budget.
            end_bytes += bytes;
        }
    }
    (placements, end_bytes)
}

pub(super) fn predict(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
) -> Result<Prediction, PlanError> {
    let plan = plan.plan();
    let schedule = planning::schedule(graph, machine, &plan)?;
    Ok(planning::predict(graph, machine, &plan, &schedule.schedule())?.0)
}

pub(super) fn period_ns(plan: &OwnedPlan) -> u64 {
    plan.predicted.period_ns
}
