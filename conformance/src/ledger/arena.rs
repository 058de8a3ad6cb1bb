//! Which tensors may lie in the arena, and at which offsets (`docs/format.md`, 3.3).

use super::Violation;
use super::order::Order;
use crate::graphs::is_exchanged;
use planner_core::plan::{ArenaPlacement, Location};
use planner_core::{Graph, Kind, Machine, Plan, Step, TensorId};

/// Checks the offsets and kinds of all tensors in the arena.
pub(super) fn check(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    order: &Order<'_>,
) -> Result<(), Violation> {
    for (at, placement) in plan.arena.iter().enumerate() {
        let location = Location::Arena(at as u32);
        check_offset(graph, machine, plan, placement)
            .map_err(|message| Violation::at(location, message))?;
        for earlier in &plan.arena[..at] {
            if earlier.tensor == placement.tensor {
                return Err(Violation::at(location, format!("{} has two offsets", earlier.tensor)));
            }
            if overlap(graph, earlier, placement)
                && !may_share(graph, order, earlier.tensor, placement.tensor)
            {
                let message = format!("shares bytes with {} while both live", earlier.tensor);
                return Err(Violation::at(location, message));
            }
        }
        match graph.tensor(placement.tensor).kind {
            Kind::State => check_state(plan, placement.tensor),
            Kind::Input => check_input(plan, order, placement.tensor),
            Kind::Temporary | Kind::Output => Ok(()),
        }
        .map_err(|message| Violation::at(location, message))?;
    }
    check_host_steps(graph, plan)
}

/// Checks that no tensor that an op on the host touches lies in the arena.
fn check_host_steps(graph: &Graph<'_>, plan: &Plan<'_>) -> Result<(), Violation> {
    for (step, action) in plan.steps.iter().enumerate() {
        let Step::Host(op) = *action else { continue };
        for tensor in graph.touches(op) {
            if plan.arena.iter().any(|placement| placement.tensor == tensor) {
                let message = format!("{op} runs on the host, and {tensor} lies in the arena");
                return Err(Violation::at(Location::Step(step as u32), message));
            }
        }
    }
    Ok(())
}

/// Checks that an offset is a multiple of 256, or of a chunk if a chunk is smaller, and that the
/// tensor ends inside the arena.
fn check_offset(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &Plan<'_>,
    placement: &ArenaPlacement,
) -> Result<(), &'static str> {
    if !placement.offset_bytes.is_multiple_of(machine.chunk_bytes.min(256)) {
        return Err("the offset is not aligned");
    }
    let end_bytes = placement.offset_bytes.checked_add(graph.tensor(placement.tensor).bytes);
    if end_bytes.is_none_or(|end_bytes| end_bytes > plan.arena_bytes) {
        return Err("it reaches past the end of the arena");
    }
    Ok(())
}

fn overlap(graph: &Graph<'_>, one: &ArenaPlacement, other: &ArenaPlacement) -> bool {
    let ends_before = |one: &ArenaPlacement, other: &ArenaPlacement| {
        one.offset_bytes + graph.tensor(one.tensor).bytes <= other.offset_bytes
    };
    !ends_before(one, other) && !ends_before(other, one)
}

/// States, inputs, outputs and the tensors of collectives own their bytes. Two other temporaries may
/// share bytes if no span of one overlaps a span of the other.
fn may_share(graph: &Graph<'_>, order: &Order<'_>, one: TensorId, other: TensorId) -> bool {
    let shares = |tensor: TensorId| {
        graph.tensor(tensor).kind == Kind::Temporary && !is_exchanged(graph, tensor)
    };
    let spans = order.spans(other);
    let is_apart = |(first, last)| {
        spans.iter().all(|&(other_first, other_last)| last < other_first || other_last < first)
    };
    shares(one) && shares(other) && order.spans(one).into_iter().all(is_apart)
}

/// Checks that a state in the arena is resident at start.
fn check_state(plan: &Plan<'_>, tensor: TensorId) -> Result<(), &'static str> {
    let listed = plan.resident_at_start.iter().any(|resident| resident.part.tensor == tensor);
    if listed { Ok(()) } else { Err("a state in the arena is resident at start") }
}

/// Checks that an input in the arena is read, is not written after its last read, and has exactly
/// one prefetch. The rules of residency decide where the prefetch comes: after the last read if the
/// input is resident at start, and otherwise before it.
fn check_input(plan: &Plan<'_>, order: &Order<'_>, tensor: TensorId) -> Result<(), &'static str> {
    let Some(last_read) = order.last_read(tensor) else {
        return Err("an input that is never read may not lie in the arena");
    };
    if order.last_write(tensor).is_some_and(|last_write| last_write > last_read) {
        return Err("an input written after its last read may not lie in the arena");
    }
    let prefetches = plan
        .steps
        .iter()
        .filter(|step| matches!(step, Step::Prefetch(part) if part.tensor == tensor))
        .count();
    if prefetches == 1 { Ok(()) } else { Err("an input in the arena needs one prefetch") }
}
