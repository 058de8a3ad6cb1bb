//! When each temporary needs its slot on the host.

use crate::graph::{Graph, Kind, Launched, OpId, TensorId};
use crate::packing::Item;
use crate::pieces::Pieces;
use crate::plan::{Part, Plan, Step};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

const NEVER: u32 = u32::MAX;

/// A value comes back.
const RETURNS: u8 = 1;
/// It comes back, or leaves, and no launch has touched the tensor since.
const MOVING: u8 = 2;
/// The copies are not of the kind that a span is known for.
const UNCLEAR: u8 = 4;

/// What moves of each tensor, and when.
///
/// A temporary's span goes from the launch, first or again, that writes what is offloaded first to
/// the last launch that touches the tensor, where that comes after all of its copies; it covers
/// every version that moves. Two temporaries
/// may share bytes where their spans do not overlap, and nothing has to wait for that: the last
/// launch of the earlier span has waited for every prefetch of its tensor, the offloads of the
/// later one wait for the first launch of theirs, and offloads keep the order of the list.
///
/// Any other temporary needs its slot all the time: one that never comes back, is touched by
/// no launch after a copy, or by an op on the host.
#[derive(Debug)]
pub(super) struct Spans<'a> {
    /// The first and the last launch of each span, by position in the list.
    ends: &'a mut [[u32; 2]],
    written: &'a mut [u32],
    /// The first byte that moves, and the one after the last.
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
                // Only temporaries have spans, and a repeat touches all of those of its op.
                Step::Launch(Launched { op, .. }) => {
                    for &tensor in graph.operands_of(op) {
                        spans.ends[tensor.index()][1] = at;
                        spans.flags[tensor.index()] &= !MOVING;
                    }
                    for &tensor in graph.writes(op) {
                        spans.written[tensor.index()] = at;
                    }
                }
                Step::Host(op) => spans.run_on_host(graph, op),
                Step::Offload(part) => spans.offload(graph, pieces, part),
                Step::Prefetch(part) => spans.prefetch(graph, pieces, part),
                // What arrives is waited for even where it has been given back.
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
        self.flags[index] |= MOVING;
        self.note(graph, pieces, part);
    }

    fn prefetch(&mut self, graph: &Graph<'_>, pieces: &Pieces<'_>, part: Part) {
        let index = part.tensor.index();
        let is_known = self.ends[index][0] != NEVER;
        self.flags[index] |= RETURNS | MOVING | if is_known { 0 } else { UNCLEAR };
        self.note(graph, pieces, part);
    }

    /// An op on the host may use all of a tensor at any time: nothing else takes its bytes.
    fn run_on_host(&mut self, graph: &Graph<'_>, op: OpId) {
        for &tensor in graph.operands_of(op) {
            self.flags[tensor.index()] |= UNCLEAR;
            self.moved_bytes[tensor.index()] = [0, graph.tensor(tensor).bytes];
        }
    }

    fn note(&mut self, graph: &Graph<'_>, pieces: &Pieces<'_>, part: Part) {
        let start = pieces.offset_bytes(part);
        let [from, to] = &mut self.moved_bytes[part.tensor.index()];
        *from = start.min(*from);
        *to = start.saturating_add(pieces.part_bytes(graph, part)).max(*to);
    }

    /// Whether anything of a tensor moves, or an op on the host touches it.
    pub(super) fn moves(&self, tensor: TensorId) -> bool {
        self.moved_bytes[tensor.index()][1] > 0
    }

    /// The first byte of a tensor that moves.
    pub(super) fn first_byte(&self, tensor: TensorId) -> u64 {
        self.moved_bytes[tensor.index()][0]
    }

    /// The temporaries that move, each from its first byte that does to the last one.
    pub(super) fn items<'i>(
        &'i self,
        graph: &'i Graph<'_>,
    ) -> impl Iterator<Item = (TensorId, Item)> + Clone {
        let tensors = (0..).map(TensorId).zip(graph.tensors());
        tensors.filter(|&(id, tensor)| tensor.kind == Kind::Temporary && self.moves(id)).map(
            |(id, _)| {
                let [from, to] = self.moved_bytes[id.index()];
                let [first, last] = match self.flags[id.index()] {
                    RETURNS => self.ends[id.index()],
                    _ => [0, self.steps.saturating_sub(1)],
                };
                (id, Item { first, last, bytes: to - from })
            },
        )
    }
}
