//! Proves that no byte of the host block has two owners at a time (`docs/format.md`, 8).
//!
//! The proof reads only the offsets, and does not depend on the code that computed them. Slots of
//! states, inputs and outputs must share no byte with any other slot. If slots of temporaries
//! overlap, the proof also follows the steps: a temporary owns its bytes from the first step of an
//! iteration that writes them until a step of another temporary takes them. A step that reads the
//! bytes after that is an error, and a step that takes bytes must start after the last uses of all
//! their previous owners. Overwrites within one tensor's slot are proved in `races`.

#![expect(
    clippy::indexing_slicing,
    reason = "ids are those of the checked graph, and ranks are positions in `by_start`"
)]

use super::clocks::{Clocks, ListedStep};
use super::{NEVER, Points, VerifyError, later};
use crate::graph::{Kind, TensorId};
use crate::host::HostLayout;
use crate::index_set::IndexSet;
use crate::pieces::Pieces;
use crate::plan::Step;
use crate::schedule::{PerStream, Stream};
use crate::scratch::{Limits, Scratch, total, words};

/// No rank: the tensor is no temporary with bytes on the host.
const NONE: u32 = u32::MAX;

pub(super) const fn scratch_words(limits: &Limits) -> usize {
    total([
        words::<[u64; 2]>(limits.tensors),
        // Room for both slots of each tensor.
        words::<[u64; 3]>(limits.tensors.saturating_mul(2)),
        words::<u32>(limits.tensors).saturating_mul(2),
        words::<Points>(limits.tensors),
        IndexSet::scratch_words(limits.tensors),
    ])
}

/// Checks all slots. O((steps + operands) log tensors).
pub(super) fn check(
    pieces: &Pieces<'_>,
    layout: &HostLayout<'_>,
    clocks: &Clocks<'_>,
    scratch: &mut Scratch<'_>,
) -> Result<(), VerifyError> {
    let tensors = pieces.graph().tensors().len();
    let bytes = scratch.take(tensors, [u64::MAX, 0])?;
    find_bytes(pieces, bytes);
    if !is_shared(pieces, layout, bytes, scratch)? {
        return Ok(());
    }
    let mut owners = Owners::new(pieces, layout, bytes, scratch)?;
    for ListedStep { at, step, index: now } in clocks.steps() {
        owners.step(at, step, now)?;
    }
    for iteration in 0..clocks.iterations() {
        owners.next_iteration(clocks.stream_steps());
        for ListedStep { at, step, index: now } in clocks.steps() {
            let (must, tensor) = owners.step(at, step, now)?;
            if let Some(stream) = clocks.missing(iteration, at, must) {
                return Err(VerifyError::Race { step: at, stream, tensor });
            }
        }
    }
    Ok(())
}

/// The range of bytes of each temporary that steps copy or that ops on the host use.
fn find_bytes(pieces: &Pieces<'_>, bytes: &mut [[u64; 2]]) {
    let graph = pieces.graph();
    let is_temporary = |tensor: TensorId| graph.tensor(tensor).kind == Kind::Temporary;
    for step in pieces.plan().steps {
        match *step {
            Step::Prefetch(part) | Step::Offload(part) if is_temporary(part.tensor) => {
                let start = pieces.offset_bytes(part);
                let [from, to] = &mut bytes[part.tensor.index()];
                *from = start.min(*from);
                *to = start.saturating_add(pieces.part_bytes(graph, part)).max(*to);
            }
            Step::Host(op) => {
                for &tensor in graph.operands_of(op).iter().filter(|&&tensor| is_temporary(tensor))
                {
                    bytes[tensor.index()] = [0, graph.tensor(tensor).bytes];
                }
            }
            _ => {}
        }
    }
}

/// Whether temporaries share bytes. Checks that no other slots do, and that all slots lie in the
/// block. O(tensors log tensors).
fn is_shared(
    pieces: &Pieces<'_>,
    layout: &HostLayout<'_>,
    bytes: &[[u64; 2]],
    scratch: &mut Scratch<'_>,
) -> Result<bool, VerifyError> {
    let graph = pieces.graph();
    let mut scratch = scratch.reborrow();
    let slots = scratch.take(graph.tensors().len().saturating_mul(2), [0u64; 3])?;
    let mut len = 0usize;
    for (id, tensor) in graph.tensor_ids().zip(graph.tensors()) {
        let ([from, to], count) = match tensor.kind {
            Kind::Temporary => (bytes[id.index()], 1),
            Kind::State => ([0, tensor.bytes], 1),
            Kind::Input | Kind::Output => ([0, tensor.bytes], 2),
        };
        for slot in (0..count).filter(|_| from < to) {
            let start = layout.offset_bytes(id, slot, from);
            let end =
                start.checked_add(to.saturating_sub(from)).filter(|&end| end <= layout.bytes());
            slots[len] = [start, end.ok_or(VerifyError::HostBytes { tensor: id })?, id.0.into()];
            len = len.saturating_add(1);
        }
    }
    let slots = &mut slots[..len];
    slots.sort_unstable();
    let (mut any_end, mut kept_end, mut is_shared) = (0, 0, false);
    for &mut [start, end, id] in slots {
        let tensor = TensorId(id as u32);
        let is_kept = graph.tensor(tensor).kind != Kind::Temporary;
        if start < kept_end || (is_kept && start < any_end) {
            return Err(VerifyError::HostBytes { tensor });
        }
        is_shared |= start < any_end;
        any_end = end.max(any_end);
        kept_end = if is_kept { end } else { kept_end };
    }
    Ok(is_shared)
}

/// The temporaries that own their bytes. No two of them overlap.
struct Owners<'w, 'a> {
    pieces: &'w Pieces<'w>,
    /// The range of each temporary's bytes in the block.
    bytes: &'a [[u64; 2]],
    /// The temporaries by their first byte, and the rank of each in this order.
    by_start: &'a [u32],
    rank: &'a [u32],
    owning: IndexSet<'a>,
    /// The last use of each temporary's bytes on each stream.
    used: &'a mut [Points],
}

impl<'w, 'a> Owners<'w, 'a> {
    fn new(
        pieces: &'w Pieces<'w>,
        layout: &HostLayout<'_>,
        bytes: &'a mut [[u64; 2]],
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, VerifyError> {
        let tensors = bytes.len();
        let by_start = scratch.take(tensors, 0u32)?;
        let mut len = 0usize;
        for (id, [from, to]) in (0..).zip(&mut *bytes).filter(|(_, [from, to])| *from < *to) {
            let start = layout.offset_bytes(TensorId(id), 0, *from);
            (*from, *to) = (start, start.saturating_add(to.saturating_sub(*from)));
            by_start[len] = id;
            len = len.saturating_add(1);
        }
        let by_start = &mut by_start[..len];
        by_start.sort_unstable_by_key(|&id| bytes[id as usize]);
        let rank = scratch.take(tensors, NONE)?;
        for (at, &id) in (0..).zip(&*by_start) {
            rank[id as usize] = at;
        }
        let owning = IndexSet::new(len, scratch)?;
        let used = scratch.take(tensors, PerStream::all(NEVER))?;
        Ok(Self { pieces, bytes, by_start, rank, owning, used })
    }

    fn next_iteration(&mut self, stream_steps: PerStream<u32>) {
        for used in &mut *self.used {
            *used = super::seen_later(*used, 1, stream_steps);
        }
    }

    /// The steps that must have ended before a step may take bytes, and the tensor for which it
    /// takes them. Then records the step as the last use.
    fn step(&mut self, at: u32, step: &Step, now: i64) -> Result<(Points, TensorId), VerifyError> {
        let mut must = (PerStream::all(NEVER), TensorId(0));
        match *step {
            Step::Prefetch(part) => self.read(at, part.tensor, Stream::Upload, now)?,
            Step::Offload(part) => self.write(part.tensor, Stream::Download, now, &mut must),
            Step::Host(op) => {
                let graph = self.pieces.graph();
                for &tensor in graph.reads(op) {
                    self.read(at, tensor, Stream::Host, now)?;
                }
                for &tensor in graph.writes(op) {
                    self.write(tensor, Stream::Host, now, &mut must);
                }
            }
            Step::Launch(_) | Step::Evict(_) => {}
        }
        Ok(must)
    }

    /// Records a read of bytes, which the tensor must still own.
    fn read(
        &mut self,
        step: u32,
        tensor: TensorId,
        stream: Stream,
        now: i64,
    ) -> Result<(), VerifyError> {
        let rank = self.rank[tensor.index()];
        if rank == NONE {
            return Ok(());
        }
        if self.owning.next(rank as usize) != Some(rank as usize) {
            return Err(VerifyError::HostTaken { step, tensor });
        }
        self.used[tensor.index()][stream] = now;
        Ok(())
    }

    /// Takes the bytes of a tensor from all other owners.
    fn write(&mut self, tensor: TensorId, stream: Stream, now: i64, must: &mut (Points, TensorId)) {
        let rank = self.rank[tensor.index()];
        if rank == NONE {
            return;
        }
        while let Some(other) = self.overlapping(rank as usize) {
            let owner = self.by_start[other] as usize;
            *must = (later(must.0, self.used[owner]), tensor);
            self.owning.remove(other);
        }
        self.owning.insert(rank as usize);
        self.used[tensor.index()][stream] = now;
    }

    /// The rank of another temporary that owns some of the bytes of a temporary.
    fn overlapping(&self, rank: usize) -> Option<usize> {
        let bytes = |rank: usize| self.bytes[self.by_start[rank] as usize];
        let [start, end] = bytes(rank);
        let before = self.owning.before(rank).filter(|&other| bytes(other)[1] > start);
        let after = self.owning.next(rank.saturating_add(1));
        let after = after.filter(|&other| bytes(other)[0] < end);
        before.or(after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Op, OpId, Tensor};
    use crate::machine::Machine;
    use crate::plan::{Part, Plan, Pool, Prediction};
    use crate::schedule::{Schedule, Scheduled};

    const MADE: [Tensor; 2] = [Tensor { bytes: 8, kind: Kind::Temporary }; 2];

    /// Two ops that write a temporary each, and two ops that read one each.
    fn with_layout(
        steps: &[Step; 12],
        change: impl FnOnce(&mut HostLayout<'_>, &mut [Scheduled]),
    ) -> Result<(), VerifyError> {
        let operands = [0, 1, 0, 1].map(TensorId);
        let op = |first_operand, reads| Op {
            time_ns: 1,
            first_operand,
            reads,
            writes: 1 - reads,
            ..Op::default()
        };
        let ops = [op(0, 0), op(1, 0), op(2, 1), op(3, 1)];
        let mut memory = [0; 2000];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&MADE, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let machine = Machine::of_chunks(8).with_host_bytes(16);
        let plan = Plan {
            budget_bytes: 16,
            arena_bytes: 0,
            arena: &[],
            pools: &[Pool { object_bytes: 8, count: 2 }],
            tensor_pool: &[],
            workspace_pool: &[],
            resident_at_start: &[],
            steps,
            placements: None,
            predicted: Prediction::default(),
        };
        let mut entries = [Scheduled::EMPTY; 12];
        let Schedule { stream_steps, iterations, .. } =
            crate::lower(&graph, &machine, &plan, &mut entries, &mut scratch.reborrow())?;
        let pieces = Pieces::new(&graph, &machine, &plan, &mut scratch)?;
        let mut layout = HostLayout::of_pieces(&graph, &machine, &plan, &pieces, &mut scratch)?;
        change(&mut layout, &mut entries);
        let schedule = Schedule { steps: &entries, stream_steps, iterations };
        let clocks = Clocks::new(&graph, &plan, &schedule, &mut scratch)?;
        check(&pieces, &layout, &clocks, &mut scratch)
    }

    fn launch(op: u32) -> Step {
        Step::launch(OpId(op))
    }

    /// The steps that offload a temporary and free its memory.
    fn out(tensor: u32) -> [Step; 2] {
        let part = Part::whole(TensorId(tensor));
        [Step::Offload(part), Step::Evict(part)]
    }

    /// The steps that prefetch it, launch an op that reads it, and free its memory.
    fn back(tensor: u32) -> [Step; 3] {
        let part = Part::whole(TensorId(tensor));
        [Step::Prefetch(part), launch(2 + tensor), Step::Evict(part)]
    }

    #[test]
    fn a_slot_that_another_value_takes_is_found() {
        let ([o0, e0], [o1, e1]) = (out(0), out(1));
        let ([p0, l2, f0], [p1, l3, f1]) = (back(0), back(1));
        let beside = [launch(0), o0, e0, launch(1), o1, e1, p0, l2, f0, p1, l3, f1];
        let onto = |layout: &mut HostLayout<'_>| layout.put(TensorId(1), TensorId(0));
        assert_eq!(with_layout(&beside, |_, _| {}), Ok(()));
        let taken = VerifyError::HostTaken { step: 6, tensor: TensorId(0) };
        assert_eq!(with_layout(&beside, |layout, _| onto(layout)), Err(taken));
        let after = [launch(0), o0, e0, p0, l2, f0, launch(1), o1, e1, p1, l3, f1];
        assert_eq!(with_layout(&after, |layout, _| onto(layout)), Ok(()));
        let early = with_layout(&after, |layout, entries| {
            onto(layout);
            // The download does not wait for the launch that wrote the value, so it does not wait
            // for the steps before that launch either.
            entries[7].set_wait(Stream::Compute, None);
        });
        let race = VerifyError::Race { step: 7, stream: Stream::Upload, tensor: TensorId(1) };
        assert_eq!(early, Err(race));
    }

    #[test]
    fn a_slot_ends_within_the_block() {
        let ([o0, e0], [o1, e1]) = (out(0), out(1));
        let ([p0, l2, f0], [p1, l3, f1]) = (back(0), back(1));
        let steps = [launch(0), o0, e0, launch(1), o1, e1, p0, l2, f0, p1, l3, f1];
        let past = with_layout(&steps, |layout, _| layout.move_by(TensorId(1), 1));
        assert_eq!(past, Err(VerifyError::HostBytes { tensor: TensorId(1) }));
    }
}
