//! Corruptions of plans.

use super::predicted_by_ledger;
use crate::choices::Choices;
use planner_core::plan::ArenaPlacement;
use planner_core::{Graph, Kind, Launched, Machine, OpId, Part, Step, TensorId};
use workloads::{OwnedPlacements, OwnedPlan};

/// The plan with one random corruption. If it is still valid, its predictions are made exact again,
/// unless they are the corruption.
#[must_use]
pub fn mutate(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &OwnedPlan,
    choices: &mut Choices,
) -> OwnedPlan {
    let mut mutated = plan.clone();
    match choices.below(11) {
        // A plan without placements gets corrupted steps instead.
        0..=1 if corrupt_placements(&mut mutated, choices) => {}
        0..=2 => corrupt_steps(graph, &mut mutated, choices),
        3 => corrupt_places(graph, &mut mutated, choices),
        4 => corrupt_start(graph, &mut mutated, choices),
        5 => corrupt_pools(graph, &mut mutated, choices),
        6 => corrupt_arena(graph, machine, &mut mutated, choices),
        7..=8 => corrupt_repeats(&mut mutated, choices),
        9 => leave_an_arena_input_absent(graph, &mut mutated, choices),
        _ => {
            corrupt_figures(machine, &mut mutated, choices);
            return mutated;
        }
    }
    predicted_by_ledger(mutated, graph, machine)
}

fn corrupt_steps(graph: &Graph<'_>, plan: &mut OwnedPlan, choices: &mut Choices) {
    let at = choices.below(plan.steps.len());
    let other = choices.below(plan.steps.len());
    match choices.below(10) {
        0 => {
            plan.steps.remove(at);
        }
        1 => plan.steps.swap(at, other),
        2 => {
            let step = plan.steps.remove(at);
            plan.steps.insert(other, step);
        }
        3 => plan.steps.insert(other, plan.steps[at]),
        4 => plan.steps.insert(at, random_step(graph, choices)),
        5 => plan.steps[at] = random_step(graph, choices),
        6 => {
            let tensor = random_tensor(graph, choices);
            plan.steps.retain(|step| !moves(step, tensor));
        }
        7 => offload_an_input(graph, plan, other, choices),
        8 => lose_an_output(graph, plan, choices),
        _ => plan.steps[at] = renamed(graph, plan.steps[at], choices),
    }
}

/// Moves an op between the device and the host, or moves a step on the host within the list. If the
/// plan has no op that may run on the host, adds such a step.
fn corrupt_places(graph: &Graph<'_>, plan: &mut OwnedPlan, choices: &mut Choices) {
    let may = |step: &Step| match *step {
        Step::Host(_) => true,
        Step::Launch(Launched { op, is_repeat: false }) => graph.op(op).host_ns.is_some(),
        _ => false,
    };
    let positions: Vec<usize> = (0..plan.steps.len()).filter(|&at| may(&plan.steps[at])).collect();
    let other = choices.below(plan.steps.len());
    match choices.pick(&positions) {
        None => plan.steps.insert(other, Step::Host(random_op(graph, choices))),
        Some(at) if choices.one_in(3) => plan.steps.swap(at, other),
        Some(at) => {
            plan.steps[at] = match plan.steps[at] {
                Step::Host(op) => Step::launch(op),
                Step::Launch(Launched { op, .. }) => Step::Host(op),
                step => step,
            };
        }
    }
}

/// Launches an op once more, or changes one of the existing repeats.
fn corrupt_repeats(plan: &mut OwnedPlan, choices: &mut Choices) {
    let positions = |repeats_only: bool| -> Vec<usize> {
        let is_wanted =
            |step: &Step| matches!(*step, Step::Launch(it) if it.is_repeat || !repeats_only);
        (0..plan.steps.len()).filter(|&at| is_wanted(&plan.steps[at])).collect()
    };
    let (launch, repeat) = (choices.pick(&positions(false)), choices.pick(&positions(true)));
    let other = choices.below(plan.steps.len() + 1);
    match (choices.below(5), launch, repeat) {
        (0, _, Some(at)) => {
            plan.steps.remove(at);
        }
        (1, _, Some(at)) => {
            let step = plan.steps.remove(at);
            plan.steps.insert(other.min(plan.steps.len()), step);
        }
        (2, Some(at), _) => {
            if let Step::Launch(launched) = &mut plan.steps[at] {
                launched.is_repeat = !launched.is_repeat;
            }
        }
        (_, Some(at), _) => {
            if let Step::Launch(Launched { op, .. }) = plan.steps[at] {
                plan.steps.insert(other.max(at + 1), Step::repeat(op));
            }
        }
        (_, None, _) => {}
    }
}

/// Offloads an input that is resident at start or that a prefetch brings.
fn offload_an_input(graph: &Graph<'_>, plan: &mut OwnedPlan, at: usize, choices: &mut Choices) {
    let brought = plan.steps.iter().filter_map(|step| match *step {
        Step::Prefetch(part) => Some(part),
        _ => None,
    });
    let started = plan.resident_at_start.iter().map(|resident| resident.part);
    let is_input = |part: &Part| graph.tensor(part.tensor).kind == Kind::Input;
    let parts: Vec<Part> = started.chain(brought).filter(is_input).collect();
    if let Some(part) = choices.pick(&parts) {
        plan.steps.insert(at, Step::Offload(part));
    }
}

/// Removes the offloads of an output.
fn lose_an_output(graph: &Graph<'_>, plan: &mut OwnedPlan, choices: &mut Choices) {
    let is_output = |&tensor: &TensorId| graph.tensor(tensor).kind == Kind::Output;
    let outputs: Vec<TensorId> = graph.tensor_ids().filter(is_output).collect();
    if let Some(tensor) = choices.pick(&outputs) {
        plan.steps.retain(|step| !matches!(step, Step::Offload(part) if part.tensor == tensor));
    }
}

/// Whether a step copies or evicts a part of the tensor.
fn moves(step: &Step, tensor: TensorId) -> bool {
    step.part().is_some_and(|part| part.tensor == tensor)
}

/// The step with another tensor, range or op.
fn renamed(graph: &Graph<'_>, step: Step, choices: &mut Choices) -> Step {
    match step {
        Step::Host(_) => Step::Host(random_op(graph, choices)),
        Step::Launch(Launched { is_repeat, .. }) => {
            Step::Launch(Launched { op: random_op(graph, choices), is_repeat })
        }
        Step::Prefetch(part) => Step::Prefetch(altered(graph, part, choices)),
        Step::Offload(part) => Step::Offload(altered(graph, part, choices)),
        Step::Evict(part) => Step::Evict(altered(graph, part, choices)),
    }
}

/// One of a graph's ops, or the first id that it does not have.
fn random_op(graph: &Graph<'_>, choices: &mut Choices) -> OpId {
    let ops = graph.ops().len();
    OpId(if choices.one_in(8) { ops } else { choices.below(ops) } as u32)
}

fn random_tensor(graph: &Graph<'_>, choices: &mut Choices) -> TensorId {
    TensorId(choices.below(graph.tensors().len() + 1) as u32)
}

fn random_step(graph: &Graph<'_>, choices: &mut Choices) -> Step {
    let part = random_part(graph, choices);
    match choices.below(6) {
        5 => Step::Host(random_op(graph, choices)),
        0 => Step::Prefetch(part),
        1 => Step::Offload(part),
        2 => Step::Evict(part),
        3 => Step::repeat(random_op(graph, choices)),
        _ => Step::launch(random_op(graph, choices)),
    }
}

fn random_part(graph: &Graph<'_>, choices: &mut Choices) -> Part {
    let tensor = random_tensor(graph, choices);
    match choices.below(2) {
        0 => Part::whole(tensor),
        _ => Part { tensor, first: choices.below(4) as u64, count: choices.below(4) as u64 },
    }
}

fn altered(graph: &Graph<'_>, part: Part, choices: &mut Choices) -> Part {
    match choices.below(6) {
        0 => random_part(graph, choices),
        1 => Part { tensor: random_tensor(graph, choices), ..part },
        2 => Part { first: part.first + 1, count: part.count.saturating_sub(1), ..part },
        3 => Part { count: part.count.saturating_sub(1), ..part },
        4 => Part { first: 0, count: part.count.saturating_add(1), ..part },
        _ => Part { first: u64::MAX, count: 2, ..part },
    }
}

fn corrupt_start(graph: &Graph<'_>, plan: &mut OwnedPlan, choices: &mut Choices) {
    let residents = &mut plan.resident_at_start;
    let at = choices.below(residents.len());
    match (choices.below(4), residents.get_mut(at)) {
        (0, Some(_)) => {
            residents.remove(at);
        }
        (1, Some(resident)) => resident.host_copy = !resident.host_copy,
        (2, Some(resident)) => resident.part = altered(graph, resident.part, choices),
        _ => {
            let part = random_part(graph, choices);
            let host_copy = choices.one_in(2);
            residents.push(planner_core::plan::Resident { part, host_copy });
        }
    }
}

fn corrupt_pools(graph: &Graph<'_>, plan: &mut OwnedPlan, choices: &mut Choices) {
    let pools = plan.pools.len();
    let Some(pool) = plan.pools.get_mut(choices.below(pools)) else { return };
    match choices.below(7) {
        0 => pool.count = pool.count.saturating_sub(1),
        1 => pool.object_bytes += 1,
        2 => pool.object_bytes = pool.object_bytes.div_ceil(2),
        3 => pool.object_bytes = 0,
        4 => pool.count = u64::MAX,
        5 => {
            plan.tensor_pool.resize(graph.tensors().len(), 0);
            let tensor = choices.below(graph.tensors().len());
            plan.tensor_pool[tensor] = choices.below(pools + 1) as u32;
        }
        _ => {
            plan.workspace_pool.resize(graph.ops().len(), 0);
            plan.workspace_pool.truncate(graph.ops().len() - choices.below(2));
            let op = choices.below(plan.workspace_pool.len());
            if let Some(pool) = plan.workspace_pool.get_mut(op) {
                *pool = choices.below(pools + 1) as u32;
            }
        }
    }
}

/// Changes an object number or an array of them. Returns false if the plan has none.
pub(super) fn corrupt_placements(plan: &mut OwnedPlan, choices: &mut Choices) -> bool {
    let most = plan.pools.iter().map(|pool| pool.count).max().unwrap_or(0) as usize;
    let Some(OwnedPlacements { iterations, objects, ends, .. }) = &mut plan.placements else {
        return false;
    };
    if objects.is_empty() {
        return false;
    }
    let (one, other) = (choices.below(objects.len()), choices.below(objects.len()));
    let array = choices.below(ends.len());
    match choices.below(8) {
        0 | 1 => objects[one] = choices.below(most + 1) as u64,
        2 => objects.swap(one, other),
        3 => objects[one] = objects[other],
        4 => *iterations = choices.pick(&[0, 1, 2, 3, 65]).unwrap_or(0),
        5 => {
            ends.remove(array);
            objects.truncate(ends.last().map_or(0, |&end| end as usize));
        }
        6 => ends.push(objects.len() as u32),
        _ => {
            objects.insert(ends[array] as usize, choices.below(most) as u64);
            for end in &mut ends[array..] {
                *end += 1;
            }
        }
    }
    true
}

/// Moves or adds a tensor in the arena. The budget grows by the size of an added tensor.
fn corrupt_arena(
    graph: &Graph<'_>,
    machine: &Machine,
    plan: &mut OwnedPlan,
    choices: &mut Choices,
) {
    let at = choices.below(plan.arena.len());
    match (choices.below(5), plan.arena.get_mut(at)) {
        (0, Some(placement)) => placement.offset_bytes += 1,
        (1, Some(placement)) => placement.offset_bytes = 0,
        (2, Some(placement)) => placement.tensor = random_tensor(graph, choices),
        (3, Some(_)) => {
            plan.arena.remove(at);
        }
        _ => {
            let tensor = random_tensor(graph, choices);
            let offset_bytes = plan.arena_bytes.next_multiple_of(machine.chunk_bytes.max(256));
            let bytes = graph.tensors().get(tensor.index()).map_or(0, |tensor| tensor.bytes);
            plan.budget_bytes += offset_bytes + bytes + machine.chunk_bytes;
            plan.arena_bytes = offset_bytes + bytes;
            plan.arena.push(ArenaPlacement { tensor, offset_bytes });
        }
    }
}

/// Removes the prefetch of an input in the arena.
fn leave_an_arena_input_absent(graph: &Graph<'_>, plan: &mut OwnedPlan, choices: &mut Choices) {
    let in_arena = plan.arena.iter().map(|placement| placement.tensor);
    let is_input = |tensor: &TensorId| graph.tensor(*tensor).kind == Kind::Input;
    let inputs: Vec<TensorId> = in_arena.filter(is_input).collect();
    if let Some(tensor) = choices.pick(&inputs) {
        plan.steps.retain(|step| !moves(step, tensor));
    }
}

fn corrupt_figures(machine: &Machine, plan: &mut OwnedPlan, choices: &mut Choices) {
    let predicted = &mut plan.predicted;
    match choices.below(10) {
        0 => predicted.period_ns += 1,
        1 => predicted.compute_ns = predicted.compute_ns.saturating_sub(1),
        2 => predicted.peak_bytes += machine.chunk_bytes,
        3 => predicted.h2d_bytes = predicted.h2d_bytes.saturating_sub(1),
        4 => predicted.d2h_bytes += 1,
        5 => predicted.host_bytes += 1,
        6 => predicted.host_bytes = predicted.host_bytes.saturating_sub(1),
        7 => predicted.repeat_ns += 1,
        8 => plan.budget_bytes = machine.device_bytes + 1,
        _ => plan.budget_bytes = plan.budget_bytes.saturating_sub(machine.chunk_bytes),
    }
}
