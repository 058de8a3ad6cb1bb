//! The parts of the smallest feasible budget.

use planner_core::planner::{Held, LeastMemory, Request, Strategy};
use planner_core::{Graph, Kind, OpId, TensorId};
use spillway::names::Names;
use spillway::planning;
use spillway::units::{bytes, count};
use std::collections::HashSet;
use std::fmt::Write;
use workloads::OwnedMachine;

/// How many parts are listed by name.
const LISTED: usize = 6;

/// A part of the least memory.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    bytes: u64,
    what: String,
}

/// Lists the parts of a strategy's least memory, one per line, the largest first.
pub(crate) fn list(
    graph: &spillway::Graph,
    machine: &OwnedMachine,
    strategy: Strategy,
) -> Result<String, String> {
    let parts = parts(graph, machine, strategy)?;
    let mut text = String::new();
    for Part { bytes: part_bytes, what } in parts.iter().take(LISTED) {
        // Writing to a string does not fail.
        let _ = write!(text, "\n  {:>10}  {what}", bytes(*part_bytes));
    }
    let rest = parts.get(LISTED..).unwrap_or_default();
    if !rest.is_empty() {
        let rest_bytes = bytes(rest.iter().map(|part| part.bytes).sum());
        let _ = write!(text, "\n  {rest_bytes:>10}  and {} more", count(rest.len() as u64));
    }
    Ok(text)
}

/// All parts, the largest first. Their sum is the least memory.
fn parts(
    work: &spillway::Graph,
    machine: &OwnedMachine,
    strategy: Strategy,
) -> Result<Vec<Part>, String> {
    let (graph, machine) = (work.graph(), &machine.machine);
    let names = Names::new(work.owned(), &[]);
    let request = Request { graph: &graph, machine, budget_bytes: machine.device_bytes };
    let least = planning::least_memory(&request, strategy);
    let (least, in_arena) = least.map_err(|error| names.planning_error(&error, 0))?;
    let in_arena: HashSet<TensorId> = in_arena.into_iter().collect();
    let in_chunks = |bytes| machine.round_up_to_chunks(bytes).unwrap_or(u64::MAX);
    let LeastMemory { op, arena_bytes, placed, bytes: least_bytes, held, .. } = least;
    let tensors = match held {
        Held::Alive => alive(&graph, op),
        Held::Layer => {
            let touched = operands(&graph, op);
            let is_state = |tensor: TensorId| graph.tensor(tensor).kind == Kind::State;
            let mut parts = alive(&graph, op);
            parts.retain(|tensor| !is_state(*tensor) || touched.contains(tensor));
            parts
        }
        _ => operands(&graph, op),
    };
    let tensors = tensors.into_iter().filter(|tensor| !in_arena.contains(tensor));
    let mut parts: Vec<_> = tensors
        .map(|tensor| Part {
            bytes: in_chunks(graph.tensor(tensor).bytes),
            what: names.tensor(tensor),
        })
        .collect();
    let workspace = Part {
        bytes: in_chunks(graph.op(op).workspace_bytes),
        what: "the workspace of the op".to_owned(),
    };
    let arena = Part {
        bytes: in_chunks(arena_bytes),
        what: format!("the arena of the {} small tensors", count(placed as u64)),
    };
    parts.extend([workspace, arena]);
    let listed_bytes = parts.iter().map(|part| part.bytes).sum();
    let bytes = least_bytes.saturating_sub(listed_bytes);
    let what = match held {
        Held::Operands => "other states, for which the host has no memory",
        _ => "other tensors that are alive at the op",
    };
    parts.push(Part { bytes, what: what.to_owned() });
    parts.retain(|part| part.bytes > 0);
    // The sort is stable: parts of equal size keep the order of the op's operands.
    parts.sort_by_key(|part| std::cmp::Reverse(part.bytes));
    Ok(parts)
}

/// The tensors that an op touches, each once.
fn operands(graph: &Graph<'_>, op: OpId) -> Vec<TensorId> {
    let mut seen = HashSet::new();
    graph.operands_of(op).iter().copied().filter(|&tensor| seen.insert(tensor)).collect()
}

/// The tensors alive at an op: each touched state, and each other tensor from its first touch to
/// its last.
fn alive(graph: &Graph<'_>, op: OpId) -> Vec<TensorId> {
    let mut touches = vec![None; graph.tensors().len()];
    for op in graph.op_ids() {
        for tensor in graph.operands_of(op) {
            let (first, _) = touches[tensor.index()].unwrap_or((op, op));
            touches[tensor.index()] = Some((first, op));
        }
    }
    let alive = |tensor: &TensorId| {
        let is_state = graph.tensor(*tensor).kind == Kind::State;
        touches[tensor.index()].is_some_and(|(first, last)| is_state || first <= op && op <= last)
    };
    graph.tensor_ids().filter(alive).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use workloads::chain::{Layer, OwnedChain};
    use workloads::machines;
    use zoo::models;

    /// The host has memory for all states, so only a wrong list of tensors leaves a rest.
    #[test]
    fn the_parts_of_every_strategy_are_listed() {
        let layer =
            Layer { backward_ns: 9, weight_bytes: 40, activation_bytes: 50, ..Layer::default() };
        let chain = OwnedChain {
            name: "chain".to_owned(),
            device_bytes: 1000,
            bandwidth_bytes_per_s: 1,
            input_bytes: 50,
            layers: vec![layer; 4],
        };
        let works = [
            (chain.graph(), chain.machine().unwrap()),
            (
                models::generate("resnet50:batch=2,image=64").unwrap(),
                machines::builtin("rtx4090").unwrap(),
            ),
        ];
        let mut listed = 0;
        for (graph, machine) in works {
            let work = spillway::Graph::new(graph).unwrap();
            let graph = work.graph();
            let request = Request { graph: &graph, machine: &machine.machine, budget_bytes: 0 };
            for strategy in Strategy::all() {
                let Ok((least, _)) = planning::least_memory(&request, strategy) else { continue };
                let parts = parts(&work, &machine, strategy).unwrap();
                let name = strategy.name();
                assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), least.bytes, "{name}");
                let has_rest = parts.iter().any(|part| part.what.starts_with("other "));
                assert!(!has_rest || least.held == Held::AliveInPlan, "{name}");
                listed += 1;
            }
        }
        assert!(listed > Strategy::all().len(), "{listed}");
    }

    #[test]
    fn the_parts_make_up_the_least_memory() {
        for spec in ["resnet50:batch=2,image=64", "resnet50:batch=16"] {
            let work = spillway::Graph::new(models::generate(spec).unwrap()).unwrap();
            let machine = machines::builtin("v100-pcie3").unwrap();
            let graph = work.graph();
            let short = machine.clone().with_machine(machine.machine.with_host_bytes(1 << 20));
            for (machine, strategy, beside_host) in [
                (&machine, Strategy::InCore, false),
                (&machine, Strategy::Fit, false),
                (&short, Strategy::Fit, true),
            ] {
                let request = Request { graph: &graph, machine: &machine.machine, budget_bytes: 0 };
                let (least_bytes, _) = planning::min_feasible(&request, strategy).unwrap();
                let parts = parts(&work, machine, strategy).unwrap();
                assert_eq!(parts.iter().map(|part| part.bytes).sum::<u64>(), least_bytes);
                assert!(parts.is_sorted_by(|one, next| one.bytes >= next.bytes));
                let is_beside_host = |part: &Part| part.what.contains("the host has no memory");
                assert_eq!(parts.iter().any(is_beside_host), beside_host);
                let lines = list(&work, machine, strategy).unwrap().lines().count();
                let more = usize::from(parts.len() > LISTED);
                assert_eq!(lines, 1 + parts.len().min(LISTED) + more, "the first line is empty");
            }
        }
    }
}
