//! The choice of ops that are marks.

use planner_core::bounds::BoundOrder;
use planner_core::{Graph, OpId};

/// The most marks. More marks take more work and barely raise the bound.
const MOST: usize = 24;

/// Picks ops that all plans run in one order. For the given order, it picks from all ops. For any order, it
/// picks from the path of dependent ops that takes longest to compute. O(operands).
pub(super) fn marks(graph: &Graph<'_>, order: BoundOrder) -> Vec<OpId> {
    let mut path: Vec<_> = match order {
        BoundOrder::Given => graph.op_ids().collect(),
        BoundOrder::Any => longest_path(graph),
    };
    // Collectives run beside the ops on compute.
    path.retain(|&op| !graph.op(op).collective);
    thinned(graph, &path)
}

/// The path of dependencies that takes longest to compute.
fn longest_path(graph: &Graph<'_>) -> Vec<OpId> {
    let mut paths = Paths::new(graph);
    for op in graph.op_ids() {
        paths.add(graph, op);
    }
    let last = graph.op_ids().max_by_key(|op| paths.length[op.index()]);
    let mut path: Vec<_> = std::iter::successors(last, |op| paths.nearest[op.index()]).collect();
    path.reverse();
    path
}

/// The longest path to each op.
struct Paths {
    /// For each op, the length of the path in ns, plus 1 per op so that ops without time count.
    length: Vec<u128>,
    nearest: Vec<Option<OpId>>,
    /// For each tensor, the last writer with the longest path.
    writer: Vec<Option<OpId>>,
    /// For each tensor, the reader since that write with the longest path.
    reader: Vec<Option<OpId>>,
}

impl Paths {
    fn new(graph: &Graph<'_>) -> Self {
        let (ops, tensors) = (graph.ops().len(), graph.tensors().len());
        Self {
            length: vec![0; ops],
            nearest: vec![None; ops],
            writer: vec![None; tensors],
            reader: vec![None; tensors],
        }
    }

    fn add(&mut self, graph: &Graph<'_>, op: OpId) {
        let writers = graph.operands_of(op).iter().map(|tensor| self.writer[tensor.index()]);
        let readers = graph.writes(op).iter().map(|tensor| self.reader[tensor.index()]);
        let before = writers.chain(readers).flatten();
        let nearest = before.max_by_key(|op| self.length[op.index()]);
        let so_far = nearest.map_or(0, |op| self.length[op.index()]);
        self.length[op.index()] = so_far + u128::from(graph.op(op).time_ns) + 1;
        self.nearest[op.index()] = nearest;
        for tensor in graph.reads(op) {
            let reader = &mut self.reader[tensor.index()];
            let longest =
                reader.is_none_or(|reader| self.length[reader.index()] < self.length[op.index()]);
            if longest {
                *reader = Some(op);
            }
        }
        for tensor in graph.writes(op) {
            (self.writer[tensor.index()], self.reader[tensor.index()]) = (Some(op), None);
        }
    }
}

/// Returns at most [`MOST`] ops of a path. Divides the path into stretches of equal time and equal bytes, and
/// takes the op that holds most bytes from each stretch.
fn thinned(graph: &Graph<'_>, path: &[OpId]) -> Vec<OpId> {
    let held_bytes = |op: OpId| -> u64 {
        let operands = graph.touches(op).map(|tensor| graph.tensor(tensor).bytes);
        operands.sum::<u64>().saturating_add(graph.op(op).workspace_bytes)
    };
    let sum = |of: &dyn Fn(OpId) -> u64| -> f64 { path.iter().map(|&op| of(op) as f64).sum() };
    let time_ns = |op: OpId| graph.op(op).time_ns;
    let (all_ns, all_bytes) = (sum(&time_ns).max(1.0), sum(&held_bytes).max(1.0));
    let mut best: Vec<Option<(u64, OpId)>> = vec![None; MOST];
    let mut share = 0.0;
    for &op in path {
        let stretch = ((share * MOST as f64) as usize).min(MOST - 1);
        let held = held_bytes(op);
        if best[stretch].is_none_or(|(most, _)| held > most) {
            best[stretch] = Some((held, op));
        }
        share += (time_ns(op) as f64 / all_ns + held as f64 / all_bytes) / 2.0;
    }
    best.into_iter().flatten().map(|(_, op)| op).collect()
}
