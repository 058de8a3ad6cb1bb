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

use super::builder::Builder;
use super::error::PlanningError;
use super::gaps::Gaps;
use super::in_core::InCore;
use super::list::{Lengths, Stuck};
use super::memory::Memory;
use super::paced;
use super::recipe::PACES;
use super::repeats::{self, Dropped, Outcome, Unrolled, Values};
use super::request::Task;
use super::strategy::{Need, Rule};
use super::trials::Search;
use crate::graph::{Kind, OpId, TensorId};
use crate::plan::ArenaPlacement;
use crate::scratch::{Limits, OutOfScratch, Scratch, larger, total, words};
use crate::sequence::{LaunchId, Sequence};
use core::cmp::Reverse;

/// The numbers of segments that are tried, in addition to the square root of the ops of the forward
/// pass.
const SEGMENTS: [usize; 13] = [2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128];

/// The distance of a cut from the cut into equal parts may be this fraction of a segment.
const NEAR: usize = 3;

/// How many [valleys](Forward::each_valley) a segment has. A layer of a transformer has two: one after
/// attention, and one after the perceptron.
const STRIDES: [usize; 3] = [1, 2, 4];

/// How the forward pass is cut into segments.
#[derive(Clone, Copy)]
pub(super) enum Division {
    /// Into this number of nearly equal parts.
    Equal(usize),
    /// At each valley of this number.
    Valleys(usize),
}

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
        larger(repeats::unroll_words(limits), Gaps::working_words(limits)),
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

/// Calls `visit` with the sequence of each number of segments. Values that cannot be computed again
/// stay: for example, an update may have changed a weight that the repeat would read. Leaves out
/// sequences in which too many values would stay.
pub(super) fn each(
    task: &Task<'_>,
    memory: &Memory<'_>,
    scratch: &mut Scratch<'_>,
    mut visit: impl FnMut(&Sequence<'_>, Division, &mut Scratch<'_>) -> Result<(), PlanningError>,
) -> Result<(), PlanningError> {
    let sequence = task.sequence;
    let mut scratch = scratch.reborrow();
    let most = sequence.graph().ops().len().saturating_mul(2);
    let gaps = Gaps::new(sequence, &mut scratch)?;
    let forward = Forward::new(task, &gaps, &mut scratch)?;
    let numbers = SEGMENTS.into_iter().chain([forward.peak.isqrt()]);
    let equal = numbers.filter(|number| (2..forward.peak).contains(number)).map(Division::Equal);
    for division in STRIDES.map(Division::Valleys).into_iter().chain(equal) {
        let mut scratch = scratch.reborrow();
        let launches = scratch.take(most, OpId(0))?;
        let positions = scratch.take(sequence.len(), 0u32)?;
        let mut make = |staying: &Staying| -> Result<Outcome, OutOfScratch> {
            let mut scratch = scratch.reborrow();
            let mut values = Values::new(sequence, &gaps, &mut scratch)?;
            let mut dropped = Dropped::new(gaps.len(), &mut scratch)?;
            let cuts = forward.cuts(division, &mut scratch)?;
            drop_between(task, &gaps, (&mut values, &mut dropped), staying, forward.peak, cuts);
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

/// The time that a temporary waits for its next use within an iteration.
struct TemporaryGap {
    /// The operand before the gap.
    slot: usize,
    /// The launches of the gap: `from..to`.
    from: usize,
    to: usize,
}

/// The gaps of temporaries.
fn gaps_of_temporaries<'g>(
    task: &'g Task<'_>,
    gaps: &'g Gaps<'_>,
) -> impl Iterator<Item = TemporaryGap> + 'g {
    let sequence = task.sequence;
    (0..gaps.len()).filter_map(move |slot| {
        let span = gaps.span(sequence, slot).filter(|span| !span.wraps)?;
        let tensor = sequence.operands()[slot];
        let is_temporary = sequence.tensor(tensor).kind == Kind::Temporary;
        is_temporary.then_some(TemporaryGap { slot, from: span.from, to: span.to })
    })
}

/// The launch before which most bytes of temporaries wait for their next use.
fn peak(
    task: &Task<'_>,
    gaps: &Gaps<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<usize, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let change = scratch.take(task.sequence.len() + 1, 0u64)?;
    for TemporaryGap { slot, from, to } in gaps_of_temporaries(task, gaps) {
        let bytes = task.sequence.tensor(task.sequence.operands()[slot]).bytes;
        change[from] = change[from].wrapping_add(bytes);
        change[to] = change[to].wrapping_sub(bytes);
    }
    let (mut bytes, mut most) = (0u64, (0u64, 0));
    for (at, &change) in change.iter().enumerate() {
        bytes = bytes.wrapping_add(change);
        if bytes > most.0 {
            most = (bytes, at);
        }
    }
    Ok(most.1)
}

/// The forward pass, and the cuts before each of its launches.
struct Forward<'f> {
    sequence: &'f Sequence<'f>,
    /// The launch before which most bytes of temporaries wait for their next use.
    peak: usize,
    /// For each cut, the bytes of the values that cross it.
    crossing: &'f [u64],
    /// For each cut, the time of the launches just before it whose results the backward pass does
    /// not read, and of the launch that makes the last value that crosses it.
    spared_ns: &'f [u64],
}

impl<'f> Forward<'f> {
    fn new(
        task: &'f Task<'_>,
        gaps: &Gaps<'_>,
        scratch: &mut Scratch<'f>,
    ) -> Result<Self, OutOfScratch> {
        let sequence = task.sequence;
        let crossing = scratch.take(sequence.len() + 1, 0u64)?;
        let spared_ns = scratch.take(sequence.len() + 1, 0u64)?;
        let mut scratch = scratch.reborrow();
        let peak = peak(task, gaps, &mut scratch)?;
        let waits = scratch.take(sequence.len(), 0u8)?;
        for TemporaryGap { slot, from, to } in gaps_of_temporaries(task, gaps) {
            // Within the forward pass, a value crosses the cuts between two of its uses.
            if to < peak {
                let bytes = sequence.tensor(sequence.operands()[slot]).bytes;
                crossing[from] = crossing[from].wrapping_add(bytes);
                crossing[to + 1] = crossing[to + 1].wrapping_sub(bytes);
            } else if from <= peak && peak < to {
                waits[gaps.launch(gaps.version(slot) as usize).index()] = 1;
            }
        }
        let mut sum = 0u64;
        for bytes in &mut *crossing {
            sum = sum.wrapping_add(*bytes);
            *bytes = sum;
        }
        let mut before_ns = 0u64;
        for (launch, spared_ns) in sequence.launches().zip(&mut spared_ns[1..]) {
            *spared_ns = before_ns.saturating_add(sequence.time_ns(launch));
            before_ns = if waits[launch.index()] == 1 { 0 } else { *spared_ns };
        }
        Ok(Self { sequence, peak, crossing, spared_ns })
    }

    /// The launches before which segments begin, without the first segment.
    fn cuts<'s>(
        &self,
        division: Division,
        scratch: &mut Scratch<'s>,
    ) -> Result<&'s [u32], OutOfScratch> {
        let cuts = scratch.take(self.peak + 1, 0u32)?;
        let (first, others) = cuts.split_at_mut(1);
        let (near, others) = match division {
            Division::Equal(segments) => {
                let near = self.peak / segments / NEAR;
                self.cut_equally(near, &mut others[..segments - 1]);
                (near, segments - 1)
            }
            Division::Valleys(stride) => {
                let valleys = self.cut_at_valleys(stride, others);
                (self.peak / (valleys + 1) / NEAR, valleys)
            }
        };
        first[0] = self.first_cut(near).unwrap_or(0) as u32;
        let cuts = &mut cuts[..=others];
        cuts.sort_unstable();
        Ok(cuts)
    }

    /// Cuts near equal parts.
    fn cut_equally(&self, near: usize, cuts: &mut [u32]) {
        let segments = cuts.len() + 1;
        for (at, cut) in cuts.iter_mut().enumerate() {
            let equal = (at + 1) * self.peak / segments;
            let range = equal.saturating_sub(near).max(1)..=(equal + near).min(self.peak);
            let best = range.min_by_key(|&at| (self.crossing[at], at.abs_diff(equal)));
            *cut = best.unwrap_or(equal) as u32;
        }
    }

    /// Cuts at each valley of this number, where that spares most time. Returns the number of cuts.
    fn cut_at_valleys(&self, stride: usize, cuts: &mut [u32]) -> usize {
        let mut valleys = 0;
        self.each_valley(|at| {
            cuts[valleys] = at as u32;
            valleys += 1;
        });
        let spared_ns = |&first: &usize| {
            let cuts = cuts[..valleys].iter().skip(first).step_by(stride);
            cuts.map(|&cut| self.spared_ns[cut as usize]).fold(0, u64::saturating_add)
        };
        let first = (0..stride).max_by_key(spared_ns).unwrap_or(0);
        let kept = valleys.saturating_sub(first).div_ceil(stride);
        for at in 0..kept {
            cuts[at] = cuts[first + at * stride];
        }
        kept
    }

    /// Visits the cuts that few bytes cross: before and after each, twice as many bytes cross.
    fn each_valley(&self, mut visit: impl FnMut(usize)) {
        let is_twice = |more: u64, less: u64| more > less && more / 2 >= less;
        let key = |at: usize| (self.crossing[at], Reverse(self.spared_ns[at]));
        let (mut highest, mut lowest) = (0, None);
        for at in 1..self.peak {
            let bytes = self.crossing[at];
            match lowest {
                Some(low) if is_twice(bytes, self.crossing[low]) => {
                    visit(low);
                    (highest, lowest) = (bytes, None);
                }
                Some(low) => lowest = Some(if key(at) < key(low) { at } else { low }),
                None => {
                    highest = bytes.max(highest);
                    lowest = is_twice(highest, bytes).then_some(at);
                }
            }
        }
    }

    /// A cut after launches that read more bytes of states than they leave: this avoids a second
    /// look-up of an embedding at the end of the backward pass, which does not use its table any
    /// more.
    fn first_cut(&self, near: usize) -> Option<usize> {
        let sequence = self.sequence;
        let is_state = |tensor: &&TensorId| sequence.tensor(**tensor).kind == Kind::State;
        let mut read_bytes = 0u64;
        let cuts = sequence.launches().take(near.max(1)).filter_map(|launch| {
            let states = sequence.reads(launch).iter().filter(is_state);
            let bytes = states.map(|&tensor| sequence.tensor(tensor).bytes);
            read_bytes = bytes.fold(read_bytes, u64::saturating_add);
            let cut = launch.index() + 1;
            let left_bytes = *self.crossing[..=self.peak].get(cut)?;
            (0 < left_bytes && left_bytes < read_bytes).then_some((left_bytes, cut))
        });
        cuts.min().map(|(_, cut)| cut)
    }
}

/// Drops the values that wait across the peak and cross no cut, and holds the values that cross a
/// cut for repeats.
fn drop_between(
    task: &Task<'_>,
    gaps: &Gaps<'_>,
    (values, dropped): (&mut Values<'_>, &mut Dropped<'_>),
    staying: &Staying,
    peak: usize,
    cuts: &[u32],
) {
    let sequence = task.sequence;
    let is_cut = |from: LaunchId, to: usize| {
        let next = cuts.partition_point(|&cut| cut <= from.0);
        cuts.get(next).is_some_and(|&cut| cut as usize <= to)
    };
    let end = LaunchId(sequence.len() as u32 - 1);
    for TemporaryGap { slot, from, to } in gaps_of_temporaries(task, gaps) {
        let value = gaps.version(slot);
        let maker = gaps.launch(value as usize);
        if to < peak && is_cut(LaunchId(from as u32 - 1), to) {
            values.hold(value, end);
        }
        let waits = from <= peak && peak < to;
        let is_kept = staying.contains(&value);
        let can_run_again = values.can_run_again(sequence, gaps, maker, LaunchId(to as u32));
        if waits && !is_kept && !is_cut(maker, from - 1) && can_run_again {
            dropped.drop_after(slot);
        }
    }
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

    /// Layers forward, a head that also computes its gradients, and the layers backward, with the
    /// update of the head. Calls `visit` with the number of launches of each op, for each number of
    /// segments.
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
        let mut operands: heapless::Vec<TensorId, 128> = heapless::Vec::new();
        let mut ops: heapless::Vec<Op, 32> = heapless::Vec::new();
        let mut push = |reads: &[usize], writes: &[usize], repeatable| {
            let first_operand = operands.len() as u32;
            operands.extend(reads.iter().chain(writes).map(|&id| TensorId(id as u32)));
            let [reads, writes] = [reads, writes].map(|operands| operands.len() as u32);
            let op = Op { time_ns: 1, first_operand, reads, writes, repeatable, ..Op::default() };
            ops.push(op).unwrap();
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
        let mut words = [0; 1 << 15];
        let mut scratch = Scratch::new(&mut words);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let sequence = &Sequence::as_given(&graph, None, &mut scratch).unwrap();
        let machine = &Machine::of_chunks(4096).with_host_bytes(1 << 30);
        let task = Task { sequence, machine, budget_bytes: 1 << 30 };
        let mut arena = [ArenaPlacement { tensor: TensorId(0), offset_bytes: 0 }; 32];
        let memory = memory(&task, &mut arena, &mut scratch).unwrap();
        each(&task, &memory, &mut scratch, |repeated, _, _| {
            let of =
                |op| repeated.launches().filter(move |&launch| repeated.op(launch).index() == op);
            visit(core::array::from_fn(|op| of(op).count()));
            Ok(())
        })
        .unwrap();
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
    fn a_large_table_is_not_read_again() {
        let most = |bytes| {
            let mut most = 0;
            each_count(bytes, Update::AtOnce, |launches| most = most.max(launches[0]));
            most
        };
        assert_eq!((most(BYTES), most(BYTES + 1)), (2, 1));
    }
}
