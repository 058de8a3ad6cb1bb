//! The order of the launches, and what follows from it for each tensor (`docs/format.md`, rule 1).

use super::Violation;
use planner_core::plan::Place;
use planner_core::{Graph, Launched, OpId, Plan, Step, TensorId};

/// The launches in list order, each with its step.
pub(super) struct Order<'a> {
    graph: &'a Graph<'a>,
    launches: Vec<(usize, OpId)>,
}

impl<'a> Order<'a> {
    /// Rule 1: every op is launched exactly once, and any two ops of which one writes what
    /// the other touches keep the order that the graph gives them.
    pub(super) fn check(graph: &'a Graph<'a>, plan: &Plan<'_>) -> Result<Self, Violation> {
        let mut launches: Vec<(usize, OpId)> = Vec::new();
        for (step, action) in plan.steps.iter().enumerate() {
            let Step::Launch(Launched { op, .. }) = *action else { continue };
            let place = Place::Step(step as u32);
            for &(_, earlier) in &launches {
                if earlier == op {
                    return Err(Violation::at(place, format!("{op} is launched twice")));
                }
                if let Some(tensor) = conflict(graph, earlier, op).filter(|_| earlier.0 > op.0) {
                    let message = format!("{op} depends on {earlier} the other way: {tensor}");
                    return Err(Violation::at(place, message));
                }
            }
            launches.push((step, op));
        }
        for op in graph.op_ids() {
            if !launches.iter().any(|&(_, launched)| launched == op) {
                return Err(Violation::at(Place::End, format!("{op} is never launched")));
            }
        }
        Ok(Self { graph, launches })
    }

    fn steps(&self, matches: impl Fn(OpId) -> bool) -> impl Iterator<Item = usize> {
        self.launches.iter().filter(move |&&(_, op)| matches(op)).map(|&(step, _)| step)
    }

    /// The last step in the list that reads the tensor.
    pub(super) fn last_read(&self, tensor: TensorId) -> Option<usize> {
        self.steps(|op| self.graph.reads(op).contains(&tensor)).last()
    }

    /// The last step in the list that writes the tensor.
    pub(super) fn last_write(&self, tensor: TensorId) -> Option<usize> {
        self.steps(|op| self.graph.writes(op).contains(&tensor)).last()
    }

    /// The first and the last step in the list that touch the tensor.
    pub(super) fn span(&self, tensor: TensorId) -> Option<(usize, usize)> {
        let touching = |op| self.graph.touches(op).any(|touched| touched == tensor);
        self.steps(touching).next().zip(self.steps(touching).last())
    }

    /// Whether a later launch of the list reads the value that the tensor has at a step: it
    /// does where the next launch that touches the tensor reads it. `None` where no later
    /// launch touches it.
    pub(super) fn next_touch_reads(&self, tensor: TensorId, step: usize) -> Option<bool> {
        let later = self.launches.iter().filter(|&&(launch, _)| launch > step);
        let mut touching =
            later.filter(|&&(_, op)| self.graph.touches(op).any(|touched| touched == tensor));
        touching.next().map(|&(_, op)| self.graph.reads(op).contains(&tensor))
    }
}

/// A tensor that both ops touch and one of them writes.
fn conflict(graph: &Graph<'_>, one: OpId, other: OpId) -> Option<TensorId> {
    graph.touches(one).find(|tensor| {
        let written = graph.writes(one).contains(tensor) || graph.writes(other).contains(tensor);
        written && graph.touches(other).any(|touched| touched == *tensor)
    })
}
