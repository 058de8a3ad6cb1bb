//! Finds other orders of the ops, in which values die sooner or states are read together.
//!
//! The order of a graph is one of many that keep its dependencies: a value is written before it is
//! read, and read before it is overwritten. A trace often has the updates of all parameters at its
//! end, so that every gradient must be kept until then. Here ops that only depend on each other run
//! together ([`clusters`]), and clusters that free memory run first ([`schedule`]). The
//! micro-batches of a training step each read all weights, so weights that do not stay cross the
//! link once for each. If a layer runs for all [micro-batches](batches) in a row, its weights cross
//! the link once, but the values for all backward passes are alive at the same time. A few lists
//! with repeats show how many micro-batches to run together, and whether groups of them
//! [overlap](overlap). Launches with repeats are ordered in the same way: a repeat writes a
//! [version](versions) of its own.

#![expect(clippy::indexing_slicing, reason = "orders have an entry for each op or launch")]

mod accesses;
mod batches;
mod clusters;
mod overlap;
mod schedule;
mod versions;

use super::error::PlanningError;
use crate::graph::{Graph, OpId};
use crate::plan::{PlanError, Prediction};
use crate::scratch::{Limits, OutOfScratch, Scratch, larger, total, words};
use crate::sequence::{LaunchId, Sequence};
use batches::Batches;
use clusters::Clusters;
use core::iter;
use versions::Versions;

pub use clusters::Join;

/// Words of scratch that [`best`] keeps, and one order that it tries.
pub(super) const fn kept_words(limits: &Limits) -> usize {
    arranged_words(limits).saturating_mul(3)
}

/// Words of scratch that [`arrange`] keeps.
pub(super) const fn arranged_words(limits: &Limits) -> usize {
    words::<OpId>(limits.ops).saturating_add(Sequence::scratch_words(limits))
}

/// Words of scratch that [`list_schedule`] needs, by [`Limits::of_graph`].
#[must_use]
pub const fn list_schedule_words(limits: &Limits) -> usize {
    let scheduled = larger(schedule::scratch_words(limits), overlap::scratch_words(limits))
        .saturating_add(Batches::scratch_words(limits));
    total([
        arranged_words(limits),
        words::<LaunchId>(limits.ops),
        Versions::scratch_words(limits),
        Clusters::kept_words(limits),
        larger(Clusters::scratch_words(limits), scheduled),
    ])
}

/// Writes an order that keeps the dependencies, in which values die soon or states are read
/// together: the op at each position of `order`, which has an entry for each op. O(ops × log +
/// operands).
///
/// # Errors
/// Scratch that is too small; a graph with more operands than a list of launches can have.
pub fn list_schedule(
    graph: &Graph<'_>,
    join: Join,
    order: &mut [OpId],
    scratch: &mut Scratch<'_>,
) -> Result<(), PlanError> {
    let mut scratch = scratch.reborrow();
    let given = Sequence::as_given(graph, None, &mut scratch)?;
    let launches = schedule_launches(&given, join, &mut scratch)?;
    for (op, &launch) in order.iter_mut().zip(launches) {
        *op = given.op(launch);
    }
    Ok(())
}

/// The launches of a sequence in the order of a way to join them.
fn schedule_launches<'s>(
    sequence: &Sequence<'_>,
    join: Join,
    scratch: &mut Scratch<'s>,
) -> Result<&'s [LaunchId], OutOfScratch> {
    let order = scratch.take(sequence.len(), LaunchId(0))?;
    let mut scratch = scratch.reborrow();
    let versions = Versions::new(sequence, &mut scratch)?;
    let clusters = Clusters::new(&versions, join, &mut scratch)?;
    let batches = Batches::new(&versions, &mut scratch)?;
    schedule::write(&versions, &clusters, (&batches, join), order, &mut scratch)?;
    if let Join::ByStates { batches: size, overlaps: true, .. } = join {
        overlap::write(&versions, (&batches, size), order, &mut scratch)?;
    }
    Ok(order)
}

/// The launches of a graph in the order of a way to join ops; `None` if that is the given order.
/// O(ops × log + operands).
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

/// The same launches, including repeats, in the order of a way to join them. `None` if that is
/// their order, or if ops run on the host. O(launches × log + operands).
pub(super) fn arrange_launches<'s>(
    sequence: &Sequence<'s>,
    join: Join,
    scratch: &mut Scratch<'s>,
) -> Result<Option<Sequence<'s>>, PlanError> {
    if !sequence.host_steps().is_empty() {
        return Ok(None);
    }
    let order = scratch.take(sequence.len(), OpId(0))?;
    {
        let mut scratch = scratch.reborrow();
        let launches = schedule_launches(sequence, join, &mut scratch)?;
        if launches.is_sorted() {
            return Ok(None);
        }
        let graph = sequence.graph();
        let first = scratch.take(graph.ops().len(), 0u8)?;
        for (slot, &launch) in order.iter_mut().zip(launches) {
            let launched = sequence.launched(launch);
            let seen = core::mem::replace(&mut first[launched.op.index()], 1) == 1;
            // If an op writes states, its first launch must stay the first one, since it alone
            // writes them.
            let is_alike =
                || graph.writes(launched.op).iter().all(|&tensor| graph.is_written_again(tensor));
            if seen != launched.is_repeat && !is_alike() {
                return Ok(None);
            }
            *slot = launched.op;
        }
    }
    sequence.in_order(order.iter().copied(), scratch).map(Some)
}

/// Shares of the budget that states read together may take. A balance: a smaller share leaves more
/// memory to waiting values, a larger share lets them wait less often.
const SETS: [u64; 2] = [64, 16];

/// Shares that are worth a try for several micro-batches if ops are repeated: values that are
/// computed again take no memory while they wait, but in a small set, gradients of few layers wait.
const SETS_WITH_REPEATS: [u64; 2] = [4, 1024];

/// All micro-batches, whatever their number.
const ALL_BATCHES: u32 = u32::MAX;

/// Ways to join ops after which values die soon.
const JOINS: [Join; 2] = [Join::Light, Join::All];

/// The usual bound of the error of a sampled period, as a fraction.
const SAMPLE_ERROR: u64 = 16;

/// The orders for which plans are made.
pub(super) struct Orders<'s> {
    /// The best order, other than the given order, in which values die soon. `None` if its sampled
    /// period exceeds the period of the given order by more than the error.
    soon: Option<Sequence<'s>>,
    /// Whether its sampled period is shorter than the period of the given order.
    is_soon_better: bool,
    /// The best order in which states are read together, if there is another one.
    by_states: Option<Sequence<'s>>,
    /// The shorter of the sampled periods of `soon` and of the given order; `u64::MAX` if no such
    /// order is known. The second field is the same for `by_states` alone.
    soon_ns: u64,
    by_states_ns: u64,
    /// Whether one of the sampled lists is a valid plan.
    has_list: bool,
}

impl<'s> Orders<'s> {
    /// Only the given order.
    pub(super) const fn given() -> Self {
        Self {
            soon: None,
            is_soon_better: false,
            by_states: None,
            soon_ns: u64::MAX,
            by_states_ns: u64::MAX,
            has_list: false,
        }
    }

    /// The same orders, whose sampled lists are not valid plans.
    pub(super) const fn without_a_list(self) -> Self {
        Self { has_list: false, ..self }
    }

    /// The sampled period of the best order; `u64::MAX` if there is none.
    pub(super) fn sampled_ns(&self) -> u64 {
        if self.has_list { self.soon_ns.min(self.by_states_ns) } else { u64::MAX }
    }

    /// The best order, if it is not the given one.
    pub(super) fn best(&self) -> Option<&Sequence<'s>> {
        match self.by_states_ns < self.soon_ns {
            true => self.by_states.as_ref(),
            false => self.better_soon(),
        }
    }

    /// The best order. If the given order is best, another order whose plans may still be shorter,
    /// since samples have errors.
    pub(super) fn rival(&self) -> Option<&Sequence<'s>> {
        self.best().or(self.soon.as_ref())
    }

    /// The best order of each kind.
    pub(super) fn each<'o>(&'o self, given: &'o Sequence<'s>) -> [Option<&'o Sequence<'s>>; 2] {
        [Some(self.better_soon().unwrap_or(given)), self.by_states.as_ref()]
    }

    fn better_soon(&self) -> Option<&Sequence<'s>> {
        self.soon.as_ref().filter(|_| self.is_soon_better)
    }
}

/// The ways to join ops that are worth a try: first [`JOINS`], then the ways after which states are
/// read together.
pub(super) fn joins(budget_bytes: u64) -> impl Iterator<Item = Join> {
    JOINS.into_iter().chain(SETS.map(|share| by_states(budget_bytes, share)))
}

/// All micro-batches together, in sets of a share of the budget.
fn by_states(budget_bytes: u64, share: u64) -> Join {
    let set_bytes = budget_bytes.checked_div(share).unwrap_or(0);
    Join::ByStates { set_bytes, counts_copies: true, batches: ALL_BATCHES, overlaps: false }
}

/// All micro-batches together, layer by layer.
const fn by_layers(layer_bytes: u64) -> Join {
    let set_bytes = layer_bytes;
    Join::ByStates { set_bytes, counts_copies: false, batches: ALL_BATCHES, overlaps: false }
}

/// The ways to join ops that are worth a try if ops are repeated: with copies of states first; and if
/// there are several micro-batches, the ways in which all of them read states together, in sets of
/// other sizes, such as the states of a layer, or 1, 2, 4, … of them, one group after the other, and
/// overlapping. O(operands).
pub(super) fn with_repeats(
    graph: &Graph<'_>,
    budget_bytes: u64,
    layer_bytes: u64,
    scratch: &mut Scratch<'_>,
) -> Result<impl Iterator<Item = Join> + Clone + use<>, PlanError> {
    let all = count_batches(graph, scratch)?;
    let sets = SETS_WITH_REPEATS.into_iter().filter(move |_| all > 1);
    let together = sets.map(move |share| by_states(budget_bytes, share));
    let has_layers = all > 1 && layer_bytes > 0;
    let by_layers = has_layers.then_some(by_layers(layer_bytes));
    let some = (0..u32::BITS).map(|log| 1 << log).take_while(move |&batches| batches < all);
    let [_, share] = SETS;
    let set_bytes = budget_bytes.checked_div(share).unwrap_or(0);
    let in_batches = some.flat_map(move |batches| {
        let counts_copies = true;
        [false, true].map(|overlaps| Join::ByStates { set_bytes, counts_copies, batches, overlaps })
    });
    Ok(iter::once(Join::CopiesFirst).chain(together).chain(by_layers).chain(in_batches))
}

/// The number of micro-batches. O(operands).
pub(super) fn count_batches(
    graph: &Graph<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<u32, PlanError> {
    let mut scratch = scratch.reborrow();
    let given = Sequence::as_given(graph, None, &mut scratch)?;
    let versions = Versions::new(&given, &mut scratch)?;
    Ok(Batches::new(&versions, &mut scratch)?.count())
}

/// Writes the micro-batch of each launch. O(operands).
pub(super) fn batches(
    sequence: &Sequence<'_>,
    of: &mut [u32],
    scratch: &mut Scratch<'_>,
) -> Result<(), OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let versions = Versions::new(sequence, &mut scratch)?;
    let batches = Batches::new(&versions, &mut scratch)?;
    for (launch, of) in sequence.launches().zip(of) {
        *of = batches.of(launch.0);
    }
    Ok(())
}

/// Words of scratch that [`batches`] needs.
pub(super) const fn batches_words(limits: &Limits) -> usize {
    Versions::scratch_words(limits).saturating_add(Batches::scratch_words(limits))
}

/// The best orders, by the periods of a sample of lists in each.
pub(super) fn best<'s>(
    given: &Sequence<'s>,
    budget_bytes: u64,
    scratch: &mut Scratch<'s>,
    mut sample: impl FnMut(&Sequence<'_>, &mut Scratch<'_>) -> Result<Option<Prediction>, PlanningError>,
) -> Result<Orders<'s>, PlanningError> {
    let given_ns = sample(given, scratch)?.map_or(u64::MAX, |sampled| sampled.period_ns);
    let near_ns = given_ns.saturating_add(given_ns / SAMPLE_ERROR);
    let mut best = [(near_ns, None), (u64::MAX, None)];
    let mut tried: heapless::Vec<u64, { JOINS.len() + SETS.len() }> = heapless::Vec::new();
    for (at, join) in joins(budget_bytes).enumerate() {
        let kind = usize::from(at >= JOINS.len());
        if best.iter().any(|&(least_ns, _)| given.is_ideal(least_ns.min(given_ns))) {
            break;
        }
        let mut scratch = scratch.reborrow();
        let Some(sequence) = arrange(given, join, &mut scratch)? else { continue };
        let hash = hash(sequence.launches().map(|launch| sequence.op(launch)));
        if tried.contains(&hash) || tried.push(hash).is_err() {
            continue;
        }
        let sampled = match sample(&sequence, &mut scratch) {
            Err(PlanningError::Infeasible { .. }) => None,
            sampled => sampled?,
        };
        let (least_ns, _) = best[kind];
        if let Some(sampled) = sampled.filter(|sampled| sampled.period_ns < least_ns) {
            best[kind] = (sampled.period_ns, Some(join));
        }
    }
    let [(soon_ns, soon), (by_states_ns, by_states)] = best;
    let mut arranged = |join: Option<Join>| match join {
        Some(join) => arrange(given, join, scratch),
        None => Ok(None),
    };
    let (soon, by_states) = (arranged(soon)?, arranged(by_states)?);
    let is_soon_better = soon_ns < given_ns;
    let soon_ns = soon_ns.min(given_ns);
    Ok(Orders { soon, is_soon_better, by_states, soon_ns, by_states_ns, has_list: true })
}

/// A hash that two lists of ops almost never share.
pub(super) fn hash(ops: impl Iterator<Item = OpId>) -> u64 {
    ops.fold(1, |hash: u64, op| {
        (hash ^ u64::from(op.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Kind, Op, Tensor, TensorId};

    const INPUT: Tensor = Tensor { bytes: 10_000, kind: Kind::Input };
    const STATE: Tensor = Tensor { bytes: 10_000, kind: Kind::State };
    const TEMPORARY: Tensor = Tensor { bytes: 10_000, kind: Kind::Temporary };
    const SCALAR: Tensor = Tensor { bytes: 4, kind: Kind::Temporary };

    /// Ops that each read and write some tensors, and their operands.
    fn ops_of<const OPS: usize>(
        reads_and_writes: [(&[u32], &[u32]); OPS],
    ) -> ([Op; OPS], [TensorId; 512]) {
        let mut operands = [TensorId(0); 512];
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
        (ops, operands)
    }

    /// The op at each position of the order of a way to join ops; `None` if this is the given
    /// order.
    fn order<const OPS: usize>(
        join: Join,
        tensors: &[Tensor],
        reads_and_writes: [(&[u32], &[u32]); OPS],
    ) -> Option<[u32; OPS]> {
        let (ops, operands) = ops_of(reads_and_writes);
        order_of(join, tensors, (&ops, &operands))
    }

    fn order_of<const OPS: usize>(
        join: Join,
        tensors: &[Tensor],
        (ops, operands): (&[Op; OPS], &[TensorId]),
    ) -> Option<[u32; OPS]> {
        let mut memory = [0; 8192];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(tensors, ops, operands, &mut scratch.reborrow()).unwrap();
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

    /// Two layers forward and backward; each layer except the first returns a gradient.
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
    fn an_order_that_is_hardly_worse_is_a_rival() {
        let [first, second] = FORWARD;
        let [second_back, first_back] = BACKWARD;
        let step = [first, second, second_back, first_back, (&[6, 2], &[2]), (&[7, 1], &[1])];
        let (ops, operands) = ops_of::<6>(step);
        let mut memory = [0; 4096];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&TENSORS, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let given = Sequence::as_given(&graph, None, &mut scratch).unwrap();
        // The other order is better, slightly worse, and much worse.
        for (other_ns, is_best, is_rival) in
            [(900, true, true), (1050, false, true), (1100, false, false)]
        {
            let mut scratch = scratch.reborrow();
            let orders = best(&given, 1 << 20, &mut scratch, |sequence, _| {
                let is_given = sequence.launches().map(|launch| sequence.op(launch)).is_sorted();
                let period_ns = if is_given { 1000 } else { other_ns };
                Ok(Some(Prediction { period_ns, ..Prediction::default() }))
            });
            let orders = orders.unwrap();
            assert_eq!((orders.best().is_some(), orders.rival().is_some()), (is_best, is_rival));
            assert_eq!(orders.sampled_ns(), other_ns.min(1000));
        }
    }

    #[test]
    fn an_update_follows_its_gradient_before_an_op_runs_again() {
        let [first, second] = FORWARD;
        let [second_back, (_, written)] = BACKWARD;
        let (ops, operands) = ops_of([
            first,
            second,
            second_back,
            (&[5, 3, 0], written),
            (&[6, 2], &[2]),
            (&[7, 1], &[1]),
        ]);
        let mut memory = [0; 4096];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&TENSORS, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let launches = [0, 1, 2, 0, 3, 4, 5].map(OpId);
        let given = Sequence::new(&graph, None, launches.into_iter(), &mut scratch).unwrap();
        let arranged = arrange_launches(&given, Join::Light, &mut scratch).unwrap().unwrap();
        let ops: heapless::Vec<u32, 7> =
            arranged.launches().map(|launch| arranged.op(launch).0).collect();
        assert_eq!(ops, [0, 1, 2, 4, 0, 3, 5]);
        assert!(arrange_launches(&arranged, Join::Light, &mut scratch).unwrap().is_none());
    }

    #[test]
    fn a_repeat_may_come_first_if_its_op_writes_no_state() {
        let tensors = [INPUT, STATE, TEMPORARY, TEMPORARY, TEMPORARY, STATE, STATE];
        let arranged = |written: &[u32]| {
            let (ops, operands) = ops_of([
                // A gradient, and a value that the update and another op read.
                (&[0], &[4]),
                (&[0], written),
                (&[2], &[3]),
                (&[2, 4, 1], &[1]),
                (&[3, 5], &[5]),
            ]);
            let mut memory = [0; 4096];
            let mut scratch = Scratch::new(&mut memory);
            let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
            let launches = [0, 1, 2, 1, 3, 4].map(OpId);
            let given = Sequence::new(&graph, None, launches.into_iter(), &mut scratch).unwrap();
            let arranged = arrange_launches(&given, Join::Light, &mut scratch).unwrap()?;
            let ops = arranged.launches().map(|launch| arranged.op(launch).0);
            Some(ops.collect::<heapless::Vec<u32, 6>>())
        };
        // The update frees the gradient.
        assert_eq!(arranged(&[2]).as_deref(), Some(&[0, 1, 3, 1, 2, 4][..]));
        assert_eq!(arranged(&[2, 6]), None);
    }

    #[test]
    fn a_repeat_waits_for_what_reads_the_tensor_that_it_overwrites() {
        const LARGE: Tensor = Tensor { bytes: 40_000, ..TEMPORARY };
        let tensors = [INPUT, STATE, STATE, LARGE, TEMPORARY, TEMPORARY, SCALAR];
        let (ops, operands) = ops_of([
            (&[0, 1], &[3]),
            // This op computes two gradients. The next op changes the first one in place, and the
            // list computes the second one again for its update.
            (&[3, 2], &[4, 5]),
            (&[4, 1], &[4, 6]),
            (&[4, 1], &[1]),
            (&[5, 6, 2], &[2]),
        ]);
        let mut memory = [0; 4096];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let launches = [0, 1, 2, 3, 1, 4].map(OpId);
        let given = Sequence::new(&graph, None, launches.into_iter(), &mut scratch).unwrap();
        for join in [Join::Light, Join::All] {
            assert!(arrange_launches(&given, join, &mut scratch).unwrap().is_none());
        }
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
            // For both layers, first the momentum, then the weight.
            (&[6, 8], &[8]),
            (&[7, 9], &[9]),
            (&[6, 8, 2], &[2]),
            (&[7, 9, 1], &[1]),
        ];
        assert_eq!(order(Join::Light, &TENSORS, step), Some([0, 1, 2, 4, 6, 3, 5, 7]));
    }

    #[test]
    fn an_update_waits_for_the_readers_of_a_copy_that_it_makes_outdated() {
        let mut tensors = [TEMPORARY; 8];
        tensors[..2].copy_from_slice(&[INPUT, STATE]);
        let step: [(&[u32], &[u32]); 7] = [
            // The copy of a weight; forward; the gradient of the result.
            (&[1], &[2]),
            (&[0, 2], &[3]),
            (&[3], &[4]),
            // The gradient of the weight; the gradient for the layer before, and its use.
            (&[4, 3], &[5]),
            (&[4, 2], &[6]),
            (&[6], &[7]),
            (&[5, 1], &[1]),
        ];
        let repeatable = |join| {
            let (mut ops, operands) = ops_of(step);
            ops[0].repeatable = true;
            order_of(join, &tensors, (&ops, &operands))
        };
        assert_eq!(repeatable(Join::Light), Some([0, 1, 2, 3, 6, 4, 5]));
        assert_eq!(repeatable(Join::CopiesFirst), Some([0, 1, 2, 4, 3, 6, 5]));
        // A copy that no repeat can make again stays in either order.
        assert_eq!(order(Join::CopiesFirst, &tensors, step), Some([0, 1, 2, 3, 6, 4, 5]));
    }

    #[test]
    fn an_update_runs_early_although_many_ops_could() {
        const READY: usize = 70;
        let mut tensors = [TEMPORARY; READY + 3];
        let [weight, gradient, result] = [READY, READY + 1, READY + 2].map(|at| at as u32);
        tensors[weight as usize] = STATE;
        // Each of these ops could run at once; two ops read all results.
        let made: [u32; READY] = core::array::from_fn(|at| at as u32);
        let mut step: [(&[u32], &[u32]); READY + 4] = [(&[], &[]); READY + 4];
        step[0] = (&[], core::slice::from_ref(&gradient));
        for (op, made) in step[1..].iter_mut().zip(&made) {
            *op = (&[], core::slice::from_ref(made));
        }
        let (result, update, written) = ([result], [gradient, weight], [weight]);
        step[READY + 1] = (&made, &result);
        step[READY + 2] = (&made, &result);
        step[READY + 3] = (&update, &written);
        let order = order(Join::Light, &tensors, step).unwrap();
        assert_eq!(order[..3], [0, READY as u32 + 3, 1]);
    }

    #[test]
    fn a_small_allocation_blocks_no_other() {
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
    fn micro_batches_run_layer_by_layer() {
        const GRADIENTS: [Tensor; 2] = [TEMPORARY; 2];
        let tensors: [Tensor; 16] = core::array::from_fn(|at| match at {
            0..2 => INPUT,
            2..4 => STATE,
            4..6 => GRADIENTS[at - 4],
            _ => TEMPORARY,
        });
        // Two micro-batches forward and backward through two layers, then the updates.
        let step: [(&[u32], &[u32]); 10] = [
            (&[0, 2], &[6]),
            (&[6, 3], &[7]),
            (&[7, 6, 3], &[8, 5]),
            (&[8, 0, 2], &[4]),
            (&[1, 2], &[9]),
            (&[9, 3], &[10]),
            (&[10, 9, 3, 5], &[11, 5]),
            (&[11, 1, 2, 4], &[4]),
            (&[4, 2], &[2]),
            (&[5, 3], &[3]),
        ];
        let by_states = |set_bytes, batches| {
            order(
                Join::ByStates { set_bytes, counts_copies: true, batches, overlaps: false },
                &tensors,
                step,
            )
        };
        // A set is one layer: the update follows the last gradient of its weight.
        assert_eq!(by_states(10_000, ALL_BATCHES), Some([0, 4, 1, 2, 5, 6, 9, 3, 7, 8]));
        // If all states are one set, or one micro-batch runs at a time, the first micro-batch goes
        // first, as given.
        let one_by_one = Some([0, 1, 2, 3, 4, 5, 6, 9, 7, 8]);
        assert_eq!(by_states(20_000, ALL_BATCHES), one_by_one);
        assert_eq!(by_states(10_000, 1), one_by_one);
    }

    #[test]
    fn a_copy_of_a_weight_runs_just_before_its_first_use() {
        let tensors: [Tensor; 18] = core::array::from_fn(|at| match at {
            0..2 => INPUT,
            2..4 => STATE,
            _ => TEMPORARY,
        });
        // Two micro-batches forward and backward through two layers, then the updates. Each
        // micro-batch copies both weights. The gradients are tensors 4 and 5.
        let step: [(&[u32], &[u32]); 14] = [
            (&[2], &[6]),
            (&[0, 6], &[8]),
            (&[3], &[7]),
            (&[8, 7], &[9]),
            (&[9, 8, 7], &[10, 5]),
            (&[10, 0, 6], &[4]),
            (&[2], &[12]),
            (&[1, 12], &[14]),
            (&[3], &[13]),
            (&[14, 13], &[15]),
            (&[15, 14, 13, 5], &[16, 5]),
            (&[16, 1, 12, 4], &[4]),
            (&[4, 2], &[2]),
            (&[5, 3], &[3]),
        ];
        let (mut ops, operands) = ops_of(step);
        for copy in [0, 2, 6, 8] {
            ops[copy].repeatable = true;
        }
        let by_states = |batches, overlaps| {
            let join = Join::ByStates { set_bytes: 10_000, counts_copies: true, batches, overlaps };
            order_of(join, &tensors, (&ops, &operands))
        };
        let by_layers = Some([0, 1, 6, 7, 2, 3, 4, 8, 9, 10, 13, 5, 11, 12]);
        assert_eq!(by_states(ALL_BATCHES, false), by_layers);
        // The copies of the second micro-batch wait for the first one.
        let one_by_one = Some([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 11, 12]);
        assert_eq!(by_states(1, false), one_by_one);
        assert_eq!(by_states(1, true), one_by_one);
    }

    #[test]
    fn a_backward_pass_overlaps_the_next_forward_pass() {
        let tensors: [Tensor; 18] = core::array::from_fn(|at| match at {
            0..2 => INPUT,
            2..5 => STATE,
            _ => TEMPORARY,
        });
        // Two micro-batches forward and backward through three layers, then the updates. The
        // gradients are tensors 5 to 7.
        let step: [(&[u32], &[u32]); 15] = [
            (&[0, 2], &[8]),
            (&[8, 3], &[9]),
            (&[9, 4], &[10]),
            (&[10, 9, 4], &[11, 7]),
            (&[11, 8, 3], &[12, 6]),
            (&[12, 0, 2], &[5]),
            (&[1, 2], &[13]),
            (&[13, 3], &[14]),
            (&[14, 4], &[15]),
            (&[15, 14, 4, 7], &[16, 7]),
            (&[16, 13, 3, 6], &[17, 6]),
            (&[17, 1, 2, 5], &[5]),
            (&[5, 2], &[2]),
            (&[6, 3], &[3]),
            (&[7, 4], &[4]),
        ];
        let by_states = |overlaps| Join::ByStates {
            set_bytes: 10_000,
            counts_copies: true,
            batches: 1,
            overlaps,
        };
        let one_by_one = Some([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 10, 13, 11, 12]);
        assert_eq!(order(by_states(false), &tensors, step), one_by_one);
        // Values take most memory at ops 3 and 9. Ops 4 and 5 run among ops 6 to 9.
        let overlapping = Some([0, 1, 2, 3, 4, 6, 7, 5, 8, 9, 14, 10, 13, 11, 12]);
        assert_eq!(order(by_states(true), &tensors, step), overlapping);
    }

    #[test]
    fn a_chain_keeps_its_order() {
        let chain: [(&[u32], &[u32]); 3] = [(&[0, 1], &[3]), (&[3, 1], &[4]), (&[4, 1], &[5])];
        for join in [
            Join::Light,
            Join::All,
            Join::ByStates { set_bytes: 1, counts_copies: true, batches: 1, overlaps: true },
        ] {
            assert_eq!(order(join, &TENSORS, chain), None);
        }
    }
}
