//! vDNN (Rhu et al., vDNN: Virtualized Deep Neural Networks, MICRO 2016), in its memory-saving
//! variant `vDNN_all`, as section 2 of the window paper describes it: every feature map is swapped
//! out after its last use in the forward pass, and swapped in one function before the backward pass
//! uses it, whether memory is short or not.
//!
//! A list of ops does not tell where the forward pass ends, but its temporaries do: the longest gap
//! between two uses of a feature map is the gap from forward to backward. So the peak is the op
//! after which the most bytes are within their longest gap. A temporary leaves after its last use
//! before the peak, and is prefetched one op ahead of its first use after it, unless that would be
//! at once. Work without a backward pass has a peak too, with hardly any gap across it.
//!
//! vDNN keeps weights on the device, and inputs are ordinary feature maps of the first layer. Here
//! states are treated as in `fit`, so that models with more states than memory can be planned.
//! Inputs, and temporaries outside their gap, stay while they are needed; if they do not fit, the
//! least recently used one is evicted.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors and ops are those of the sequence, and the arrays have an entry for each"
)]

use super::builder::Builder;
use super::cache::{self, Retention};
use super::fit::{self, retention_of_state};
use super::list::{Lengths, Stuck};
use super::residents::{Residents, Spans};
use super::strategy::Rule;
use super::trials::Search;
use crate::graph::{Kind, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};
use crate::sequence::LaunchId;
use core::ops::Range;

const NONE: u32 = u32::MAX;

/// A tensor that is used again within this many ops would be prefetched at once.
const SHORTEST: u32 = 2;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    // Finding gaps takes at most as many words as choosing residents.
    Gaps::scratch_words(limits).saturating_add(fit::scratch_words(limits))
}

/// The gap of each temporary across the peak: the op after which it leaves, and the number of ops
/// to its next use.
struct Gaps<'a> {
    from: &'a mut [u32],
    length: &'a mut [u32],
}

impl<'a> Gaps<'a> {
    const fn scratch_words(limits: &Limits) -> usize {
        words::<u32>(limits.tensors).saturating_mul(2)
    }

    fn new(builder: &Builder<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let tensors = builder.task.sequence.tensors().len();
        let mut gaps =
            Self { from: scratch.take(tensors, NONE)?, length: scratch.take(tensors, 0)? };
        gaps.find_longest(builder, scratch, 0..u32::MAX)?;
        let peak = gaps.peak(builder, scratch)?;
        gaps.from.fill(NONE);
        gaps.length.fill(SHORTEST);
        gaps.find_longest(builder, scratch, peak..peak.saturating_add(1))?;
        Ok(gaps)
    }

    /// Finds for each temporary the longest gap that begins at or before the last of the ops
    /// `around` and ends after the first of them, if it is longer than the known one.
    fn find_longest(
        &mut self,
        builder: &Builder<'_>,
        scratch: &mut Scratch<'_>,
        around: Range<u32>,
    ) -> Result<(), OutOfScratch> {
        let sequence = builder.task.sequence;
        let mut scratch = scratch.reborrow();
        let last_touch = scratch.take(sequence.tensors().len(), NONE)?;
        for op in sequence.launches() {
            for &tensor in sequence.reads(op) {
                let from = last_touch[tensor.index()];
                let is_temporary = sequence.tensor(tensor).kind == Kind::Temporary;
                let crosses = from < around.end && op.0 > around.start;
                let longest = &mut self.length[tensor.index()];
                let length = op.0.saturating_sub(from);
                if is_temporary && from != NONE && crosses && length > *longest {
                    *longest = length;
                    self.from[tensor.index()] = from;
                }
            }
            for &tensor in sequence.operands_of(op) {
                last_touch[tensor.index()] = op.0;
            }
        }
        Ok(())
    }

    /// The op after which the most chunks are within their gap.
    fn peak(&self, builder: &Builder<'_>, scratch: &mut Scratch<'_>) -> Result<u32, OutOfScratch> {
        let sequence = builder.task.sequence;
        let mut scratch = scratch.reborrow();
        let change = scratch.take(sequence.len().saturating_add(1), 0u64)?;
        for tensor in sequence.tensor_ids() {
            if let Some(from) = self.leaves_after(tensor) {
                let objects = builder.memory.objects(tensor);
                let to = self.end(tensor, from) as usize;
                change[from.index()] = change[from.index()].wrapping_add(objects);
                change[to] = change[to].wrapping_sub(objects);
            }
        }
        let (mut gone, mut most) = (0u64, (0u64, 0u32));
        for (op, &change) in (0..).zip(&*change) {
            gone = gone.wrapping_add(change);
            if gone > most.0 {
                most = (gone, op);
            }
        }
        Ok(most.1)
    }

    fn leaves_after(&self, tensor: TensorId) -> Option<LaunchId> {
        let from = self.from[tensor.index()];
        (from != NONE).then_some(LaunchId(from))
    }

    /// The op that ends the gap of a temporary, given the op after which it begins.
    fn end(&self, tensor: TensorId, from: LaunchId) -> u32 {
        from.0.saturating_add(self.length[tensor.index()])
    }

    /// Adds a temporary before its gap, and from one op before its end.
    fn add_spans(&self, builder: &Builder<'_>, spans: &mut Spans<'_>, tensor: TensorId) {
        match (self.leaves_after(tensor), spans.last(tensor)) {
            (Some(from), Some(last)) => {
                let back = LaunchId(self.end(tensor, from).saturating_sub(1));
                spans.add(builder, tensor, builder.first_op(tensor), from);
                spans.add(builder, tensor, back, last);
            }
            _ => spans.add_lifetime(builder, tensor),
        }
    }
}

/// The rule.
#[derive(Debug)]
pub(super) struct Vdnn;

impl Rule for Vdnn {
    fn write(
        &self,
        _: usize,
        builder: Builder<'_>,
        _: &mut Search<'_>,
        scratch: &mut Scratch<'_>,
    ) -> Result<Lengths, Stuck> {
        let mut scratch = scratch.reborrow();
        let gaps = Gaps::new(&builder, &mut scratch)?;
        let mut residents = Residents::new(&builder, &mut scratch)?;
        {
            let mut scratch = scratch.reborrow();
            let mut spans = Spans::new(&builder, &mut scratch)?;
            for tensor in builder.task.sequence.tensor_ids() {
                gaps.add_spans(&builder, &mut spans, tensor);
            }
            residents.choose(&builder, &mut spans);
        }
        cache::write(builder, 1, &mut scratch, |builder, op, tensor| {
            match retention_of_state(builder, &residents, op, tensor) {
                Some(retention) => retention,
                None if gaps.leaves_after(tensor) == Some(op) => Retention::Leaves,
                None => Retention::Cached,
            }
        })
    }
}
