//! Fixed physical objects: who holds each of them, and for how long (`docs/format.md`, 3.6).

use super::Violation;
use super::layout::Layout;
use super::values::{Objects, StepRecord, Taken};
use planner_core::plan::Location;
use planner_core::{Step, TensorId};
use std::collections::BTreeMap;

/// A physical object: its pool and its number in the pool.
pub(super) type Physical = (usize, u64);

/// One allocation. Positions count the steps of all iterations from 1; 0 is the start.
pub(crate) struct Allocation {
    pub(crate) location: Location,
    pub(crate) at: usize,
    pub(crate) pool: usize,
    pub(crate) stays: Vec<Stay>,
}

/// One object of an allocation.
#[derive(Clone, Copy)]
pub(crate) struct Stay {
    /// The object of a tensor that is held. `None` in a workspace.
    pub(crate) held: Option<(TensorId, u64)>,
    /// The position of the release. `None` if the object is resident at the end.
    pub(crate) until: Option<usize>,
}

/// All allocations of `iterations` iterations, in the order of placements: first one for each entry
/// of `resident_at_start`, then one for each prefetch. A launch has one for each written tensor
/// that is not completely resident, and one for its workspace. Arena tensors have none.
pub(super) fn allocations(
    layout: &Layout<'_>,
    records: &[StepRecord],
    iterations: u32,
) -> Result<Vec<Allocation>, Violation> {
    let mut allocations: Vec<Allocation> = Vec::new();
    let of_tensor = |tensor, object| Stay { held: Some((tensor, object)), until: None };
    for (location, resident) in (0..).map(Location::Start).zip(layout.plan.resident_at_start) {
        let tensor = resident.part.tensor;
        if let Some(pool) = layout.pool_of(tensor) {
            let objects = layout.named(location, resident.part)?;
            let stays = objects.map(|object| of_tensor(tensor, object)).collect();
            allocations.push(Allocation { location, at: 0, pool, stays });
        }
    }
    // A step allocates the same objects in every iteration.
    let iteration = &records[..layout.plan.steps.len()];
    for (at, record) in (1..).zip((0..iterations).flat_map(|_| iteration)) {
        let location = Location::Step(record.step as u32);
        for Taken { pool, objects } in &record.taken {
            let stays = match objects {
                Objects::Of(tensor, objects) => {
                    objects.iter().map(|&object| of_tensor(*tensor, object)).collect()
                }
                // A workspace is released at its launch's own position.
                Objects::Workspace(count) => {
                    vec![Stay { held: None, until: Some(at) }; *count as usize]
                }
            };
            allocations.push(Allocation { location, at, pool: *pool, stays });
        }
        if let Step::Evict(part) = record.action {
            for stay in allocations.iter_mut().flat_map(|allocation| &mut allocation.stays) {
                let named = stay.held.is_some_and(|(tensor, object)| {
                    tensor == part.tensor && record.objects.contains(&object)
                });
                if named && stay.until.is_none() {
                    stay.until = Some(at);
                }
            }
        }
    }
    Ok(allocations)
}

/// The objects that one step of one iteration takes and releases.
#[derive(Default)]
pub(super) struct Change {
    pub(super) taken: Vec<Physical>,
    pub(super) given: Vec<Physical>,
}

/// All changes of the iterations that the placements cover, in list order.
pub(super) struct Changes(Vec<Change>);

impl Changes {
    /// The changes of a step.
    pub(super) fn of(&self, record: &StepRecord, steps: usize) -> &Change {
        &self.0[((record.iteration as usize - 1) * steps + record.step) % self.0.len()]
    }
}

/// Follows the placements if the plan has any. No object may have two holders, and everything that
/// is resident at the end of all iterations must lie in the same objects as at the start.
pub(super) fn follow(
    layout: &Layout<'_>,
    records: &[StepRecord],
) -> Result<Option<Changes>, Violation> {
    let Some(placements) = layout.plan.placements else { return Ok(None) };
    if !(1..=64).contains(&placements.iterations) {
        return Err(Violation::of_plan("the placements do not cover 1 to 64 iterations"));
    }
    let allocations = allocations(layout, records, placements.iterations)?;
    if placements.ends.len() > allocations.len() {
        return Err(Violation::of_plan("there are more placements than allocations"));
    }
    let mut holders: BTreeMap<Physical, Vec<(usize, Stay)>> = BTreeMap::new();
    for (number, Allocation { location, at, pool, stays }) in (0..).zip(&allocations) {
        let objects = placements.of(number);
        if objects.len() != stays.len() {
            let message = format!("placements[{number}] has {} numbers", objects.len());
            return Err(Violation::at(*location, message));
        }
        for (&object, stay) in objects.iter().zip(stays) {
            if object >= layout.plan.pools[*pool].count {
                return Err(Violation::at(
                    *location,
                    format!("pool {pool} has no object {object}"),
                ));
            }
            let earlier = holders.entry((*pool, object)).or_default();
            if earlier.iter().any(|(_, other)| other.until.is_none_or(|until| until >= *at)) {
                return Err(Violation::at(*location, format!("object {object} has two holders")));
            }
            earlier.push((*at, *stay));
        }
    }
    let resident = |counts: fn(&(usize, Stay)) -> bool| -> BTreeMap<_, _> {
        let stays =
            holders.iter().flat_map(|(object, stays)| stays.iter().map(move |s| (object, s)));
        stays
            .filter(|(_, stay)| counts(stay))
            .map(|(object, (_, stay))| (stay.held, *object))
            .collect()
    };
    if resident(|(at, _)| *at == 0) != resident(|(_, stay)| stay.until.is_none()) {
        let message = "what is resident lies in other objects than at the start";
        return Err(Violation::at(Location::End, message));
    }
    let steps = layout.plan.steps.len() * placements.iterations as usize;
    let mut changes: Vec<Change> = (0..steps).map(|_| Change::default()).collect();
    for (&object, (at, stay)) in
        holders.iter().flat_map(|(object, stays)| stays.iter().map(move |s| (object, s)))
    {
        if let Some(step) = at.checked_sub(1) {
            changes[step].taken.push(object);
        }
        if let Some(until) = stay.until {
            changes[until - 1].given.push(object);
        }
    }
    Ok(Some(Changes(changes)))
}
