//! The span of the list in which each temporary needs its slot on the host.

#![expect(
    clippy::indexing_slicing,
    reason = "ids are those of the checked graph, and the arrays have an entry for each tensor"
)]

use crate::graph::{Graph, Kind, Launched, OpId, TensorId};
use crate::packing::Item;
use crate::pieces::Pieces;
use crate::plan::{Part, Plan, Step};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

const NEVER: u32 = u32::MAX;

/// The tensor is being copied: no launch has used it since its last copy.
const MOVING: u8 = 1;
/// The first copy of the tensor had no launch before it that writes it, or an op on the host uses
/// it.
const UNCLEAR: u8 = 2;

/// The bytes of each tensor that are copied, and the spans of temporaries.
///
/// The span of a temporary begins with the launch that writes the bytes of its first offload, and
/// ends with the last launch that uses the tensor if that comes after all of its copies; so it
/// covers every version that is copied. Two temporaries whose spans do not overlap may share bytes
/// without an additional wait: the last launch of the earlier span has waited for every prefetch of
/// its tensor, the offloads of the later span wait for their first launch, and offloads run in list
/// order.
///
/// A temporary needs its slot all the time if no launch uses it after its last copy, or if an op on
/// the host or a collective uses it: launches on different streams that use different tensors may run
/// in any order.
#[derive(Debug)]
pub(super) struct Spans<'a> {
    /// The first and the last launch of each span, by position in the list.
    ends: &'a mut [[u32; 2]],
    written: &'a mut [u32],
    /// The first copied byte, and the byte after the last copied byte.
    moved_bytes: &'a mut [[u64; 2]],
    flags: &'a mut [u8],
    steps: u32,
}

impl<'a> Spans<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<[u32; 2]>(limits.tensors),
            words::<u32>(limits.tensors),
            words::<[u64; 2]>(limits.tensors),
            words::<u8>(limits.tensors),
        ])
    }

    /// Walks the list once. O(steps + operands).
    pub(super) fn new(
        graph: &Graph<'_>,
        plan: &Plan<'_>,
        pieces: &Pieces<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        let mut spans = Self {
            ends: scratch.take(tensors, [NEVER; 2])?,
            written: scratch.take(tensors, NEVER)?,
            moved_bytes: scratch.take(tensors, [u64::MAX, 0])?,
            flags: scratch.take(tensors, 0)?,
            steps: plan.steps.len() as u32,
        };
        for (at, step) in (0..).zip(plan.steps) {
            match *step {
                // Only temporaries have spans, and a repeat uses all temporaries of its op.
                Step::Launch(Launched { op, .. }) => {
                    for &tensor in graph.operands_of(op) {
                        spans.ends[tensor.index()][1] = at;
                        spans.flags[tensor.index()] &= !MOVING;
                    }
                    if graph.op(op).collective {
                        for &tensor in graph.operands_of(op) {
                            spans.flags[tensor.index()] |= UNCLEAR;
                        }
                    }
                    for &tensor in graph.writes(op) {
                        spans.written[tensor.index()] = at;
                    }
                }
                Step::Host(op) => spans.run_on_host(graph, op),
                Step::Offload(part) => spans.offload(graph, pieces, part),
                Step::Prefetch(part) => spans.copy(graph, pieces, part),
                // A later launch waits for the prefetch even if the part has been evicted since.
                Step::Evict(_) => {}
            }
        }
        Ok(spans)
    }

    fn offload(&mut self, graph: &Graph<'_>, pieces: &Pieces<'_>, part: Part) {
        let index = part.tensor.index();
        let first = &mut self.ends[index][0];
        if *first == NEVER {
            *first = self.written[index];
        }
        self.copy(graph, pieces, part);
    }

    fn copy(&mut self, graph: &Graph<'_>, pieces: &Pieces<'_>, part: Part) {
        let index = part.tensor.index();
        let is_known = self.ends[index][0] != NEVER;
        self.flags[index] |= MOVING | if is_known { 0 } else { UNCLEAR };
        let start = pieces.offset_bytes(part);
        let [from, to] = &mut self.moved_bytes[index];
        *from = start.min(*from);
        *to = start.saturating_add(pieces.part_bytes(graph, part)).max(*to);
    }

    /// An op on the host may use the whole tensor at any time, so no other tensor may take its
    /// bytes.
    fn run_on_host(&mut self, graph: &Graph<'_>, op: OpId) {
        for &tensor in graph.operands_of(op) {
            self.flags[tensor.index()] |= UNCLEAR;
            self.moved_bytes[tensor.index()] = [0, graph.tensor(tensor).bytes];
        }
    }

    /// Whether any byte of a tensor is copied, or an op on the host uses it.
    pub(super) fn moves(&self, tensor: TensorId) -> bool {
        self.moved_bytes[tensor.index()][1] > 0
    }

    /// The first byte of a tensor that is copied.
    pub(super) fn first_byte(&self, tensor: TensorId) -> u64 {
        self.moved_bytes[tensor.index()][0]
    }

    /// The temporaries that are copied, each with its span and the number of bytes from its first
    /// to its last copied byte.
    pub(super) fn items<'i>(
        &'i self,
        graph: &'i Graph<'_>,
    ) -> impl Iterator<Item = (TensorId, Item)> + Clone {
        let tensors = (0..).map(TensorId).zip(graph.tensors());
        tensors.filter(|&(id, tensor)| tensor.kind == Kind::Temporary && self.moves(id)).map(
            |(id, _)| {
                let [from, to] = self.moved_bytes[id.index()];
                let [first, last] = match self.flags[id.index()] {
                    0 => self.ends[id.index()],
                    _ => [0, self.steps.saturating_sub(1)],
                };
                (id, Item { first, last, bytes: to.saturating_sub(from) })
            },
        )
    }
}
