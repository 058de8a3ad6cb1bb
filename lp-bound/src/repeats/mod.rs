//! A lower bound on the period in the given order, for plans that repeat ops.

mod model;
mod values;

use crate::given_order::{self, Bound, Error, Options, bound, with_scratch};
use crate::spans::Spans;
use model::Model;
use planner_core::bounds::{self, BoundOrder};
use planner_core::{Graph, Machine, OpId};
use values::Values;

/// The number of marks beside the first op. More marks barely raise the bound, and take longer.
const MARKS: usize = 16;

/// The program leaves out small tensors that together take at most this fraction of the budget.
const LEFT_OUT: u64 = 2000;

/// Returns a period that no plan can beat if its first launches keep the given order. The plan may
/// repeat repeatable ops any number of times. The bound is the better of a linear program and
/// [`bounds::period_with_repeats_ns`]. Without repeatable ops, it is
/// [`period_ns`](crate::period_ns).
///
/// # Errors
/// The budget is too small for one op, the graph has collectives, or the solver fails.
pub fn period_with_repeats_ns(
    graph: &Graph<'_>,
    machine: &Machine,
    budget_bytes: u64,
) -> Result<Bound, Error> {
    if graph.ops().len() < 2 || graph.ops().iter().all(|op| !op.repeatable) {
        return given_order::period_ns(graph, machine, budget_bytes, Options::default());
    }
    if graph.has_collectives() {
        return Err(Error::Collectives);
    }
    let spans = Spans::new(graph, Options::default());
    if let Some((op, needed_bytes)) = spans.does_not_fit(budget_bytes) {
        return Err(Error::Infeasible { op, needed_bytes });
    }
    let least_bytes = least_bytes(graph, budget_bytes);
    let values = Values::new(graph, marks(graph, &spans), least_bytes);
    let Model { program, most } = Model::new(graph, machine, budget_bytes, &values);
    let bound = bound(graph, &program, most)?;
    let cheap_ns = with_scratch(graph, |scratch| {
        bounds::period_with_repeats_ns(graph, machine, budget_bytes, BoundOrder::Given, scratch)
    })?;
    Ok(Bound { period_ns: bound.period_ns.max(cheap_ns), ..bound })
}

/// Divides the ops into stretches that write equally many bytes. The marks are the first op, and
/// the op of each stretch with the most bytes alive.
fn marks(graph: &Graph<'_>, spans: &Spans) -> Vec<OpId> {
    let written_bytes = |op: OpId| -> u64 {
        // Adds 1, so that an op without outputs counts.
        1 + graph.writes(op).iter().map(|&tensor| graph.tensor(tensor).bytes).sum::<u64>()
    };
    let total_bytes: u128 = graph.op_ids().map(|op| u128::from(written_bytes(op))).sum();
    let mut so_far_bytes: u128 = 0;
    let mut best: [Option<(u64, OpId)>; MARKS] = [None; MARKS];
    for op in graph.op_ids().skip(1) {
        so_far_bytes += u128::from(written_bytes(op));
        let stretch = ((so_far_bytes * MARKS as u128 / total_bytes) as usize).min(MARKS - 1);
        let alive_bytes = spans.alive_bytes[2 * op.index()];
        if best[stretch].is_none_or(|(most_bytes, _)| alive_bytes > most_bytes) {
            best[stretch] = Some((alive_bytes, op));
        }
    }
    let chosen = best.into_iter().flatten().map(|(_, op)| op);
    [OpId(0)].into_iter().chain(chosen).collect()
}

/// The size below which the program leaves tensors out, because together they are small.
fn least_bytes(graph: &Graph<'_>, budget_bytes: u64) -> u64 {
    let mut sizes: Vec<u64> = graph.tensors().iter().map(|tensor| tensor.bytes).collect();
    sizes.sort_unstable();
    let mut left_bytes = budget_bytes / LEFT_OUT;
    for bytes in sizes {
        match left_bytes.checked_sub(bytes) {
            Some(left) => left_bytes = left,
            None => return bytes,
        }
    }
    u64::MAX
}
