//! The intervals between marks in which the ops that use a tensor may run.

#![expect(
    clippy::indexing_slicing,
    reason = "ops and tensors are those of the checked graph, and `divide` makes room for each \
              visit"
)]

use super::{PriceError, Prices, intervals, is_of_mark, runs};
use crate::bounds::Reads;
use crate::bounds::reached::Reached;
use crate::graph::{Graph, Kind, OpId, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use bytemuck::{Pod, Zeroable};
use core::cmp::Reverse;

/// An event of a byte of a tensor, within a range of intervals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Visit {
    /// One of the constants of this type.
    pub kind: u32,
    /// From this visit on, the op that computes the byte again if it is repeated; [`Visit::NONE`]
    /// if there is none.
    pub maker: u32,
    /// The position of the visit of this op, if there is an op.
    write: u32,
    /// For a write whose value is read in no later interval before the next write: the reads after
    /// the next write for which one repeat may serve, by a copy on the host. Otherwise 0.
    copy_reads: u32,
    /// The first interval in which it may happen. Intervals count from the iteration before, and go
    /// on in the next iterations.
    pub first: u32,
    /// The last interval in which it may happen.
    pub last: u32,
    /// 1 if it may also happen while a mark runs, else 0.
    beside_marks: u32,
}

impl Visit {
    /// An op reads the byte.
    pub const READ: u32 = 0;
    /// An op reads and writes the byte.
    pub const UPDATE: u32 = 1;
    /// An op writes the byte without reading it.
    pub const OVERWRITE: u32 = 2;
    /// The byte is on both sides: the start of the path of a state that no op writes.
    pub const FETCHED: u32 = 3;
    /// The byte must be on the host.
    pub const SAVED: u32 = 4;
    /// No op.
    pub const NONE: u32 = u32::MAX;

    /// Whether it may happen in an interval, at this position among the intervals of all iterations.
    /// While a mark runs, only the mark and collectives make visits.
    #[must_use]
    pub fn may_be_at(&self, position: u32, interval: usize) -> bool {
        (self.first..=self.last).contains(&position)
            && (self.first == self.last || self.beside_marks != 0 || !is_of_mark(interval))
    }
}

/// An earlier value of a tensor. A repeat of an op that updated the tensor reads this value, which
/// no other op restores.
#[derive(Clone, Copy, Debug)]
pub struct Earlier {
    /// The op that computes the value.
    pub maker: OpId,
    /// The reads for which one repeat of the op may serve, by a copy on the host; 0 if the first
    /// launch may have left such a copy.
    pub copy_reads: u32,
}

/// The most earlier values that are followed; before them, values are assumed to be on the device.
pub(super) const MOST_EARLIER: usize = 4;

/// The visits of all tensors, and the other data of a graph on which the bound depends.
#[derive(Debug)]
pub struct Visits<'a> {
    /// The number of intervals of an iteration.
    iteration: u32,
    /// For each op, the first and the last interval in which it may end.
    runs: &'a mut [[u32; 2]],
    visits: &'a mut [Visit],
    /// For each tensor, the range of its visits.
    visits_of: &'a mut [[u32; 2]],
    /// The numbers of the marks that use each tensor.
    marks: &'a mut [u32],
    marks_of: &'a mut [[u32; 2]],
    /// For each op, the bytes for which a repeat of it may be launched.
    made_bytes: &'a mut [u64],
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "a graph has at most 2^31 - 1 ops, tensors and operands each, so their visits are \
              numbered in 32 bits; marks count from 1; and no op makes more bytes than the graph has"
)]
impl<'a> Visits<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        let operands = limits.operands.saturating_add(limits.tensors);
        total([
            words::<[u32; 2]>(limits.ops),
            words::<Visit>(operands),
            words::<[u32; 2]>(limits.tensors).saturating_mul(2),
            words::<u32>(limits.operands),
            words::<u64>(limits.ops),
            words::<u32>(limits.ops),
            Reached::<u32>::scratch_words(limits),
            Reads::scratch_words(limits).saturating_mul(2),
        ])
    }

    /// Finds the intervals of the ops, and checks the marks. O(operands log operands).
    ///
    /// # Errors
    /// Marks that some plan runs in another order, and too little scratch.
    pub fn new(
        graph: &Graph<'_>,
        prices: &Prices<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, PriceError> {
        let (tensors, ops) = (graph.tensors().len(), graph.ops().len());
        let operands = graph.operands().len();
        let mut visits = Self {
            iteration: intervals(prices.marks.len()) as u32,
            runs: scratch.take(ops, [0u32; 2])?,
            visits: scratch.take(operands + tensors, Visit::zeroed())?,
            visits_of: scratch.take(tensors, [0u32; 2])?,
            marks: scratch.take(operands, 0u32)?,
            marks_of: scratch.take(tensors, [0u32; 2])?,
            made_bytes: scratch.take(ops, 0u64)?,
        };
        let mut scratch = scratch.reborrow();
        let mark_of = scratch.take(ops, 0u32)?;
        runs::find(graph, prices, visits.runs, mark_of, &mut scratch.reborrow())?;
        visits.divide(graph);
        visits.note(graph, mark_of, &mut scratch)?;
        for tensor in graph.tensor_ids() {
            visits.finish(graph, tensor, prices.repeats);
        }
        Ok(visits)
    }

    /// The ops on compute, each with the first and the last interval of the iteration in which it
    /// may run. It may also run in every second interval between them; a mark runs in the others.
    pub fn on_compute(&self, graph: &Graph<'_>) -> impl Iterator<Item = (OpId, [usize; 2])> {
        let on_compute =
            graph.op_ids().zip(&*self.runs).filter(|&(op, _)| !graph.op(op).collective);
        on_compute.map(|(op, run)| (op, run.map(|interval| (interval - self.iteration) as usize)))
    }

    /// The visits of a tensor, in an order in which every plan can be assumed to make them.
    #[must_use]
    pub fn of(&self, tensor: TensorId) -> &[Visit] {
        let [first, end] = self.visits_of[tensor.index()];
        &self.visits[first as usize..end as usize]
    }

    /// The visit that wrote the value after a visit, if its op may be repeated.
    #[must_use]
    pub fn write_of(&self, tensor: TensorId, visit: usize) -> Option<usize> {
        let write = self.of(tensor).get(visit)?.write;
        (write != Visit::NONE).then_some(write as usize)
    }

    /// The earlier values of a tensor that a repeat of the op of a write needs, the latest first.
    pub fn earlier(&self, tensor: TensorId, write: usize) -> impl Iterator<Item = Earlier> + '_ {
        let visits = self.of(tensor);
        let before = move |write: usize| match visits.get(write)?.kind {
            Visit::UPDATE => self.write_of(tensor, write.checked_sub(1)?),
            _ => None,
        };
        core::iter::successors(before(write), move |&write| before(write))
            .map_while(|write| visits.get(write))
            .map(|write| Earlier { maker: OpId(write.maker), copy_reads: write.copy_reads })
            .take(MOST_EARLIER)
    }

    /// The numbers of the marks that use a tensor, in order.
    #[must_use]
    pub fn marks_of(&self, tensor: TensorId) -> &[u32] {
        let [first, end] = self.marks_of[tensor.index()];
        &self.marks[first as usize..end as usize]
    }

    /// The bytes for which an op may be repeated; they share its time.
    #[must_use]
    pub fn made_bytes(&self, op: OpId) -> u64 {
        self.made_bytes[op.index()]
    }

    /// Reserves room for a visit for each time that an op names a tensor, and one more.
    fn divide(&mut self, graph: &Graph<'_>) {
        for tensor in graph.operands() {
            self.visits_of[tensor.index()][1] += 1;
        }
        let (mut visits, mut marks) = (0, 0);
        for (of, marks_of) in self.visits_of.iter_mut().zip(self.marks_of.iter_mut()) {
            let count = of[1];
            (*of, *marks_of) = ([visits; 2], [marks; 2]);
            (visits, marks) = (visits + count + 1, marks + count);
        }
    }

    fn note(
        &mut self,
        graph: &Graph<'_>,
        mark_of: &[u32],
        scratch: &mut Scratch<'_>,
    ) -> Result<(), OutOfScratch> {
        let mut reads = Reads::new(graph, scratch)?;
        let written_by = scratch.take(graph.tensors().len(), u32::MAX)?;
        for op in graph.op_ids() {
            reads.note(graph, op);
            graph.writes(op).iter().for_each(|tensor| written_by[tensor.index()] = op.0);
            let [first, last] = self.runs[op.index()];
            let beside_marks = u32::from(graph.op(op).collective);
            let number = mark_of[op.index()];
            let visit = |kind, [first, last]: [u32; 2]| Visit {
                kind,
                maker: op.0,
                write: Visit::NONE,
                copy_reads: 0,
                first,
                last,
                beside_marks,
            };
            for tensor in reads.touches(graph, op) {
                if number > 0 {
                    let [_, end] = &mut self.marks_of[tensor.index()];
                    self.marks[*end as usize] = number;
                    *end += 1;
                }
            }
            for &tensor in graph.reads(op) {
                // The operands that a mark reads are resident when it starts, so in the interval
                // before.
                if number > 0 {
                    self.push(tensor, visit(Visit::READ, [first - 1; 2]));
                } else if written_by[tensor.index()] != op.0
                    && !self.is_too_late(graph, tensor, last)
                {
                    self.push(tensor, visit(Visit::READ, [first, last]));
                }
            }
            for &tensor in graph.writes(op) {
                let is_read = reads.by[tensor.index()] == op.0;
                let kind = if is_read { Visit::UPDATE } else { Visit::OVERWRITE };
                self.push(tensor, visit(kind, [first, last]));
            }
        }
        Ok(())
    }

    /// Whether a read may happen after reads of the next iteration on the cycle of a tensor. No proof
    /// orders these, so such a read is left out.
    fn is_too_late(&self, graph: &Graph<'_>, tensor: TensorId, last: u32) -> bool {
        is_cycle(graph.tensor(tensor).kind) && last >= 2 * self.iteration
    }

    fn push(&mut self, tensor: TensorId, visit: Visit) {
        let [_, end] = &mut self.visits_of[tensor.index()];
        self.visits[*end as usize] = visit;
        *end += 1;
    }

    /// Removes redundant reads, finds the ops that compute bytes again, and closes the cycle.
    fn finish(&mut self, graph: &Graph<'_>, tensor: TensorId, repeats: bool) {
        let [first, end] = self.visits_of[tensor.index()].map(|at| at as usize);
        let kind = graph.tensor(tensor).kind;
        let visits = &mut self.visits[first..end];
        if visits.iter().any(|visit| visit.last == runs::NO_LAST) {
            // Bytes of which too little is known pay nothing.
            self.visits_of[tensor.index()][1] = first as u32;
            return;
        }
        let beside_marks = visits.iter().map(|visit| visit.beside_marks).max().unwrap_or(0);
        for visit in &mut *visits {
            visit.beside_marks = beside_marks;
            if kind == Kind::Input {
                // It pays nothing before the iteration begins.
                visit.first = visit.first.max(self.iteration);
            }
        }
        let mut count = keep_reads(visits);
        let visits = &mut self.visits[first..first + count];
        if repeats && kind == Kind::Temporary {
            find_makers(visits, |op| graph.op(op).repeatable);
        } else {
            visits.iter_mut().for_each(|visit| visit.maker = Visit::NONE);
        }
        let is_write = |&(at, visit): &(usize, &Visit)| visit.write == at as u32;
        for (_, write) in visits.iter().enumerate().filter(is_write) {
            self.made_bytes[write.maker as usize] += graph.tensor(tensor).bytes;
        }
        if is_cycle(kind) && count > 0 {
            count += 1;
            close(&mut self.visits[first..first + count], kind, self.iteration);
        }
        self.visits_of[tensor.index()][1] = (first + count) as u32;
    }
}

/// Whether the path of a byte leads from each iteration to the next.
const fn is_cycle(kind: Kind) -> bool {
    matches!(kind, Kind::State | Kind::Output)
}

/// Among the reads between two writes, keeps each read whose range contains no other read's range,
/// in order. Returns the number of visits that are left.
#[expect(clippy::arithmetic_side_effects, reason = "`kept`, `at` and `reads` count visits")]
fn keep_reads(visits: &mut [Visit]) -> usize {
    let (mut kept, mut at) = (0, 0);
    while at < visits.len() {
        let reads = visits[at..].iter().take_while(|visit| visit.kind == Visit::READ).count();
        if reads == 0 {
            visits[kept] = visits[at];
            (kept, at) = (kept + 1, at + 1);
            continue;
        }
        visits[at..at + reads].sort_unstable_by_key(|visit| (visit.last, Reverse(visit.first)));
        let mut latest = None;
        for read in at..at + reads {
            if latest.is_none_or(|latest| visits[read].first > latest) {
                latest = Some(visits[read].first);
                visits[kept] = visits[read];
                kept += 1;
            }
        }
        at += reads;
    }
    kept
}

/// Sets the op that computes each value again, and whether a copy of the value serves only later
/// repeats.
fn find_makers(visits: &mut [Visit], is_repeatable: impl Fn(OpId) -> bool) {
    let (mut maker, mut write) = (Visit::NONE, Visit::NONE);
    for (at, visit) in (0..).zip(visits.iter_mut()) {
        if visit.kind != Visit::READ {
            // An update needs the value before it.
            let is_made = visit.kind == Visit::OVERWRITE || maker != Visit::NONE;
            (maker, write) = match is_made && is_repeatable(OpId(visit.maker)) {
                true => (visit.maker, at),
                false => (Visit::NONE, Visit::NONE),
            };
        }
        (visit.maker, visit.write) = (maker, write);
    }
    // Whether the next write is an update that may be repeated for a later read.
    let (mut serves_update, mut end) = (false, visits.len());
    for at in (0..visits.len()).rev() {
        let write = visits[at];
        if write.kind == Visit::READ {
            continue;
        }
        let is_read = is_read_later(&visits[at..]);
        if !is_read && !serves_update {
            for visit in &mut visits[at..end] {
                (visit.maker, visit.write) = (Visit::NONE, Visit::NONE);
            }
        } else if !is_read {
            let later = visits[end..].iter();
            let reads = later
                .filter(|visit| visit.kind != Visit::OVERWRITE && visit.last > write.first)
                .count();
            visits[at].copy_reads = reads as u32;
        }
        serves_update = write.kind == Visit::UPDATE && (is_read || serves_update);
        end = at;
    }
}

/// Whether the value of the first visit, a write, may be read in a later interval.
fn is_read_later(visits: &[Visit]) -> bool {
    let Some((write, later)) = visits.split_first() else { return false };
    for visit in later {
        if visit.kind != Visit::OVERWRITE && visit.last > write.first {
            return true;
        }
        if visit.kind != Visit::READ {
            return false;
        }
    }
    false
}

/// Closes the path of a state or an output: it begins with the first write and ends with the same
/// write in the next iteration. Without a write, it begins and ends with the first read. The last
/// entry is free.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "`start` is at most `end`, and intervals of four iterations fit into 32 bits"
)]
fn close(visits: &mut [Visit], kind: Kind, intervals: u32) {
    let Some(end) = visits.len().checked_sub(1) else { return };
    let written = visits[..end].iter().position(|visit| visit.kind != Visit::READ);
    let start = written.unwrap_or(0);
    visits[..end].rotate_left(start);
    for visit in &mut visits[end - start..end] {
        (visit.first, visit.last) = (visit.first + intervals, visit.last + intervals);
    }
    let write @ Visit { kind: own, first, last, .. } = visits[0];
    visits[0].kind = if written.is_some() { Visit::OVERWRITE } else { Visit::FETCHED };
    let kind = if kind == Kind::Output { Visit::SAVED } else { own };
    visits[end] = Visit { kind, first: first + intervals, last: last + intervals, ..write };
}
