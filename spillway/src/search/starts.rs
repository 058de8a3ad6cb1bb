//! The first orders of a search.

use super::order::Dependencies;
use planner_core::planner::{self, Join, Request};
use planner_core::scratch::{Limits, Scratch};
use planner_core::{Graph, Kind, OpId, TensorId};

/// Returns the given order, the list schedules of `planner-core`, in which values die early, and orders in
/// which states stay while ops use them. Each order occurs once.
pub(crate) fn starts(request: &Request<'_>, dependencies: &Dependencies) -> Vec<Vec<u32>> {
    let graph = request.graph;
    let mut starts: Vec<Vec<u32>> = vec![(0..graph.ops().len() as u32).collect()];
    let joins = [Join::Light, Join::All, Join::CopiesFirst];
    let scheduled = joins.map(|join| list_schedule(graph, join));
    let near = [1, 2, 4].map(|part| near_states(request, dependencies, part));
    for order in scheduled.into_iter().chain(near) {
        if dependencies.keeps(&order) && !starts.contains(&order) {
            starts.push(order);
        }
    }
    starts
}

fn list_schedule(graph: &Graph<'_>, join: Join) -> Vec<u32> {
    let limits = Limits::of_graph(graph);
    let mut order = vec![OpId(0); limits.ops];
    let mut memory = vec![0; planner::list_schedule_words(&limits)];
    // The scratch has the necessary size.
    let _ = planner::list_schedule(graph, join, &mut order, &mut Scratch::new(&mut memory));
    order.into_iter().map(|op| op.0).collect()
}

/// The most ready ops to compare. This bounds the time for graphs with many independent ops.
const COMPARED: usize = 256;

/// Returns a list schedule that always runs the ready op with the least cost next. The cost is the bytes of
/// its operands that are not near, minus the bytes of temporaries that die. The tensors used last are near,
/// as many as fit into one `part`-th of the budget. Equal costs keep the given order. In such a schedule, ops
/// that share a large weight run one after the other. O(ops × ready ops × operands of an op).
fn near_states(request: &Request<'_>, dependencies: &Dependencies, part: u64) -> Vec<u32> {
    let graph = request.graph;
    let mut near = Near::new(graph, request.budget_bytes / part);
    let mut waits = vec![0u32; graph.ops().len()];
    for op in graph.op_ids() {
        dependencies.followers(op.0).iter().for_each(|&after| waits[after as usize] += 1);
    }
    let mut ready: Vec<u32> =
        (0..).zip(&waits).filter(|&(_, &w)| w == 0).map(|(op, _)| op).collect();
    let mut order = Vec::with_capacity(waits.len());
    while !ready.is_empty() {
        let compared = ready.iter().take(COMPARED).enumerate();
        let least = compared.min_by_key(|&(_, &op)| (near.cost(OpId(op)), op));
        let op = ready.remove(least.map_or(0, |(at, _)| at));
        near.run(OpId(op));
        order.push(op);
        for &after in dependencies.followers(op) {
            waits[after as usize] -= 1;
            if waits[after as usize] == 0 {
                let at = ready.partition_point(|&other| other < after);
                ready.insert(at, after);
            }
        }
    }
    order
}

/// The tensors used most recently.
struct Near<'g> {
    graph: &'g Graph<'g>,
    capacity_bytes: u64,
    /// For each tensor, the bytes brought in until its last use; 0 before the first use.
    used: Vec<u64>,
    brought_bytes: u64,
    /// The number of ops that have yet to touch each tensor.
    left: Vec<u32>,
}

impl<'g> Near<'g> {
    fn new(graph: &'g Graph<'g>, capacity_bytes: u64) -> Self {
        let mut left = vec![0; graph.tensors().len()];
        for op in graph.op_ids() {
            graph.touches(op).for_each(|tensor| left[tensor.index()] += 1);
        }
        let used = vec![0; graph.tensors().len()];
        let brought_bytes = capacity_bytes.saturating_add(1);
        Self { graph, capacity_bytes, used, brought_bytes, left }
    }

    fn is_near(&self, tensor: TensorId) -> bool {
        let used = self.used[tensor.index()];
        used > 0 && self.brought_bytes - used < self.capacity_bytes
    }

    fn cost(&self, op: OpId) -> i64 {
        let touches = self.graph.touches(op).map(|id| (id, self.graph.tensor(id)));
        touches.fold(0i64, |sum, (id, tensor)| {
            let bytes = i64::try_from(tensor.bytes).unwrap_or(i64::MAX);
            let comes = if self.is_near(id) { 0 } else { bytes };
            let dies = tensor.kind == Kind::Temporary && self.left[id.index()] == 1;
            sum.saturating_add(comes).saturating_sub(if dies { bytes } else { 0 })
        })
    }

    fn run(&mut self, op: OpId) {
        for tensor in self.graph.touches(op) {
            if !self.is_near(tensor) {
                let bytes = self.graph.tensor(tensor).bytes;
                self.brought_bytes = self.brought_bytes.saturating_add(bytes);
            }
            self.used[tensor.index()] = self.brought_bytes;
            self.left[tensor.index()] -= 1;
        }
    }
}
