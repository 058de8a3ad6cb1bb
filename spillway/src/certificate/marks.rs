//! Which ops are marks.

use planner_core::bounds::BoundOrder;
use planner_core::{Graph, OpId};

/// The most marks. The work grows with them, and more barely raise the bound.
const MOST: usize = 24;

/// Some ops that all plans run in one order: for the given order, of all; otherwise of a path of ops that
/// depend on each other, the one that takes longest to compute. O(operands).
pub(super) fn marks(graph: &Graph<'_>, order: BoundOrder) -> Vec<OpId> {
    let path = match order {
        BoundOrder::Given => graph.op_ids().collect(),
        BoundOrder::Any => longest_path(graph),
    };
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
    /// Its time, and one more for each op, so that ops without time count.
    length: Vec<u128>,
    nearest: Vec<Option<OpId>>,
    /// Of each tensor, the op with the longest path of those that wrote it last.
    writer: Vec<Option<OpId>>,
    /// And of those that read it since.
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

/// At most [`MOST`] ops of a path: of each of as many stretches of equal time and equal bytes, the op that
/// holds most.
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
