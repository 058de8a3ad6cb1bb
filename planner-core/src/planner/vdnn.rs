//! vDNN (Rhu et al., vDNN: Virtualized Deep Neural Networks, MICRO 2016), in its memory-saving
//! variant `vDNN_all`, as section 2 of the window paper describes it: every feature map is
//! swapped out after its last use in the forward pass, and swapped in one function before the
//! backward pass uses it. It does so whether memory is short or not.
//!
//! A list of ops does not say where the forward pass ends, but each temporary does: the
//! longest gap between two of its uses is the one from forward to backward. So a temporary
//! leaves after the use before its longest gap (the first of the longest) and comes back one
//! op ahead of the use behind it; a gap of one op is none, since it would come back at once.
//!
//! vDNN has weights on the device, and inputs are ordinary feature maps of the first layer.
//! Here states are treated like those of `fit`, so that models with more of them than memory
//! can be planned; inputs, and temporaries outside their gap, stay while they are needed, and
//! where that is too much, what was used least recently leaves.

use super::builder::{Builder, Lengths, Stuck};
use super::cache::{self, Fate};
use super::fit::fate_of_state;
use super::residents::{Residents, Spans};
use crate::graph::{Kind, OpId, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

const NONE: u32 = u32::MAX;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    let (finding, choosing) = (words::<u32>(limits.tensors), Spans::scratch_words(limits));
    let caching = cache::scratch_words(limits);
    let most = if finding > choosing { finding } else { choosing };
    Gaps::scratch_words(limits)
        + Residents::scratch_words(limits)
        + if most > caching { most } else { caching }
}

/// The longest gap of each temporary: the op after which it leaves, and how many ops later
/// the next use is.
struct Gaps<'a> {
    from: &'a mut [u32],
    length: &'a mut [u32],
}

impl<'a> Gaps<'a> {
    const fn scratch_words(limits: &Limits) -> usize {
        2 * words::<u32>(limits.tensors)
    }

    fn new(builder: &Builder<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let graph = builder.request.graph;
        let tensors = graph.tensors().len();
        let gaps = Self { from: scratch.take(tensors, NONE)?, length: scratch.take(tensors, 2)? };
        let mut scratch = scratch.reborrow();
        let last_touch = scratch.take(tensors, NONE)?;
        for op in graph.op_ids() {
            for &tensor in graph.reads(op) {
                let last = last_touch[tensor.index()];
                let is_temporary = graph.tensor(tensor).kind == Kind::Temporary;
                let longest = &mut gaps.length[tensor.index()];
                if is_temporary && last != NONE && op.0 - last > *longest {
                    *longest = op.0 - last;
                    gaps.from[tensor.index()] = last;
                }
            }
            for &tensor in graph.operands_of(op) {
                last_touch[tensor.index()] = op.0;
            }
        }
        Ok(gaps)
    }

    fn leaves_after(&self, tensor: TensorId) -> Option<OpId> {
        let from = self.from[tensor.index()];
        (from != NONE).then_some(OpId(from))
    }

    /// A temporary is on the device before its gap, and from one op before its end.
    fn add_spans(&self, builder: &Builder<'_>, spans: &mut Spans<'_>, tensor: TensorId) {
        match (self.leaves_after(tensor), spans.last(tensor)) {
            (Some(from), Some(last)) => {
                let back = OpId(from.0 + self.length[tensor.index()] - 1);
                spans.add(builder, tensor, builder.first_use(tensor).op(), from);
                spans.add(builder, tensor, back, last);
            }
            _ => spans.add_lifetime(builder, tensor),
        }
    }
}

pub(super) fn write(
    builder: Builder<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<Result<Lengths, Stuck>, OutOfScratch> {
    let mut scratch = scratch.reborrow();
    let gaps = Gaps::new(&builder, &mut scratch)?;
    let mut residents = Residents::new(&builder, &mut scratch)?;
    {
        let mut scratch = scratch.reborrow();
        let mut spans = Spans::new(&builder, &mut scratch)?;
        for tensor in builder.request.graph.tensor_ids() {
            gaps.add_spans(&builder, &mut spans, tensor);
        }
        residents.choose(&builder, &spans);
    }
    cache::write(builder, 1, &mut scratch, |builder, op, tensor| {
        match fate_of_state(builder, &residents, op, tensor) {
            Some(fate) => fate,
            None if gaps.leaves_after(tensor) == Some(op) => Fate::Leaves,
            None => Fate::Cached,
        }
    })
}
