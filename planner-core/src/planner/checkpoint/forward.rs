//! The forward pass of a sequence, and where checkpointing cuts it into segments.

#![expect(
    clippy::indexing_slicing,
    reason = "slots, tensors and launches are those of the sequence; cuts and the peak are \
              positions of launches"
)]

use crate::graph::{Kind, TensorId};
use crate::planner::gaps::Gaps;
use crate::planner::order;
use crate::planner::request::Task;
use crate::scratch::{OutOfScratch, Scratch};
use crate::sequence::{LaunchId, Sequence};

/// The numbers of segments that are tried, in addition to the square root of the ops of the forward
/// pass.
const SEGMENTS: [usize; 13] = [2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128];

/// The distance of a cut from the cut into equal parts may be this fraction of a segment.
const NEAR: usize = 3;

/// How many [valleys](Forward::each_valley) a segment has. A layer of a transformer has two: one
/// after attention, and one after the perceptron.
const STRIDES: [usize; 3] = [1, 2, 4];

/// How the forward pass is cut into segments.
#[derive(Clone, Copy)]
pub(in crate::planner) enum Division {
    /// Into this number of nearly equal parts.
    Equal(usize),
    /// Into segments of this number of valleys.
    Valleys(usize),
    /// Where one micro-batch gives way to another. If micro-batches read states together, layer by
    /// layer, such a segment is a layer of one micro-batch.
    Batches,
}

/// The time that a temporary waits for its next use within an iteration.
pub(super) struct TemporaryGap {
    /// The operand before the gap.
    pub(super) slot: usize,
    /// The launches of the gap: `from..to`.
    pub(super) from: usize,
    pub(super) to: usize,
}

/// The gaps of temporaries.
pub(super) fn gaps_of_temporaries<'g>(
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
    let change = scratch.take(task.sequence.len().saturating_add(1), 0u64)?;
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

/// The forward pass, and what a cut before each of its launches means.
pub(super) struct Forward<'f> {
    sequence: &'f Sequence<'f>,
    /// The launch before which most bytes of temporaries wait for their next use.
    pub(super) peak: usize,
    /// For each cut, the bytes of the values that cross it.
    crossing: &'f [u64],
    /// For each cut, the time of the launches just before it that need not run again if the values
    /// that cross it stay: the last launch, and the launches before it whose results the backward
    /// pass does not read.
    spared_ns: &'f [u64],
    /// The micro-batch of each launch.
    batches: &'f [u32],
}

impl<'f> Forward<'f> {
    pub(super) fn new(
        task: &'f Task<'_>,
        gaps: &Gaps<'_>,
        scratch: &mut Scratch<'f>,
    ) -> Result<Self, OutOfScratch> {
        let sequence = task.sequence;
        let crossing = scratch.take(sequence.len().saturating_add(1), 0u64)?;
        let spared_ns = scratch.take(sequence.len().saturating_add(1), 0u64)?;
        let batches = scratch.take(sequence.len(), 0u32)?;
        order::batches(sequence, batches, scratch)?;
        let mut scratch = scratch.reborrow();
        let peak = peak(task, gaps, &mut scratch)?;
        let waits = scratch.take(sequence.len(), 0u8)?;
        for TemporaryGap { slot, from, to } in gaps_of_temporaries(task, gaps) {
            // Within the forward pass, a value crosses the cuts between two of its uses.
            if to < peak {
                let bytes = sequence.tensor(sequence.operands()[slot]).bytes;
                crossing[from] = crossing[from].wrapping_add(bytes);
                let after = &mut crossing[to.saturating_add(1)];
                *after = after.wrapping_sub(bytes);
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
        Ok(Self { sequence, peak, crossing: &crossing[..=peak], spared_ns, batches })
    }

    /// The divisions that are tried: whole layers first.
    pub(super) fn divisions(&self) -> impl Iterator<Item = Division> + use<> {
        let mut valleys = 0usize;
        self.each_valley(|_| valleys = valleys.saturating_add(1));
        let strides = STRIDES.into_iter().filter(move |&stride| stride <= valleys);
        let peak = self.peak;
        let numbers = SEGMENTS.into_iter().chain([peak.isqrt()]);
        let equal = numbers.filter(move |number| (2..peak).contains(number));
        let batches = self.switches().next().map(|_| Division::Batches);
        let layers = strides.map(Division::Valleys).chain(batches);
        layers.chain(equal.map(Division::Equal))
    }

    /// The launches before which segments begin, without the first segment.
    pub(super) fn cuts<'s>(
        &self,
        division: Division,
        scratch: &mut Scratch<'s>,
    ) -> Result<&'s [u32], OutOfScratch> {
        let cuts = scratch.take(self.peak.saturating_add(1), 0u32)?;
        let (first, others) = cuts.split_at_mut(1);
        let (near, others) = match division {
            Division::Equal(segments) => {
                let (near, cuts) = (self.near(segments), segments.saturating_sub(1));
                self.cut_equally(near, &mut others[..cuts]);
                (near, cuts)
            }
            Division::Valleys(stride) => {
                let valleys = self.cut_at_valleys(stride, others);
                (self.near(valleys.saturating_add(1)), valleys)
            }
            Division::Batches => {
                let mut switches = 0usize;
                for (cut, at) in others.iter_mut().zip(self.switches()) {
                    (*cut, switches) = (at as u32, switches.saturating_add(1));
                }
                (self.near(switches.saturating_add(1)), switches)
            }
        };
        first[0] = self.first_cut(near).unwrap_or(0) as u32;
        let cuts = &mut cuts[..=others];
        cuts.sort_unstable();
        Ok(cuts)
    }

    /// The number of launches that are near a cut between this many segments.
    fn near(&self, segments: usize) -> usize {
        self.peak.checked_div(segments).unwrap_or(0) / NEAR
    }

    /// The launches of the forward pass before which another micro-batch takes its turn.
    fn switches(&self) -> impl Iterator<Item = usize> {
        let pairs = self.batches[..self.peak].windows(2);
        (1..).zip(pairs).filter(|(_, pair)| pair[0] != pair[1]).map(|(at, _)| at)
    }

    /// The bytes of the states that a layer of two valleys reads, in the middle of all layers; 0
    /// without layers. O(launches + operands).
    pub(super) fn layer_bytes(&self, scratch: &mut Scratch<'_>) -> Result<u64, OutOfScratch> {
        let sequence = self.sequence;
        let mut scratch = scratch.reborrow();
        let cuts = scratch.take(self.peak.saturating_add(1), 0u32)?;
        let valleys = self.cut_at_valleys(1, cuts);
        let last_reader = scratch.take(sequence.tensors().len(), u32::MAX)?;
        let sizes = scratch.take(valleys, 0u64)?;
        let mut layers = 0usize;
        for (layer, cuts) in (0u32..).zip(cuts[..valleys].windows(3)) {
            let reads = (cuts[0]..cuts[2]).flat_map(|launch| sequence.reads(LaunchId(launch)));
            let states = reads.filter(|tensor| sequence.tensor(**tensor).kind == Kind::State);
            let first_reads = states.filter(|tensor| {
                core::mem::replace(&mut last_reader[tensor.index()], layer) != layer
            });
            let bytes = first_reads.map(|&tensor| sequence.tensor(tensor).bytes);
            sizes[layers] = bytes.fold(0, u64::saturating_add);
            layers = layers.saturating_add(1);
        }
        let sizes = &mut sizes[..layers];
        sizes.sort_unstable();
        Ok(sizes.get(layers / 2).copied().unwrap_or(0))
    }

    /// Cuts near equal parts.
    fn cut_equally(&self, near: usize, cuts: &mut [u32]) {
        let segments = cuts.len().saturating_add(1);
        for (at, cut) in (1usize..).zip(cuts) {
            let equal = at.saturating_mul(self.peak).checked_div(segments).unwrap_or(0);
            let to = equal.saturating_add(near).min(self.peak);
            let range = equal.saturating_sub(near).max(1)..=to;
            let best = range.min_by_key(|&at| (self.crossing[at], at.abs_diff(equal)));
            *cut = best.unwrap_or(equal) as u32;
        }
    }

    /// Cuts into segments of `stride` valleys, where cuts spare most time. Returns the number of
    /// cuts.
    fn cut_at_valleys(&self, stride: usize, cuts: &mut [u32]) -> usize {
        let mut valleys = 0usize;
        self.each_valley(|at| {
            cuts[valleys] = at as u32;
            valleys = valleys.saturating_add(1);
        });
        let spared_ns = |&first: &usize| {
            let cuts = cuts[..valleys].iter().skip(first).step_by(stride);
            cuts.map(|&cut| self.spared_ns[cut as usize]).fold(0, u64::saturating_add)
        };
        let first = (0..stride).max_by_key(spared_ns).unwrap_or(0);
        for (kept, at) in (first..valleys).step_by(stride).enumerate() {
            cuts[kept] = cuts[at];
        }
        valleys.saturating_sub(first).div_ceil(stride)
    }

    /// Visits the cuts that few bytes cross: before and after each, twice as many bytes cross.
    fn each_valley(&self, mut visit: impl FnMut(usize)) {
        let is_twice = |more: u64, less: u64| more > less && more / 2 >= less;
        let (mut highest, mut lowest) = (0, None);
        for at in 1..self.peak {
            let bytes = self.crossing[at];
            match lowest {
                Some(low) if is_twice(bytes, self.crossing[low]) => {
                    visit(low);
                    (highest, lowest) = (bytes, None);
                }
                Some(low) if bytes <= self.crossing[low] => lowest = Some(at),
                Some(_) => {}
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
            let cut = launch.next().index();
            let left_bytes = *self.crossing.get(cut)?;
            (0 < left_bytes && left_bytes < read_bytes).then_some((left_bytes, cut))
        });
        cuts.min().map(|(_, cut)| cut)
    }
}
