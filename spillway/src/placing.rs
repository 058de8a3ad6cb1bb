//! Plans with fixed physical objects. If a pool has too few objects, the search tries a smaller budget.

use crate::growth::buffer;
use crate::planning::{self, Buffers};
use crate::units::time;
use planner_core::placement::{self, Over, PlacementError};
use planner_core::planner::{self, Auto, Host, PlanningError, Repeats, Request, Strategy};
use planner_core::{Graph, Limits, Machine, Plan, Scratch};
use std::fmt;
use workloads::{OwnedPlacements, OwnedPlan};

/// The most iterations over which objects are fixed. With more iterations, placements take fewer objects but
/// more time, and `docs/research/placements.md` needs no more.
const MOST_ITERATIONS: u32 = 8;
/// Iterations among which the search looks for a period no longer than before.
const FEW_ITERATIONS: u32 = 3;
/// The most object numbers in all placements that are tried for one plan. The iterations of
/// `docs/research/placements.md` have up to 15,000; a million take about a second.
const MOST_SLOTS: usize = 1 << 22;
/// Placements may lengthen the period by at most one part in this many. `docs/research/placements.md` states
/// this choice.
const LONGER: u64 = 100;
/// Within a larger budget, no plan should map memory as it runs. Placements may then lengthen the period by one
/// part in [`LARGE_LONGER`]. Of 60 random works within 1.3 GiB and more, none needed this.
const LARGE_BYTES: u64 = 1 << 30;
const LARGE_LONGER: u64 = 20;
/// Fixed objects save some waits, which may shorten the plan of another strategy by at most one part in
/// [`SMALL_SHORTER`] if the graph is small. Of 112 random works of 300 ops and more, they shortened no plan.
const SMALL_SHORTER: u64 = 4;
const SMALL_OPS: usize = 256;
/// In larger graphs, plans of other strategies are of use if they are shorter by more than one part in this many.
/// Fixing the objects of each takes up to a second.
const MUCH_SHORTER: u64 = 1024;
/// With objects of another size, plans of other strategies are shorter by at most one part in this many. In 40
/// random decoders, they were at most 7.1 % shorter.
const OTHER_OBJECTS: u64 = 10;
/// Budgets below this multiple of the least memory usually get objects of single chunks. In tight memory, each
/// byte of rounding counts; in more memory, larger objects save planning time.
const TIGHT: u64 = 2;
/// The most plans that are tried, each for a smaller budget than the plan before. Planning takes longer than
/// fixing the objects, and `docs/research/placements.md` needs no more plans.
const ATTEMPTS: usize = 4;
/// If a plan has too many objects to try all placements, smaller budgets are tried only if it lacks less than
/// one object in this many.
const LACKING: u64 = 4;

/// The reason why a plan has no placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unplaced {
    /// The placements need this many more objects, and no plan was found that leaves them free.
    Short(u64),
    /// Waits for fixed objects make the period this long, in ns.
    Slow(u64),
    /// The plan has too many objects.
    Large,
}

impl fmt::Display for Unplaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Short(1) => write!(f, "fixed placements need 1 more object"),
            Self::Short(objects) => {
                write!(f, "fixed placements need {objects} more objects")
            }
            Self::Slow(period_ns) => {
                write!(f, "with fixed placements, the period is {}", time(*period_ns))
            }
            Self::Large => write!(f, "there are too many objects for fixed placements"),
        }
    }
}

/// Plans with objects of several chunks if the strategy is `auto` and the budget has thousands of chunks.
///
/// Plans with fixed physical objects if they lengthen the period by at most a hundredth (a twentieth in more than
/// a GiB), or if the period is no longer than the host's mapping time without fixed objects. If there are too few
/// objects, or the waits for them take longer, tries smaller budgets, whose plans leave more objects free.
/// Otherwise returns the plan without fixed objects, and the reason. For `auto`, returns the plan of another
/// strategy if it is shorter in the end.
///
/// # Errors
/// The errors of [`planning::plan`].
pub fn plan(
    request: &Request<'_>,
    strategy: Strategy,
) -> Result<(OwnedPlan, Option<Unplaced>), PlanningError> {
    let mut buffers = Buffers::default();
    let machine = larger_objects(request, strategy)?;
    let larger = machine.as_ref().map(|machine| Request { machine, ..*request });
    if let Some(larger) = larger {
        match plan_on(&larger, request, strategy, &mut buffers) {
            Err(PlanningError::Infeasible { .. }) => {}
            planned => return planned,
        }
    }
    plan_on(request, request, strategy, &mut buffers)
}

/// Returns the machine with larger chunks, for plans with larger objects. Returns `None` for strategies other
/// than `auto`, and for budgets in which everything fits. In tight memory, objects are larger only if there
/// would be too many.
fn larger_objects(
    request: &Request<'_>,
    strategy: Strategy,
) -> Result<Option<Machine>, PlanningError> {
    let (Strategy::Auto(_), Some(machine)) = (strategy, planner::with_larger_objects(request))
    else {
        return Ok(None);
    };
    let least = |strategy| planning::min_feasible(request, strategy).map(|(bytes, _)| bytes);
    let (in_core_bytes, least_bytes) = (least(Strategy::InCore)?, least(strategy)?);
    if request.budget_bytes >= in_core_bytes {
        return Ok(None);
    }
    let is_tight = request.budget_bytes < least_bytes.saturating_mul(TIGHT);
    Ok(if is_tight { planner::with_fewer_objects(request) } else { Some(machine) })
}

/// Plans `request`, whose machine may have larger chunks. `others` is the same request with single chunks,
/// for the strategies that `auto` is compared with.
fn plan_on(
    request: &Request<'_>,
    others: &Request<'_>,
    strategy: Strategy,
    buffers: &mut Buffers,
) -> Result<(OwnedPlan, Option<Unplaced>), PlanningError> {
    let mut least = None;
    let planned = plan_by(request, |request| {
        let made = buffers.make(request, strategy)?;
        least.get_or_insert((made.others_ns, made.ends_ns));
        Ok(planning::owned(&made))
    })?;
    match (strategy, least) {
        (Strategy::Auto(auto), Some((others_ns, ends_ns))) if auto.effort != Some(0) => {
            let is_known = request.machine.chunk_bytes == others.machine.chunk_bytes;
            let shorter_ns = if is_known { 0 } else { others_ns / OTHER_OBJECTS };
            let others_ns = others_ns.saturating_sub(shorter_ns);
            let best = best_of_all(others, auto, planned, others_ns, buffers)?;
            best_of_ends(request, auto, best, ends_ns, buffers)
        }
        _ => Ok(planned),
    }
}

/// Returns the shortest of a finished plan, the plan with no op on the host, and the plan with all ops on the
/// host. `ends_ns` are lower bounds on the periods of the last two before their objects are fixed.
fn best_of_ends(
    request: &Request<'_>,
    auto: Auto,
    mut best: (OwnedPlan, Option<Unplaced>),
    ends_ns: [u64; 2],
    buffers: &mut Buffers,
) -> Result<(OwnedPlan, Option<Unplaced>), PlanningError> {
    for (host, end_ns) in [Host::Never, Host::All].into_iter().zip(ends_ns) {
        if end_ns >= best.0.predicted.period_ns {
            continue;
        }
        let strategy = Strategy::Auto(auto.with_host(host));
        let end = plan_by(request, |request| {
            buffers.make(request, strategy).map(|made| planning::owned(&made))
        });
        best = shorter_plan(request, best, end)?;
    }
    Ok(best)
}

/// Returns the shorter of a finished plan and another, if planning the other succeeded. A plan that
/// maps as it runs takes at least as long as the host maps.
fn shorter_plan(
    request: &Request<'_>,
    best: (OwnedPlan, Option<Unplaced>),
    other: Result<(OwnedPlan, Option<Unplaced>), PlanningError>,
) -> Result<(OwnedPlan, Option<Unplaced>), PlanningError> {
    match other {
        Ok(other) if taken_ns(request, &other.0) < taken_ns(request, &best.0) => Ok(other),
        Err(PlanningError::Scratch(error)) => Err(error.into()),
        _ => Ok(best),
    }
}

/// Returns the period of a plan, or the host's time for mapping if that is longer.
fn taken_ns(request: &Request<'_>, plan: &OwnedPlan) -> u64 {
    let mapping_ns = mapping_ns(request.graph, request.machine, &plan.plan());
    plan.predicted.period_ns.max(mapping_ns)
}

/// Returns the shortest of a finished plan and the plans of all other strategies. No other strategy beats
/// `others_ns` before its objects are fixed.
fn best_of_all(
    request: &Request<'_>,
    auto: Auto,
    mut best: (OwnedPlan, Option<Unplaced>),
    others_ns: u64,
    buffers: &mut Buffers,
) -> Result<(OwnedPlan, Option<Unplaced>), PlanningError> {
    let is_small = request.graph.ops().len() < SMALL_OPS;
    let mut least_ns = taken_ns(request, &best.0);
    for strategy in Strategy::all() {
        let below_ns = match is_small {
            true => least_ns.saturating_add(least_ns / SMALL_SHORTER),
            false => least_ns.saturating_sub(least_ns / MUCH_SHORTER),
        };
        if others_ns >= below_ns {
            break;
        }
        let repeats = matches!(
            strategy,
            Strategy::Checkpoint | Strategy::CheckpointOffload | Strategy::OptimizerOffload
        );
        let on_host = strategy.runs_on_host();
        let is_other = !matches!(strategy, Strategy::Auto(_))
            && (!repeats || auto.repeats == Repeats::Allowed)
            && match auto.host {
                Host::Never => !on_host,
                Host::Allowed => true,
                // The other strategies leave some ops on the device.
                Host::All => false,
            };
        if !is_other {
            continue;
        }
        let Some(first) = buffers.make_below(request, strategy, below_ns)? else { continue };
        let mut first = Some(planning::owned(&first));
        if first.as_ref().is_some_and(|plan| plan.predicted.period_ns >= below_ns) {
            continue;
        }
        let other = plan_by(request, |request| match first.take() {
            Some(plan) => Ok(plan),
            None => buffers.make(request, strategy).map(|made| planning::owned(&made)),
        });
        best = shorter_plan(request, best, other)?;
        least_ns = taken_ns(request, &best.0);
    }
    Ok(best)
}

/// Plans like [`plan`] with any planner, and calls it again for smaller budgets.
///
/// # Errors
/// The errors of the planner.
pub fn plan_by(
    request: &Request<'_>,
    mut planner: impl FnMut(&Request<'_>) -> Result<OwnedPlan, PlanningError>,
) -> Result<(OwnedPlan, Option<Unplaced>), PlanningError> {
    let Request { graph, machine, .. } = *request;
    let plain = planner(request)?;
    let most_ns = plain.predicted.period_ns.saturating_add(plain.predicted.period_ns / LONGER);
    let mut placed = place(graph, machine, &plain, most_ns);
    let mut best = placed.clone();
    let mut spare = 0;
    for _ in 1..ATTEMPTS {
        spare += match placed {
            Ok(placed) if placed.predicted.period_ns <= most_ns => break,
            Ok(placed) => 1 + placed.pools.first().map_or(0, |pool| pool.count / 200),
            Err(Unplaced::Short(objects)) => objects,
            Err(_) => break,
        };
        let Some(candidate) = leaving(spare, request, &plain, &mut planner) else { break };
        placed = place(graph, machine, &candidate, most_ns);
        best = shorter(best, placed.clone());
    }
    let longer = if request.budget_bytes > LARGE_BYTES { LARGE_LONGER } else { LONGER };
    let longest_ns = plain.predicted.period_ns.saturating_add(plain.predicted.period_ns / longer);
    let most_ns = longest_ns.max(mapping_ns(graph, machine, &plain.plan()));
    Ok(match best {
        Ok(placed) if placed.predicted.period_ns <= most_ns => (placed, None),
        Ok(placed) => (plain, Some(Unplaced::Slow(placed.predicted.period_ns))),
        Err(unplaced) => (plain, Some(unplaced)),
    })
}

/// Returns a plan that leaves `spare` objects unused. A single pool gets these objects in addition. Several
/// pools get the counts of `plain`.
fn leaving(
    spare: u64,
    request: &Request<'_>,
    plain: &OwnedPlan,
    planner: &mut impl FnMut(&Request<'_>) -> Result<OwnedPlan, PlanningError>,
) -> Option<OwnedPlan> {
    let object_bytes = plain.pools.iter().map(|pool| pool.object_bytes).max()?;
    let spare_bytes = spare.checked_mul(object_bytes)?;
    let budget_bytes = request.budget_bytes.checked_sub(spare_bytes)?;
    let mut plan = planner(&Request { budget_bytes, ..*request }).ok()?;
    let sizes = |plan: &OwnedPlan| -> Vec<u64> {
        plan.pools.iter().map(|pool| pool.object_bytes).collect()
    };
    if let [pool] = &mut plan.pools[..] {
        pool.count += spare;
    } else if sizes(&plan) == sizes(plain) {
        plan.pools.clone_from(&plain.pools);
    } else {
        return None;
    }
    plan.budget_bytes = request.budget_bytes;
    Some(plan)
}

/// Returns the better of two attempts: the successful one with the shorter period, or the first if both
/// failed.
fn shorter(
    one: Result<OwnedPlan, Unplaced>,
    other: Result<OwnedPlan, Unplaced>,
) -> Result<OwnedPlan, Unplaced> {
    match (&one, &other) {
        (Ok(first), Ok(second)) if second.predicted.period_ns < first.predicted.period_ns => other,
        (Err(_), Ok(_)) => other,
        _ => one,
    }
}

/// Host time per iteration for mapping, in ns; 0 if the objects are fixed.
pub(crate) fn mapping_ns(graph: &Graph<'_>, machine: &Machine, plan: &Plan<'_>) -> u64 {
    if plan.placements.is_some() {
        return 0;
    }
    let slots = |iterations| slots(graph, machine, plan, iterations).map_or(0, |(_, slots)| slots);
    let objects = slots(2).saturating_sub(slots(1)) as u64;
    let ns_per_chunk = machine.map_ns_per_chunk.saturating_add(machine.unmap_ns_per_chunk);
    objects.saturating_mul(ns_per_chunk)
}

/// Fixes the objects of a plan over the fewest iterations that keep its period as short as before. If no
/// count does, uses the count among the first few with the shortest period. Tries more iterations only if the
/// period is still longer than `most_ns`, up to a bound on the work.
///
/// # Errors
/// The reason why there are no placements.
pub fn place(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
    most_ns: u64,
) -> Result<OwnedPlan, Unplaced> {
    let good_ns = plan.predicted.period_ns.min(most_ns);
    let mut best = Err(Unplaced::Large);
    let mut least = None;
    let mut left = MOST_SLOTS;
    'tries: for iterations in 1..=MOST_ITERATIONS {
        if iterations > FEW_ITERATIONS
            && best.as_ref().is_ok_and(|best: &OwnedPlan| best.predicted.period_ns <= most_ns)
        {
            break;
        }
        let Ok(size) = slots(graph, machine, &plan.plan(), iterations) else { return best };
        let ways = [(true, true), (false, true), (true, false), (false, false)];
        // A single iteration has no iteration before it to settle from.
        let ways = ways.into_iter().filter(|&(settled, _)| !settled || iterations > 1);
        for (settled, spares_due) in ways {
            let Some(rest) = left.checked_sub(size.1) else {
                let counts = plan.pools.iter().map(|pool| pool.count);
                let objects = counts.fold(0, u64::saturating_add);
                least = least.filter(|&short| short < objects / LACKING);
                break 'tries;
            };
            left = rest;
            // A search that lacks more objects than another search changes nothing.
            let most_lacking = if best.is_ok() { 0 } else { least.unwrap_or(u64::MAX) };
            let over = Over { iterations, settled, spares_due, most_lacking };
            match place_in(size, graph, machine, plan, over) {
                Ok(placed) if placed.predicted.period_ns <= good_ns => return Ok(placed),
                Ok(placed) => best = shorter(best, Ok(placed)),
                Err(PlacementError::Short { objects }) => {
                    least = Some(least.map_or(objects, |least: u64| least.min(objects)));
                }
                Err(_) => return best,
            }
        }
    }
    best.map_err(|unplaced| least.map_or(unplaced, Unplaced::Short))
}

/// Counts the allocations and object numbers of placements over `iterations`.
fn slots(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    iterations: u32,
) -> Result<(usize, usize), PlacementError> {
    let plan = Plan { placements: None, ..*plan };
    let mut memory = buffer(placement::scratch_words(&Limits::of_plan(graph, &plan)), 0)?;
    placement::slots(graph, machine, &plan, iterations, &mut Scratch::new(&mut memory))
}

/// Fixes the objects of a plan, without a limit on their number.
///
/// # Errors
/// The errors of [`placement::place`].
pub fn place_over(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
    over: Over,
) -> Result<OwnedPlan, PlacementError> {
    let size = slots(graph, machine, &plan.plan(), over.iterations)?;
    place_in(size, graph, machine, plan, over)
}

/// Fixes consecutive objects for each allocation; see [`placement::place_contiguously`].
///
/// # Errors
/// The errors of [`placement::place_contiguously`].
pub fn place_contiguously(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
    iterations: u32,
    most_steps: u64,
) -> Result<OwnedPlan, PlacementError> {
    let size = slots(graph, machine, &plan.plan(), iterations)?;
    let words = placement::contiguous_scratch_words;
    place_by(size, graph, plan, iterations, words, |plan, output, scratch| {
        placement::place_contiguously(graph, machine, plan, iterations, most_steps, output, scratch)
    })
}

/// [`place_over`] with known [`slots`].
fn place_in(
    size: (usize, usize),
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
    over: Over,
) -> Result<OwnedPlan, PlacementError> {
    let words = placement::scratch_words;
    place_by(size, graph, plan, over.iterations, words, |plan, output, scratch| {
        placement::place(graph, machine, plan, over, output, scratch)
    })
}

/// Allocates memory for a function of the core, and calls it.
fn place_by(
    (allocations, slots): (usize, usize),
    graph: &Graph<'_>,
    plan: &OwnedPlan,
    iterations: u32,
    words: fn(&Limits) -> usize,
    place: impl for<'o> FnOnce(
        &Plan<'o>,
        placement::PlacementOutput<'o>,
        &mut Scratch<'_>,
    ) -> Result<Plan<'o>, PlacementError>,
) -> Result<OwnedPlan, PlacementError> {
    let bare = Plan { placements: None, ..plan.plan() };
    let iterations = iterations as usize;
    let limits = Limits { iterations, objects: slots, ..Limits::of_plan(graph, &bare) };
    let mut memory = buffer(words(&limits), 0)?;
    let (objects, ends) = (&mut buffer(slots, 0)?, &mut buffer(allocations, 0)?);
    let placed =
        place(&bare, placement::PlacementOutput { objects, ends }, &mut Scratch::new(&mut memory))?;
    let placements = placed.placements.map(OwnedPlacements::from);
    let mut plan = plan.clone();
    (plan.placements, plan.predicted) = (placements, placed.predicted);
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use planner_core::Kind;

    const CHUNK_BYTES: u64 = 4096;
    const BUDGET_CHUNKS: u64 = 13;

    /// A chain of layers whose tensors have four chunks each.
    fn chain(chunk_bytes: u64) -> workloads::OwnedGraph {
        let mut owned = workloads::OwnedGraph::new("chain");
        let tensor = |graph: &mut workloads::OwnedGraph, name: &str, kind| {
            graph.push_tensor(name, 4 * chunk_bytes, kind)
        };
        let mut before = tensor(&mut owned, "input", Kind::Input);
        for layer in 0..4 {
            let weight = tensor(&mut owned, &format!("weight {layer}"), Kind::State);
            let after = tensor(&mut owned, &format!("value {layer}"), Kind::Temporary);
            owned.push_op("op", 1000, 0, &[before, weight], &[after]);
            before = after;
        }
        owned
    }

    fn machine(chunk_bytes: u64, map_ns_per_chunk: u64) -> Machine {
        let machine = workloads::machines::builtin("v100-pcie3").expect("a machine").machine;
        let mut parameters = (*machine).with_chunk_bytes(chunk_bytes);
        parameters.map_ns_per_chunk = map_ns_per_chunk;
        parameters.unmap_ns_per_chunk = map_ns_per_chunk;
        Machine::new(parameters).expect("a machine")
    }

    #[test]
    fn a_plan_that_maps_for_longer_than_another_runs_is_not_shorter() {
        let (owned, machine) = (chain(CHUNK_BYTES), machine(CHUNK_BYTES, 20_000));
        let graph = owned.graph().expect("a chain is a graph");
        let budget_bytes = BUDGET_CHUNKS * CHUNK_BYTES;
        let request = Request { graph: &graph, machine: &machine, budget_bytes };
        let plain = planning::plan(&request, Strategy::OnDemand).expect("a plan");
        let placed = place(&graph, &machine, &plain, u64::MAX).expect("placements");
        let shorter = |other: &OwnedPlan| {
            let best = (placed.clone(), None);
            let other = Ok((other.clone(), Some(Unplaced::Large)));
            shorter_plan(&request, best, other).expect("a plan").1.is_some()
        };
        let mapping_ns = mapping_ns(&graph, &machine, &plain.plan());
        let mut other = plain;
        other.predicted.period_ns = placed.predicted.period_ns - 1;
        assert!(mapping_ns > placed.predicted.period_ns, "{mapping_ns} ns");
        assert!(!shorter(&other));
    }

    #[test]
    fn above_a_gib_objects_are_fixed_although_waits_for_them_take_longer() {
        let is_fixed = |chunk_bytes, shorter| {
            let (owned, machine) = (chain(chunk_bytes), machine(chunk_bytes, 0));
            let graph = owned.graph().expect("a chain is a graph");
            let budget_bytes = BUDGET_CHUNKS * chunk_bytes;
            let request = Request { graph: &graph, machine: &machine, budget_bytes };
            let planned = plan_by(&request, |request| {
                let mut plan = planning::plan(request, Strategy::OnDemand)?;
                plan.predicted.period_ns -= plan.predicted.period_ns / shorter;
                Ok(plan)
            });
            planned.expect("a plan").0.placements.is_some()
        };
        assert!(is_fixed(CHUNK_BYTES, 200));
        assert!(!is_fixed(CHUNK_BYTES, 30));
        assert!(is_fixed(LARGE_BYTES / 8, 30));
        assert!(!is_fixed(LARGE_BYTES / 8, 15));
    }
}
