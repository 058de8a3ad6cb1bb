//! Another order of the ops, in which values die sooner.
//!
//! The order of a graph is one of many that keep its dependencies: a value is written before
//! it is read, and read before it is overwritten. A trace often has the updates of all
//! parameters at its end, where every gradient has to wait for them. Here ops that only
//! matter to each other run together ([`groups`]), and groups that free memory run first
//! ([`schedule`]).

mod groups;
mod schedule;
mod touches;

use super::{PlanningError, Request};
use crate::graph::{Graph, Op, OpId, TensorId};
use crate::plan::{Prediction, Step};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use groups::Groups;

pub use groups::Join;

/// Words of scratch that a [`Sheet`] holds.
pub(super) const fn sheet_words(limits: &Limits) -> usize {
    words::<u32>(limits.ops)
}

/// Words of scratch that [`Sheet::fill`] asks for.
pub(super) const fn scratch_words(limits: &Limits) -> usize {
    let sort = list_schedule_words(limits);
    let check = Graph::scratch_words(limits.tensors);
    if sort > check { sort } else { check }
}

/// Words of scratch that [`list_schedule`] asks for.
#[must_use]
pub const fn list_schedule_words(limits: &Limits) -> usize {
    Groups::scratch_words(limits).saturating_add(schedule::scratch_words(limits))
}

/// Writes an order that keeps the dependencies and in which values die soon: the given op at
/// each position. As long as there are ops. O(ops × log + operands).
///
/// # Errors
/// Scratch that is too small.
pub fn list_schedule(
    graph: &Graph<'_>,
    join: Join,
    order: &mut [u32],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let groups = Groups::new(graph, join, &mut scratch)?;
    schedule::write(graph, &groups, order, &mut scratch)
}

/// A graph in some order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arranged<'a> {
    pub(super) graph: Graph<'a>,
    /// The given op at each position; empty where the order is the given one.
    given: &'a [u32],
}

impl<'a> Arranged<'a> {
    /// In the given order.
    pub(super) const fn as_given(graph: Graph<'a>) -> Self {
        Self { graph, given: &[] }
    }

    /// Whether the order is another one.
    pub(super) const fn is_reordered(&self) -> bool {
        !self.given.is_empty()
    }

    /// Names the ops of a list as the given graph does.
    pub(super) fn name_as_given(&self, steps: &mut [Step]) {
        for step in steps {
            if let Step::Launch(op) = step
                && let Some(&given) = self.given.get(op.index())
            {
                *op = OpId(given);
            }
        }
    }
}

/// Room for a graph in another order.
#[derive(Debug)]
pub(super) struct Sheet<'a> {
    ops: &'a mut [Op],
    operands: &'a mut [TensorId],
    given: &'a mut [u32],
}

impl<'a> Sheet<'a> {
    /// None where there is too little room for the graph.
    pub(super) fn new(
        graph: &Graph<'_>,
        ops: &'a mut [Op],
        operands: &'a mut [TensorId],
        scratch: &mut Scratch<'a>,
    ) -> Result<Option<Self>, OutOfScratch> {
        let len = graph.ops().len();
        let count = |op: &Op| op.reads as usize + op.writes as usize;
        // Cannot overflow: no two ops share an operand.
        let operands_len = graph.ops().iter().map(count).sum::<usize>();
        if len > ops.len() || operands_len > operands.len() {
            return Ok(None);
        }
        Ok(Some(Self { ops, operands, given: scratch.take(len, 0u32)? }))
    }

    /// The best order to be had, by what a sample of lists comes to in each; the given one
    /// unless another is better.
    pub(super) fn best<'g>(
        &'g mut self,
        request: &Request<'g>,
        scratch: &mut Scratch<'_>,
        mut sample: impl FnMut(
            &Request<'_>,
            &mut Scratch<'_>,
        ) -> Result<Option<Prediction>, PlanningError>,
    ) -> Result<Arranged<'g>, PlanningError> {
        let mut least = sample(request, scratch)?;
        let mut best = None;
        for join in [Join::Light, Join::All] {
            if least.is_some_and(|least| least.period_ns == least.compute_ns) {
                break;
            }
            let Some(arranged) = self.fill(request.graph, join, scratch)? else { continue };
            let request = Request { graph: &arranged.graph, ..*request };
            let predicted = match sample(&request, scratch) {
                Err(PlanningError::Infeasible { .. }) => None,
                other => other?,
            };
            let is_better = predicted.is_some_and(|predicted| {
                least.is_none_or(|least| predicted.period_ns < least.period_ns)
            });
            if is_better {
                (least, best) = (predicted, Some(join));
            }
        }
        let Some(join) = best else { return Ok(Arranged::as_given(*request.graph)) };
        let arranged = self.fill(request.graph, join, scratch)?;
        Ok(arranged.unwrap_or(Arranged::as_given(*request.graph)))
    }

    /// The graph in the order that a way to join ops leads to; none where that is the given
    /// one. O(ops × log + operands).
    fn fill<'g>(
        &'g mut self,
        graph: &Graph<'g>,
        join: Join,
        scratch: &mut Scratch<'_>,
    ) -> Result<Option<Arranged<'g>>, OutOfScratch> {
        list_schedule(graph, join, self.given, scratch)?;
        if self.given.is_sorted() {
            return Ok(None);
        }
        let mut from = 0;
        for (&given, op) in self.given.iter().zip(&mut *self.ops) {
            let operands = graph.operands_of(OpId(given));
            self.operands[from..from + operands.len()].copy_from_slice(operands);
            *op = Op { first_operand: from as u32, ..graph.op(OpId(given)) };
            from += operands.len();
        }
        let (ops, operands) = (&self.ops[..self.given.len()], &self.operands[..from]);
        let checked = Graph::new(graph.tensors(), ops, operands, &mut scratch.reborrow());
        // A legal order of a valid graph is a valid graph.
        Ok(checked.ok().map(|graph| Arranged { graph, given: self.given }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Kind, Tensor};

    const INPUT: Tensor = Tensor { bytes: 10_000, kind: Kind::Input };
    const STATE: Tensor = Tensor { bytes: 10_000, kind: Kind::State };
    const TEMPORARY: Tensor = Tensor { bytes: 10_000, kind: Kind::Temporary };
    const SCALAR: Tensor = Tensor { bytes: 4, kind: Kind::Temporary };

    /// The given op at each position of the order that joining ops leads to; none where that
    /// is the given one. An op is what it reads, and what it writes.
    fn order<const OPS: usize>(
        join: Join,
        tensors: &[Tensor],
        reads_and_writes: [(&[u32], &[u32]); OPS],
    ) -> Option<[u32; OPS]> {
        let mut operands = [TensorId(0); 256];
        let mut first_operand = 0;
        let ops = reads_and_writes.map(|(reads, writes)| {
            let slots = operands[first_operand..].iter_mut();
            slots.zip(reads.iter().chain(writes)).for_each(|(slot, &id)| *slot = TensorId(id));
            let op = Op {
                time_ns: 1,
                workspace_bytes: 0,
                first_operand: first_operand as u32,
                reads: reads.len() as u32,
                writes: writes.len() as u32,
            };
            first_operand += reads.len() + writes.len();
            op
        });
        let mut memory = [0; 4096];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let (mut other_ops, mut other_operands) = (ops, operands);
        let mut sheet =
            Sheet::new(&graph, &mut other_ops, &mut other_operands, &mut scratch).unwrap().unwrap();
        let arranged = sheet.fill(&graph, join, &mut scratch).unwrap()?;
        for (at, &given) in (0..).map(OpId).zip(arranged.given) {
            assert_eq!(arranged.graph.operands_of(at), graph.operands_of(OpId(given)));
        }
        Some(arranged.given.try_into().unwrap())
    }

    /// Two layers forward and backward; each but the first hands a gradient on.
    const TENSORS: [Tensor; 12] = [
        INPUT, STATE, STATE, TEMPORARY, TEMPORARY, TEMPORARY, TEMPORARY, TEMPORARY, STATE, STATE,
        SCALAR, TEMPORARY,
    ];
    const FORWARD: [(&[u32], &[u32]); 2] = [(&[0, 1], &[3]), (&[3, 2], &[4])];
    const BACKWARD: [(&[u32], &[u32]); 2] = [(&[4, 3, 2], &[5, 6]), (&[5, 0], &[7])];

    #[test]
    fn an_update_follows_its_gradient() {
        let [first, second] = FORWARD;
        let [second_back, first_back] = BACKWARD;
        let step = [first, second, second_back, first_back, (&[6, 2], &[2]), (&[7, 1], &[1])];
        assert_eq!(order(Join::Light, &TENSORS, step), Some([0, 1, 2, 4, 3, 5]));
    }

    #[test]
    fn an_update_in_several_passes_runs_in_one_go() {
        let [first, second] = FORWARD;
        let [second_back, first_back] = BACKWARD;
        let step = [
            first,
            second,
            second_back,
            first_back,
            // Of both layers, the momentum, then the weight.
            (&[6, 8], &[8]),
            (&[7, 9], &[9]),
            (&[6, 8, 2], &[2]),
            (&[7, 9, 1], &[1]),
        ];
        assert_eq!(order(Join::Light, &TENSORS, step), Some([0, 1, 2, 4, 6, 3, 5, 7]));
    }

    #[test]
    fn what_allocates_next_to_nothing_keeps_nobody_waiting() {
        let [first, second] = FORWARD;
        let [second_back, first_back] = BACKWARD;
        let step = [
            first,
            second,
            second_back,
            first_back,
            (&[8], &[8, 10]),
            (&[6, 2, 10], &[2]),
            (&[7, 1, 10], &[1]),
        ];
        assert_eq!(order(Join::Light, &TENSORS, step), Some([4, 0, 1, 2, 5, 3, 6]));
    }

    #[test]
    fn shares_of_a_gradient_wait_for_each_other() {
        let share = Tensor { bytes: 5_000, kind: Kind::Temporary };
        let tensors = [INPUT, STATE, TEMPORARY, TEMPORARY, TEMPORARY, share, TEMPORARY, share];
        let steps: [(&[u32], &[u32]); 8] = [
            (&[0, 1], &[2]),
            (&[2, 1], &[3]),
            (&[3], &[4]),
            // The last step's share; one step back; its share, their sum, and the update.
            (&[4, 2], &[5]),
            (&[4, 1], &[6]),
            (&[6, 0], &[7]),
            (&[5, 7], &[5]),
            (&[5, 1], &[1]),
        ];
        assert_eq!(order(Join::All, &tensors, steps), Some([0, 1, 2, 4, 3, 5, 6, 7]));
        assert_eq!(order(Join::Light, &tensors, steps), None);
    }

    #[test]
    fn a_chain_keeps_its_order() {
        let chain: [(&[u32], &[u32]); 3] = [(&[0, 1], &[3]), (&[3, 1], &[4]), (&[4, 1], &[5])];
        for join in [Join::Light, Join::All] {
            assert_eq!(order(join, &TENSORS, chain), None);
        }
    }
}
