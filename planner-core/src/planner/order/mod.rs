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

use super::error::PlanningError;
use crate::graph::{Graph, OpId};
use crate::plan::{PlanError, Prediction};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::sequence::Sequence;
use groups::Groups;

pub use groups::Join;

/// Words of scratch that [`arrange`] keeps.
pub(super) const fn kept_words(limits: &Limits) -> usize {
    words::<OpId>(limits.ops).saturating_add(Sequence::scratch_words(limits))
}

/// Words of scratch that [`list_schedule`] asks for, by [`Limits::of_graph`].
#[must_use]
pub const fn list_schedule_words(limits: &Limits) -> usize {
    Groups::scratch_words(limits).saturating_add(schedule::scratch_words(limits))
}

/// Writes an order that keeps the dependencies and in which values die soon: the given op at
/// each position of `order`, which has one for each op. O(ops × log + operands).
///
/// # Errors
/// Scratch that is too small.
pub fn list_schedule(
    graph: &Graph<'_>,
    join: Join,
    order: &mut [OpId],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let groups = Groups::new(graph, join, &mut scratch)?;
    schedule::write(graph, &groups, order, &mut scratch)
}

/// The launches of a graph in the order that a way to join ops leads to; none where that is
/// the given one. O(ops × log + operands).
pub(super) fn arrange<'s>(
    given: &Sequence<'s>,
    join: Join,
    scratch: &mut Scratch<'s>,
) -> Result<Option<Sequence<'s>>, PlanError> {
    let graph = given.graph();
    let order = scratch.take(graph.ops().len(), OpId(0))?;
    list_schedule(graph, join, order, scratch)?;
    if order.is_sorted() {
        return Ok(None);
    }
    given.in_order(order.iter().copied(), scratch).map(Some)
}

/// The best order to be had, by what a sample of lists comes to in each, none unless another
/// is better than the given one; and what the sample comes to in it.
pub(super) fn best<'s>(
    given: &Sequence<'s>,
    scratch: &mut Scratch<'s>,
    mut sample: impl FnMut(&Sequence<'_>, &mut Scratch<'_>) -> Result<Option<Prediction>, PlanningError>,
) -> Result<(Option<Sequence<'s>>, u64), PlanningError> {
    let mut least = sample(given, scratch)?;
    let mut best = None;
    for join in [Join::Light, Join::All] {
        if least.is_some_and(|least| given.is_ideal(least.period_ns)) {
            break;
        }
        let mut scratch = scratch.reborrow();
        let Some(sequence) = arrange(given, join, &mut scratch)? else { continue };
        let predicted = match sample(&sequence, &mut scratch) {
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
    let least_ns = least.map_or(u64::MAX, |least| least.period_ns);
    let best = match best {
        Some(join) => arrange(given, join, scratch)?,
        None => None,
    };
    Ok((best, least_ns))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Kind, Op, Tensor, TensorId};

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
                first_operand: first_operand as u32,
                reads: reads.len() as u32,
                writes: writes.len() as u32,
                ..Op::default()
            };
            first_operand += reads.len() + writes.len();
            op
        });
        let mut memory = [0; 4096];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let given = Sequence::as_given(&graph, None, &mut scratch).unwrap();
        let sequence = arrange(&given, join, &mut scratch).unwrap()?;
        let mut order = [u32::MAX; OPS];
        for (slot, launch) in order.iter_mut().zip(sequence.launches()) {
            let op = sequence.op(launch);
            assert_eq!(sequence.reads(launch), graph.reads(op));
            assert_eq!(sequence.writes(launch), graph.writes(op));
            *slot = op.0;
        }
        Some(order)
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
    fn a_small_allocation_keeps_no_one_waiting() {
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
