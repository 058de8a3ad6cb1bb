//! Proves that every op is launched once for the first time, in an order that keeps the
//! dependencies of the given order, and that only repeatable ops are launched again
//! (`docs/format.md`, rule 1).

#![expect(
    clippy::indexing_slicing,
    reason = "ids are those of the checked graph, and the arrays have an entry for each op, \
              operand and tensor"
)]

use crate::graph::{Graph, Launched, OpId, TensorId};
use crate::plan::{Location, Plan, PlanError, Step};
use crate::scratch::{Limits, Scratch, total, words};

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([words::<u8>(limits.ops), words::<u64>(limits.operands), words::<u64>(limits.tensors)])
}

/// Whether and where an op has run for the first time.
const NOT_YET: u8 = 0;
const ON_DEVICE: u8 = 1;
const ON_HOST: u8 = 2;

/// The number of writes of each tensor so far, and the number of reads of its current value. Two
/// orders keep the same dependencies if and only if every op finds the same history in both.
struct Histories<'a> {
    of: &'a mut [u64],
}

impl Histories<'_> {
    const WRITE: u64 = 1 << 32;

    fn read(&mut self, tensor: TensorId) -> u64 {
        let history = &mut self.of[tensor.index()];
        // A reader depends on the value, but not on earlier readers.
        let seen = *history & !(Self::WRITE - 1);
        *history = history.saturating_add(1);
        seen
    }

    fn write(&mut self, tensor: TensorId) -> u64 {
        let history = &mut self.of[tensor.index()];
        let seen = *history;
        *history = (seen & !(Self::WRITE - 1)).wrapping_add(Self::WRITE);
        seen
    }

    /// Calls `visit` with the history that each operand of an op finds.
    fn visit(&mut self, graph: &Graph<'_>, op: OpId, mut visit: impl FnMut(usize, TensorId, u64)) {
        let first = graph.op(op).first_operand as usize;
        for (at, &tensor) in (first..).zip(graph.reads(op)) {
            visit(at, tensor, self.read(tensor));
        }
        for (at, &tensor) in (graph.op(op).first_write()..).zip(graph.writes(op)) {
            visit(at, tensor, self.write(tensor));
        }
    }
}

pub(super) fn check(
    graph: &Graph<'_>,
    plan: &Plan<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanError> {
    let launched = scratch.take(graph.ops().len(), NOT_YET)?;
    let expected = scratch.take(graph.operands().len(), 0u64)?;
    let mut histories = Histories { of: scratch.take(graph.tensors().len(), 0u64)? };
    for op in graph.op_ids() {
        histories.visit(graph, op, |at, _, seen| expected[at] = seen);
    }
    histories.of.fill(0);
    for (at, step) in (0..).zip(plan.steps) {
        let Some(Launched { op, is_repeat }) = step.launched() else { continue };
        let location = Location::Step(at);
        if is_repeat {
            match (graph.op(op).repeatable, launched[op.index()]) {
                (_, ON_HOST) => return Err(PlanError::LaunchedTwice(location, op)),
                (false, _) => return Err(PlanError::NotRepeatable(location, op)),
                (true, NOT_YET) => return Err(PlanError::RepeatedTooEarly(location, op)),
                _ => continue,
            }
        }
        let place = if matches!(step, Step::Host(_)) { ON_HOST } else { ON_DEVICE };
        if core::mem::replace(&mut launched[op.index()], place) != NOT_YET {
            return Err(PlanError::LaunchedTwice(location, op));
        }
        let mut wrong = None;
        histories.visit(graph, op, |at, tensor, seen| {
            if expected[at] != seen && wrong.is_none() {
                wrong = Some(tensor);
            }
        });
        if let Some(tensor) = wrong {
            return Err(PlanError::Dependency { location, op, tensor });
        }
    }
    match launched.iter().position(|&launched| launched == NOT_YET) {
        Some(missing) => Err(PlanError::NeverLaunched(OpId(missing as u32))),
        None => Ok(()),
    }
}
