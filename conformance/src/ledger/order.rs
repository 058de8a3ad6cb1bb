//! The order of the launches on the device and on the host, and its consequences for each tensor
//! (`docs/format.md`, rule 1).

use super::Violation;
use planner_core::plan::Location;
use planner_core::{Graph, Kind, Launched, OpId, Plan, Step, TensorId};

/// The launches in list order, each with its step.
pub(super) struct Order<'a> {
    graph: &'a Graph<'a>,
    launches: Vec<(usize, Launched)>,
}

impl<'a> Order<'a> {
    /// Rule 1. Every op is launched, on the device or, if it has a time there, on the host. Only
    /// repeatable ops on the device are launched again. If one of two ops writes a tensor that the
    /// other touches, their first launches keep the order of the graph.
    pub(super) fn check(graph: &'a Graph<'a>, plan: &Plan<'_>) -> Result<Self, Violation> {
        let mut launches: Vec<(usize, Launched)> = Vec::new();
        let mut on_host = Vec::new();
        for (step, action) in plan.steps.iter().enumerate() {
            let at = |message: String| Violation::at(Location::Step(step as u32), message);
            let launched = match *action {
                Step::Launch(launched) => launched,
                Step::Host(op) if graph.op(op).host_ns.is_none() => {
                    return Err(at(format!("{op} has no time on the host")));
                }
                Step::Host(op) => {
                    on_host.push(op);
                    Launched::first(op)
                }
                _ => continue,
            };
            if launched.is_repeat && on_host.contains(&launched.op) {
                return Err(at(format!("{} runs on the host, and there once", launched.op)));
            }
            check_launch(graph, &launches, launched).map_err(at)?;
            launches.push((step, launched));
        }
        for op in graph.op_ids() {
            if !launches.iter().any(|(_, launched)| launched.op == op) {
                return Err(Violation::at(Location::End, format!("{op} is never launched")));
            }
        }
        Ok(Self { graph, launches })
    }

    fn steps(&self, matches: impl Fn(Launched) -> bool) -> impl Iterator<Item = usize> {
        self.launches.iter().filter(move |(_, launched)| matches(*launched)).map(|(step, _)| *step)
    }

    /// The last step in the list that reads the tensor.
    pub(super) fn last_read(&self, tensor: TensorId) -> Option<usize> {
        self.steps(|launched| is_read(self.graph, launched, tensor)).last()
    }

    /// The last step in the list that writes the tensor.
    pub(super) fn last_write(&self, tensor: TensorId) -> Option<usize> {
        self.steps(|launched| is_written(self.graph, launched, tensor)).last()
    }

    /// The spans of a tensor, each as its first and last step. A span begins with each launch or
    /// repeat that writes the tensor without reading it.
    pub(super) fn spans(&self, tensor: TensorId) -> Vec<(usize, usize)> {
        let mut spans: Vec<(usize, usize)> = Vec::new();
        for &(step, launched) in &self.launches {
            if !touches(self.graph, launched, tensor) {
                continue;
            }
            match spans.last_mut() {
                Some(span) if is_read(self.graph, launched, tensor) => span.1 = step,
                _ => spans.push((step, step)),
            }
        }
        spans
    }

    /// The op that makes the value that the first launch of an op reads: the last op that writes
    /// the tensor and is first launched earlier. `None` if that is the value from the start of the
    /// iteration.
    pub(super) fn maker(&self, op: OpId, tensor: TensorId) -> Option<OpId> {
        let firsts = self.launches.iter().filter(|(_, launched)| !launched.is_repeat);
        let before = firsts.map(|(_, launched)| launched.op).take_while(|&earlier| earlier != op);
        before.filter(|&earlier| self.graph.writes(earlier).contains(&tensor)).last()
    }

    /// All launches after a step of the list.
    pub(super) fn after(&self, step: usize) -> impl Iterator<Item = Launched> {
        self.launches.iter().filter(move |(at, _)| *at > step).map(|(_, launched)| *launched)
    }
}

fn check_launch(
    graph: &Graph<'_>,
    before: &[(usize, Launched)],
    Launched { op, is_repeat }: Launched,
) -> Result<(), String> {
    match (before.iter().any(|(_, earlier)| earlier.op == op), is_repeat) {
        (false, true) => return Err(format!("{op} is repeated before its first launch")),
        (true, false) => return Err(format!("{op} is launched twice")),
        (true, true) if !graph.op(op).repeatable => {
            return Err(format!("{op} is repeated and is not repeatable"));
        }
        (true, true) => return Ok(()),
        (false, false) => {}
    }
    for (_, earlier) in before.iter().filter(|(_, earlier)| earlier.op > op) {
        if let Some(tensor) = conflict(graph, earlier.op, op) {
            return Err(format!("{op} depends on {} the other way: {tensor}", earlier.op));
        }
    }
    Ok(())
}

/// Whether a repeat leaves the tensor alone: it is a state, input or output that its op writes.
fn is_left_alone(graph: &Graph<'_>, launched: Launched, tensor: TensorId) -> bool {
    launched.is_repeat
        && graph.tensor(tensor).kind != Kind::Temporary
        && graph.writes(launched.op).contains(&tensor)
}

/// The tensors that a launch reads.
pub(super) fn reads<'g>(
    graph: &'g Graph<'_>,
    launched: Launched,
) -> impl Iterator<Item = TensorId> + use<'g> {
    let reads = graph.reads(launched.op).iter().copied();
    reads.filter(move |&tensor| !is_left_alone(graph, launched, tensor))
}

/// The tensors that a launch writes.
pub(super) fn writes<'g>(
    graph: &'g Graph<'_>,
    launched: Launched,
) -> impl Iterator<Item = TensorId> + use<'g> {
    let writes = graph.writes(launched.op).iter().copied();
    writes.filter(move |&tensor| !is_left_alone(graph, launched, tensor))
}

/// Whether a launch reads the tensor.
pub(super) fn is_read(graph: &Graph<'_>, launched: Launched, tensor: TensorId) -> bool {
    reads(graph, launched).any(|read| read == tensor)
}

/// Whether a launch writes the tensor.
pub(super) fn is_written(graph: &Graph<'_>, launched: Launched, tensor: TensorId) -> bool {
    writes(graph, launched).any(|written| written == tensor)
}

/// Whether a launch reads or writes the tensor.
pub(super) fn touches(graph: &Graph<'_>, launched: Launched, tensor: TensorId) -> bool {
    is_read(graph, launched, tensor) || is_written(graph, launched, tensor)
}

/// A tensor that both ops touch and one of them writes.
fn conflict(graph: &Graph<'_>, one: OpId, other: OpId) -> Option<TensorId> {
    graph.touches(one).find(|tensor| {
        let written = graph.writes(one).contains(tensor) || graph.writes(other).contains(tensor);
        written && graph.touches(other).any(|touched| touched == *tensor)
    })
}
