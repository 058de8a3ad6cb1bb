//! Activation checkpointing (Chen, Xu, Zhang and Guestrin, "Training deep nets with sublinear
//! memory cost", 2016), as frameworks do it: the forward pass is cut into segments; the values that
//! a segment takes from earlier segments stay, and all others are dropped and computed again in the
//! backward pass. Only inputs move. In a variant, the values that stay are moved to the host
//! between the passes, as large libraries do.
//!
//! Frameworks leave the choice of segments to their users. Here several numbers of segments are
//! tried, including the square root of the number of ops; each cut is placed near equal parts at
//! the point that the fewest bytes cross. Segments of whole layers are tried as well: between two
//! layers, few bytes cross. A list of ops does not tell where the forward pass ends; it is assumed
//! to end where most bytes are alive.

#![expect(
    clippy::indexing_slicing,
    reason = "slots, tensors and launches are those of the sequence; cuts and the peak are \
              positions of launches"
)]

mod forward;

use super::builder::Builder;
use super::error::PlanningError;
use super::gaps::Gaps;
use super::in_core::InCore;
use super::list::{Lengths, Stuck};
use super::memory::Memory;
use super::order;
use super::paced;
use super::recipe::PACES;
use super::repeats::{self, Dropped, Outcome, Unrolled, Values};
use super::request::Task;
use super::strategy::{Need, Rule};
use super::trials::Search;
use crate::graph::{Kind, OpId};
use crate::plan::ArenaPlacement;
use crate::scratch::{Limits, OutOfScratch, Scratch, larger, total, words};
use crate::sequence::{LaunchId, Sequence};
use forward::{Forward, TemporaryGap, gaps_of_temporaries};

pub(super) use forward::Division;

/// The rule in which only inputs move.
#[derive(Debug)]
pub(super) struct Checkpoint;

impl Rule for Checkpoint {
    fn need(&self, _: &Sequence<'_>) -> Need {
        Need::Everything
    }

    fn has_segments(&self) -> bool {
        true
    }

    fn lists(&self, task: &Task<'_>) -> usize {
        InCore.lists(task)
    }

    fn write(
        &self,
        list: usize,
        builder: Builder<'_>,
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        InCore.write(list, builder, search, scratch)
    }
}

/// The rule in which staying values move to the host. Without segments, nothing moves.
#[derive(Debug)]
pub(super) struct CheckpointOffload;

impl Rule for CheckpointOffload {
    fn need(&self, sequence: &Sequence<'_>) -> Need {
        if sequence.has_repeats() { Need::LargestOp } else { Need::Everything }
    }

    fn has_segments(&self) -> bool {
        true
    }

    fn moves_in_gaps(&self) -> bool {
        true
    }

    fn lists(&self, task: &Task<'_>) -> usize {
        if task.sequence.has_repeats() { PACES.len() } else { InCore.lists(task) }
    }

    fn write(
        &self,
        list: usize,
        builder: Builder<'_>,
        search: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        let sequence = builder.task.sequence;
        let is_repeat = |launch: &LaunchId| sequence.launched(*launch).is_repeat;
        let Some(first) = sequence.launches().find(is_repeat) else {
            return InCore.write(list, builder, search, scratch);
        };
        let Search { gaps, pressures } = search;
        move_over(&builder, gaps, first);
        paced::write(builder, gaps, PACES[list], &mut pressures.seen, scratch)
    }
}

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        words::<OpId>(limits.ops),
        words::<u32>(limits.ops),
        Sequence::scratch_words(limits),
        Gaps::scratch_words(limits),
        Values::scratch_words(limits),
        Dropped::scratch_words(limits),
        words::<u64>(limits.ops.saturating_add(1)).saturating_mul(3),
        words::<u32>(limits.ops),
        words::<u8>(limits.ops),
        words::<u32>(limits.ops),
        larger(
            order::batches_words(limits),
            larger(repeats::unroll_words(limits), Gaps::working_words(limits)),
        ),
    ])
}

/// The memory for an unlimited budget, so that the segments do not depend on the budget.
pub(super) fn memory<'m>(
    task: &Task<'_>,
    arena: &mut [ArenaPlacement],
    scratch: &mut Scratch<'m>,
) -> Result<Memory<'m>, PlanningError> {
    let unlimited = Task { budget_bytes: u64::MAX, ..*task };
    Memory::new(&unlimited, Need::LargestOp, arena, scratch)
}

/// The most values that stay because they cannot be computed again, in addition to values that
/// cross a cut.
const MOST_STAYING: usize = 64;

type Staying = heapless::Vec<u32, MOST_STAYING>;

/// The bytes of the states that a layer reads; 0 if the sequence has no layers. O(operands).
pub(super) fn layer_bytes(task: &Task<'_>, scratch: &mut Scratch<'_>) -> Result<u64, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let gaps = Gaps::new(task.sequence, &mut scratch)?;
    Forward::new(task, &gaps, &mut scratch)?.layer_bytes(&mut scratch)
}

/// Whether values that were computed from a loss may be dropped.
///
/// If micro-batches read weights together, several losses are computed before the assumed end of the
/// forward pass, and their gradients wait there. To compute a loss again takes long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterLoss {
    /// They are dropped like other values.
    Dropped,
    /// They stay: all results of launches that write an output, or that depend on such a launch.
    Kept,
    /// They stay. A division in which none of them would be dropped is left out: it leads to the same sequence
    /// as with [`Self::Dropped`].
    OnlyKept,
}

/// Calls `visit` with the sequence of each division into segments. Values that cannot be computed again
/// stay: for example, an update may have changed a weight that the repeat would read. Leaves out
/// sequences in which too many values would stay.
pub(super) fn each(
    task: &Task<'_>,
    memory: &Memory<'_>,
    after_loss: AfterLoss,
    scratch: &mut Scratch<'_>,
    visit: impl FnMut(&Sequence<'_>, Division, &mut Scratch<'_>) -> Result<(), PlanningError>,
) -> Result<(), PlanningError> {
    each_wanted(task, memory, (after_loss, |_| true), scratch, visit)
}

/// Does the same for the divisions that are wanted.
pub(super) fn each_wanted(
    task: &Task<'_>,
    memory: &Memory<'_>,
    (after_loss, is_wanted): (AfterLoss, impl Fn(&Division) -> bool),
    scratch: &mut Scratch<'_>,
    mut visit: impl FnMut(&Sequence<'_>, Division, &mut Scratch<'_>) -> Result<(), PlanningError>,
) -> Result<(), PlanningError> {
    let sequence = task.sequence;
    let mut scratch = scratch.reborrow();
    let most = sequence.graph().ops().len().saturating_mul(2);
    let gaps = Gaps::new(sequence, &mut scratch)?;
    let forward = Forward::new(task, &gaps, &mut scratch)?;
    let kept = match after_loss {
        AfterLoss::Dropped => &[][..],
        AfterLoss::Kept | AfterLoss::OnlyKept => follow_losses(sequence, &gaps, &mut scratch)?,
    };
    for division in forward.divisions().filter(is_wanted) {
        let mut scratch = scratch.reborrow();
        let launches = scratch.take(most, OpId(0))?;
        let positions = scratch.take(sequence.len(), 0u32)?;
        let cuts = forward.cuts(division, &mut scratch)?;
        let mut make = |staying: &Staying| -> Result<Outcome, OutOfScratch> {
            let mut scratch = scratch.reborrow();
            let mut values = Values::new(sequence, &gaps, &mut scratch)?;
            let mut dropped = Dropped::new(gaps.len(), &mut scratch)?;
            let both = (&mut values, &mut dropped);
            let keeps_any =
                drop_between(task, memory, &gaps, both, (staying, kept), forward.peak, cuts);
            if after_loss == AfterLoss::OnlyKept && !keeps_any {
                return Ok(Outcome::Written(0));
            }
            let lists = Unrolled { launches: &mut *launches, positions: &mut *positions };
            repeats::unroll(sequence, &gaps, memory, &values, &dropped, lists, &mut scratch)
        };
        let mut staying = Staying::new();
        let len = loop {
            match make(&staying)? {
                Outcome::Written(len) => break len,
                Outcome::Lost(value) if !staying.contains(&value) && !staying.is_full() => {
                    let _ = staying.push(value);
                }
                Outcome::Lost(_) | Outcome::TooLong => break 0,
            }
        };
        if len > sequence.len() {
            let order = launches[..len].iter().copied();
            let repeated = sequence.in_order(order, &mut scratch)?;
            visit(&repeated, division, &mut scratch)?;
        }
    }
    Ok(())
}

/// Writes 1 for each launch that writes an output, such as a loss, or that depends on such a launch.
/// O(operands).
fn follow_losses<'s>(
    sequence: &Sequence<'_>,
    gaps: &Gaps<'_>,
    scratch: &mut Scratch<'s>,
) -> Result<&'s [u8], OutOfScratch> {
    let follows = scratch.take(sequence.len(), 0u8)?;
    for launch in sequence.launches() {
        let mut writes = sequence.writes(launch).iter();
        let is_loss = writes.any(|&tensor| sequence.tensor(tensor).kind == Kind::Output);
        let mut reads = sequence.first_slot(launch)..sequence.first_write(launch);
        let follows_another = reads.any(|slot| {
            let value = gaps.version(slot) as usize;
            value < gaps.len() && follows[gaps.launch(value).index()] == 1
        });
        follows[launch.index()] = u8::from(is_loss || follows_another);
    }
    Ok(follows)
}

/// Drops the values that wait across the peak and cross no cut, and holds the values that cross a
/// cut for repeats. Returns whether a value that `kept` marks would be dropped otherwise.
fn drop_between(
    task: &Task<'_>,
    memory: &Memory<'_>,
    gaps: &Gaps<'_>,
    (values, dropped): (&mut Values<'_>, &mut Dropped<'_>),
    (staying, kept): (&Staying, &[u8]),
    peak: usize,
    cuts: &[u32],
) -> bool {
    let sequence = task.sequence;
    let is_cut = |from: LaunchId, to: usize| {
        let next = cuts.partition_point(|&cut| cut <= from.0);
        cuts.get(next).is_some_and(|&cut| cut as usize <= to)
    };
    let Some(end) = sequence.launches().next_back() else { return false };
    let mut keeps_any = false;
    for TemporaryGap { slot, from, to } in gaps_of_temporaries(task, gaps) {
        let value = gaps.version(slot);
        let (maker, before) = (gaps.launch(value as usize), gaps.launch(slot));
        if to < peak && is_cut(before, to) {
            values.hold(value, end);
        }
        let waits = from <= peak && peak < to;
        // A small value that no other is read for, such as a learning rate, frees next to nothing. If
        // it were made again at the end of the forward pass, all updates would wait until then.
        let is_given =
            sequence.reads(maker).is_empty() && memory.in_arena(sequence.operands()[slot]);
        let stays = is_given || staying.contains(&value) || is_cut(maker, before.index());
        let can_run_again = values.can_run_again(sequence, gaps, maker, LaunchId(to as u32));
        if waits && !stays && can_run_again {
            if kept.get(maker.index()) == Some(&1) {
                keeps_any = true;
            } else {
                dropped.drop_after(slot);
            }
        }
    }
    keeps_any
}

/// Moves the temporaries that wait for their next use while a launch runs.
fn move_over(builder: &Builder<'_>, gaps: &mut Gaps<'_>, launch: LaunchId) {
    let sequence = builder.task.sequence;
    gaps.clear();
    for slot in 0..gaps.len() {
        let tensor = sequence.operands()[slot];
        let waits = gaps.span(sequence, slot).is_some_and(|span| {
            !span.wraps && span.from <= launch.index() && launch.index() < span.to
        });
        if waits && sequence.tensor(tensor).kind == Kind::Temporary {
            gaps.set_moved(slot, builder.memory.objects(tensor));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Op, Tensor, TensorId};
    use crate::machine::Machine;

    const LAYERS: usize = 6;
    /// Too large for the arena.
    const BYTES: u64 = 1 << 20;
    const HEAD: OpId = OpId(LAYERS as u32);

    /// When the head is updated.
    #[derive(Clone, Copy, PartialEq)]
    enum Update {
        AtOnce,
        /// At the end, after the update of the last layer.
        Last,
    }

    #[derive(Default)]
    struct Ops {
        operands: heapless::Vec<TensorId, 256>,
        ops: heapless::Vec<Op, 64>,
    }

    impl Ops {
        fn push(&mut self, time_ns: u64, reads: &[usize], writes: &[usize], repeatable: bool) {
            let first_operand = self.operands.len() as u32;
            self.operands.extend(reads.iter().chain(writes).map(|&id| TensorId(id as u32)));
            let [reads, writes] = [reads, writes].map(|operands| operands.len() as u32);
            let op = Op { time_ns, first_operand, reads, writes, repeatable, ..Op::default() };
            self.ops.push(op).unwrap();
        }

        /// Calls `visit` with the number of launches of each op, for each division.
        fn each_count<const OPS: usize>(
            &self,
            tensors: &[Tensor],
            visit: impl FnMut(Division, [usize; OPS]),
        ) {
            self.each_count_after_loss(tensors, AfterLoss::Dropped, visit);
        }

        fn each_count_after_loss<const OPS: usize>(
            &self,
            tensors: &[Tensor],
            after_loss: AfterLoss,
            mut visit: impl FnMut(Division, [usize; OPS]),
        ) {
            self.with_task(tensors, |task, arena, scratch| {
                let memory = memory(task, arena, scratch).unwrap();
                each(task, &memory, after_loss, scratch, |repeated, division, _| {
                    let of = |op| {
                        repeated.launches().filter(move |&launch| repeated.op(launch).index() == op)
                    };
                    visit(division, core::array::from_fn(|op| of(op).count()));
                    Ok(())
                })
                .unwrap();
            });
        }

        fn with_task(
            &self,
            tensors: &[Tensor],
            run: impl FnOnce(&Task<'_>, &mut [ArenaPlacement], &mut Scratch<'_>),
        ) {
            let mut words = [0; 1 << 15];
            let mut scratch = Scratch::new(&mut words);
            let graph =
                Graph::new(tensors, &self.ops, &self.operands, &mut scratch.reborrow()).unwrap();
            let sequence = &Sequence::as_given(&graph, None, &mut scratch).unwrap();
            let machine = &Machine::of_chunks(4096).with_host_bytes(1 << 30);
            let task = Task { sequence, machine, budget_bytes: 1 << 30 };
            let mut arena = [ArenaPlacement { tensor: TensorId(0), offset_bytes: 0 }; 32];
            run(&task, &mut arena, &mut scratch);
        }
    }

    /// Adds a tensor, and returns its number.
    fn add<const MOST: usize>(
        tensors: &mut heapless::Vec<Tensor, MOST>,
        bytes: u64,
        kind: Kind,
    ) -> usize {
        tensors.push(Tensor { bytes, kind }).unwrap();
        tensors.len() - 1
    }

    /// Layers forward, a head that also computes its gradients, and the layers backward, with the
    /// update of the head. Calls `visit` with the number of launches of each op, for each division.
    fn each_count(
        first_weight_bytes: u64,
        update: Update,
        mut visit: impl FnMut([usize; 2 * LAYERS + 3]),
    ) {
        let tensor = |kind| Tensor { bytes: BYTES, kind };
        let mut tensors = [tensor(Kind::Temporary); 3 * LAYERS + 4];
        let [weight, forward, backward] = [0, LAYERS, 2 * LAYERS];
        let [input, head, gradient, of_head] = core::array::from_fn(|at| 3 * LAYERS + at);
        tensors[..LAYERS].fill(tensor(Kind::State));
        tensors[0].bytes = first_weight_bytes;
        tensors[input] = tensor(Kind::Input);
        tensors[head] = tensor(Kind::State);
        tensors[of_head].bytes = 2 * BYTES;
        let mut ops = Ops::default();
        let mut push = |reads: &[usize], writes: &[usize], repeatable| {
            ops.push(1, reads, writes, repeatable);
        };
        push(&[input, weight], &[forward], true);
        for at in 1..LAYERS {
            push(&[forward + at - 1, weight + at], &[forward + at], true);
        }
        push(&[forward + LAYERS - 1, head], &[gradient, of_head], true);
        if update == Update::AtOnce {
            push(&[of_head, head], &[head], false);
        }
        let mut from = gradient;
        for at in (1..LAYERS).rev() {
            push(&[from, forward + at - 1, weight + at], &[backward + at], false);
            from = backward + at;
        }
        if update == Update::Last {
            push(&[weight + LAYERS - 1], &[weight + LAYERS - 1], false);
            push(&[of_head, head], &[head], false);
        }
        ops.each_count(&tensors, |_, launches| visit(launches));
    }

    #[test]
    fn a_value_that_cannot_be_computed_after_an_update_stays() {
        for update in [Update::AtOnce, Update::Last] {
            let mut found = 0;
            each_count(BYTES, update, |launches| {
                let once = "an update has changed the head, or a layer that a repeat would need";
                assert_eq!(launches[HEAD.index()], 1, "{once}");
                found += 1;
            });
            assert_eq!(found, 4);
        }
    }

    #[test]
    fn a_learning_rate_stays() {
        let tensor = |bytes| Tensor { bytes, kind: Kind::Temporary };
        let mut tensors = [tensor(BYTES); 2 * LAYERS + 2];
        let [rate, mut gradient, weight] = [0, LAYERS + 1, 2 * LAYERS + 1];
        tensors[rate] = tensor(8);
        tensors[weight].kind = Kind::State;
        let mut ops = Ops::default();
        ops.push(1, &[], &[rate], true);
        ops.push(1, &[weight], &[1], true);
        for at in 1..LAYERS {
            ops.push(1, &[at], &[at + 1], true);
        }
        ops.push(1, &[LAYERS], &[gradient], true);
        for at in (1..LAYERS).rev() {
            ops.push(1, &[gradient, at], &[gradient + 1], false);
            gradient += 1;
        }
        ops.push(1, &[gradient, rate, weight], &[weight], false);
        let (mut found, mut repeated) = (0, 0);
        ops.each_count(&tensors, |_, launches: [usize; 2 * LAYERS + 2]| {
            assert_eq!(launches[rate], 1);
            found += 1;
            repeated += launches.iter().filter(|&&launches| launches > 1).count();
        });
        assert!(found > 0 && repeated > 0);
    }

    #[test]
    fn losses_of_micro_batches_may_stay() {
        const BATCHES: usize = 2;
        const LOSS: usize = LAYERS * BATCHES;
        let mut tensors = heapless::Vec::<Tensor, 32>::new();
        let mut tensor = |kind| add(&mut tensors, BYTES, kind);
        let mut ops = Ops::default();
        let mut last = [0; BATCHES].map(|_| tensor(Kind::Input));
        let mut values = [[0; BATCHES]; LAYERS];
        for values in &mut values {
            for (value, last) in values.iter_mut().zip(&mut last) {
                *value = tensor(Kind::Temporary);
                ops.push(1, &[*last], &[*value], true);
                *last = *value;
            }
        }
        for last in &mut last {
            let gradient = tensor(Kind::Temporary);
            ops.push(1, &[*last], &[gradient, tensor(Kind::Output)], true);
            *last = gradient;
        }
        for values in values.iter().rev() {
            for (value, last) in values.iter().zip(&mut last) {
                ops.push(1, &[*last, *value], &[*last], false);
            }
        }
        let most = |after_loss, op: usize| {
            let mut most = 0;
            let visit = |_, launches: [usize; LOSS + 1]| most = most.max(launches[op]);
            ops.each_count_after_loss(&tensors, after_loss, visit);
            most
        };
        assert_eq!([AfterLoss::Dropped, AfterLoss::Kept].map(|after| most(after, LOSS)), [2, 1]);
        assert_eq!(most(AfterLoss::Kept, LOSS - BATCHES), 2, "its layer is computed again");
        let all = |tensors: &[Tensor], after_loss| {
            let mut found = heapless::Vec::<[usize; LOSS + 1], 16>::new();
            ops.each_count_after_loss(tensors, after_loss, |_, launches| {
                found.push(launches).unwrap();
            });
            found
        };
        let [kept, only_kept] = [AfterLoss::Kept, AfterLoss::OnlyKept].map(|of| all(&tensors, of));
        assert_eq!(kept, only_kept, "each division would drop a loss");
        let is_loss = |tensor: &&mut Tensor| tensor.kind == Kind::Output;
        tensors.iter_mut().filter(is_loss).for_each(|tensor| tensor.kind = Kind::Temporary);
        let [kept, only_kept] = [AfterLoss::Kept, AfterLoss::OnlyKept].map(|of| all(&tensors, of));
        assert!(!kept.is_empty() && only_kept.is_empty(), "there is no loss");
    }

    #[test]
    fn a_layer_of_one_micro_batch_is_a_segment() {
        const BATCHES: usize = 2;
        let mut tensors = heapless::Vec::<Tensor, 32>::new();
        let mut tensor = |kind| add(&mut tensors, BYTES, kind);
        let mut ops = Ops::default();
        let mut last = [0; BATCHES].map(|_| tensor(Kind::Input));
        let mut values = [[[0; 2]; BATCHES]; LAYERS / 2];
        for values in &mut values {
            for (values, last) in values.iter_mut().zip(&mut last) {
                *values = [0; 2].map(|_| tensor(Kind::Temporary));
                ops.push(1, &[*last], &values[..1], true);
                ops.push(1, &values[..1], &values[1..], true);
                *last = values[1];
            }
        }
        let gradients = [0; BATCHES].map(|_| tensor(Kind::Temporary));
        for (gradient, last) in gradients.iter().zip(last) {
            ops.push(1, &[last], &[*gradient], false);
        }
        for values in values.iter().rev() {
            for ([inner, result], gradient) in values.iter().zip(gradients) {
                ops.push(1, &[gradient, *inner, *result], &[gradient], false);
            }
        }
        let mut found = 0;
        ops.each_count(&tensors, |division, launches: [usize; LAYERS * BATCHES]| {
            if matches!(division, Division::Batches) {
                found += 1;
                for layer in launches[..LAYERS * BATCHES - 2 * BATCHES].chunks(2) {
                    assert_eq!(layer, [2, 1], "{launches:?}");
                }
            }
        });
        assert_eq!(found, 1);
    }

    #[test]
    fn a_large_table_is_not_read_again() {
        let most = |bytes| {
            let mut most = 0;
            each_count(bytes, Update::AtOnce, |launches| most = most.max(launches[0]));
            most
        };
        assert_eq!((most(BYTES), most(BYTES + 1)), (2, 1));
    }

    #[test]
    fn a_layer_has_two_valleys() {
        let mut ops = Ops::default();
        let mut tensors = heapless::Vec::<Tensor, 64>::new();
        let mut tensor = |bytes, kind| add(&mut tensors, bytes, kind);
        let mut last = tensor(BYTES, Kind::Input);
        let mut values = heapless::Vec::<usize, 32>::new();
        for half in 0..2 * LAYERS {
            let [wide, narrow] = [4, 1].map(|width| tensor(width * BYTES, Kind::Temporary));
            let state = tensor((1 + half as u64 % 2) * BYTES, Kind::State);
            ops.push(1, &[last, state], &[wide], true);
            ops.push(1, &[wide], &[narrow], true);
            values.extend([wide, narrow]);
            last = narrow;
        }
        let gradient = tensor(BYTES, Kind::Temporary);
        ops.push(1, &[last], &[gradient], false);
        for pair in values.chunks(2).rev() {
            ops.push(1, &[gradient, pair[0], pair[1]], &[gradient], false);
        }
        ops.with_task(&tensors, |task, _, scratch| {
            assert_eq!(layer_bytes(task, scratch), Ok(3 * BYTES));
        });
    }

    #[test]
    fn cuts_are_where_layers_end_and_spare_the_longer_ops() {
        // Each half of a layer has a wide value between two narrow ones. The backward pass does not
        // read the result of the longest op, in the second half.
        let (ends, mut ops) = (LAYERS / 2, Ops::default());
        let mut tensors: heapless::Vec<Tensor, 32> = heapless::Vec::new();
        let mut tensor = |bytes| {
            tensors.push(Tensor { bytes, kind: Kind::Temporary }).unwrap();
            tensors.len() - 1
        };
        let mut made: heapless::Vec<[usize; 4], LAYERS> = heapless::Vec::new();
        let mut last = tensor(BYTES);
        ops.push(1, &[], &[last], false);
        for _ in 0..ends {
            let input = last;
            let [wide, middle, wider] = [3, 1, 4].map(|width| tensor(width * BYTES));
            let [tail, end] = [0; 2].map(|_| tensor(BYTES));
            last = end;
            ops.push(2, &[input], &[wide], true);
            ops.push(3, &[wide], &[middle], true);
            ops.push(2, &[middle], &[wider], true);
            ops.push(9, &[wider], &[tail], true);
            ops.push(1, &[tail], &[last], true);
            made.push([input, wide, middle, wider]).unwrap();
        }
        let mut gradient = tensor(BYTES);
        ops.push(1, &[last], &[gradient], false);
        for kept in made.iter().rev() {
            let next = tensor(BYTES);
            ops.push(1, &[gradient, kept[0], kept[1], kept[2], kept[3]], &[next], false);
            gradient = next;
        }
        let mut found = 0;
        ops.each_count(&tensors, |division, launches: [usize; 2 + 3 * LAYERS]| {
            if !matches!(division, Division::Valleys(2)) {
                return;
            }
            found += 1;
            for layer in 0..ends - 1 {
                assert_eq!(launches[1 + 5 * layer..][..5], [2, 2, 2, 1, 1], "layer {layer}");
            }
        });
        assert_eq!(found, 1);
    }
}
