//! Plans with fixed physical objects: what a pool lacks for that, a plan leaves.

use crate::{OwnedPlacements, OwnedPlan, planning};
use planner_core::placement::{self, PlacementError};
use planner_core::planner::{PlanningError, Request, Strategy};
use planner_core::{Graph, Limits, Machine, Plan, Scheduled, Scratch};

/// Most iterations over which objects are fixed.
const MOST_ITERATIONS: u32 = 8;
/// Most object numbers of one plan.
const MOST_SLOTS: usize = 1 << 24;
/// Periods with placements may be longer than without by one in so many.
const LONGER: u64 = 100;
/// How often a plan is made with less, to leave objects for its placements.
const REPLANS: usize = 4;

/// Why a plan has no placements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unplaced {
    /// So many more objects would do, and no plan that leaves them was found.
    Short(u64),
    /// Waiting for fixed objects makes the period this long.
    Slow(u64),
    /// It takes too many objects.
    Large,
}

/// Plans with fixed physical objects where that costs at most a hundredth of the period:
/// where the objects do not suffice, or waiting for them takes longer, a plan for a smaller
/// budget may leave enough. Else the plan without, and why.
///
/// # Errors
/// Those of [`planner::plan`], but for room.
pub fn plan(
    request: &Request<'_>,
    strategy: Strategy,
) -> Result<(OwnedPlan, Option<Unplaced>), PlanningError> {
    let Request { graph, machine, budget_bytes } = *request;
    let plain = planning::plan(request, strategy)?;
    let most_ns = plain.predicted.period_ns.saturating_add(plain.predicted.period_ns / LONGER);
    let object_bytes = plain.pools.first().map_or(1, |pool| pool.object_bytes);
    let (mut candidate, mut spare) = (plain.clone(), 0);
    let mut first = None;
    for _ in 0..REPLANS {
        let unplaced = match place(graph, machine, &candidate, most_ns) {
            Ok(placed) => return Ok((placed, None)),
            Err(unplaced) => unplaced,
        };
        first.get_or_insert(unplaced);
        spare += match unplaced {
            Unplaced::Short(objects) => objects,
            Unplaced::Slow(_) => {
                1 + candidate.pools.iter().map(|pool| pool.count).sum::<u64>() / 200
            }
            Unplaced::Large => break,
        };
        let smaller_bytes = budget_bytes.saturating_sub(spare.saturating_mul(object_bytes));
        let Ok(smaller) =
            planning::plan(&Request { budget_bytes: smaller_bytes, ..*request }, strategy)
        else {
            break;
        };
        candidate = OwnedPlan { budget_bytes, ..smaller };
        for pool in candidate.pools.iter_mut().take(1) {
            pool.count += spare;
        }
    }
    Ok((plain, first))
}

/// Fixes the objects of a plan over the fewest iterations that do, if its period is then at
/// most this long.
///
/// # Errors
/// Why there are no such placements.
pub fn place(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
    most_ns: u64,
) -> Result<OwnedPlan, Unplaced> {
    let mut unplaced = Unplaced::Large;
    for iterations in 1..=MOST_ITERATIONS {
        match place_over(graph, machine, plan, iterations) {
            Ok(placed) if placed.predicted.period_ns <= most_ns => return Ok(placed),
            Ok(placed) => {
                unplaced = match unplaced {
                    Unplaced::Slow(least_ns) => {
                        Unplaced::Slow(least_ns.min(placed.predicted.period_ns))
                    }
                    _ => Unplaced::Slow(placed.predicted.period_ns),
                };
            }
            Err(PlacementError::Short { objects }) => {
                unplaced = match unplaced {
                    Unplaced::Short(least) => Unplaced::Short(least.min(objects)),
                    Unplaced::Large => Unplaced::Short(objects),
                    slow => slow,
                };
            }
            Err(_) => break,
        }
    }
    Err(unplaced)
}

/// Fixes the objects of a plan over so many iterations.
///
/// # Errors
/// Those of [`placement::place`].
pub fn place_over(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
    iterations: u32,
) -> Result<OwnedPlan, PlacementError> {
    let borrowed = Plan { placements: None, ..plan.plan() };
    let mut limits =
        Limits { iterations: iterations as usize, ..planning::limits(graph, &borrowed) };
    let mut memory = vec![0; placement::scratch_words(&limits)];
    let scratch = &mut Scratch::new(&mut memory);
    let (allocations, slots) = placement::slots(graph, machine, &borrowed, iterations, scratch)?;
    if slots > MOST_SLOTS {
        return Err(PlacementError::RoomFull);
    }
    limits.objects = slots;
    let mut memory = vec![0; placement::scratch_words(&limits)];
    let room = placement::Room {
        objects: &mut vec![0; slots],
        ends: &mut vec![0; allocations],
        schedule: &mut vec![Scheduled::EMPTY; limits.entries()],
    };
    let scratch = &mut Scratch::new(&mut memory);
    let placed = placement::place(graph, machine, &borrowed, iterations, room, scratch)?;
    Ok(OwnedPlan {
        placements: placed.placements.map(OwnedPlacements::from),
        predicted: placed.predicted,
        ..plan.clone()
    })
}
