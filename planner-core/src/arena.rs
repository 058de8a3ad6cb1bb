//! The arena: small tensors at fixed offsets, so that a thousand biases do not cost a
//! thousand chunks.

use crate::graph::{Graph, Kind, TensorId};
use crate::machine::Machine;
use crate::plan::{ArenaPlacement, PlanError};
use crate::scratch::{Limits, OutOfScratch, Scratch, words};

/// Where each tensor's life begins and ends, in ops of the given order.
#[derive(Debug)]
pub struct Lifetimes<'a> {
    first: &'a mut [u32],
    last: &'a mut [u32],
    last_read: &'a mut [u32],
    /// The touched tensors in the order of their first touch, and of their last.
    by_first: &'a [u32],
    by_last: &'a [u32],
}

const NEVER: u32 = u32::MAX;

impl<'a> Lifetimes<'a> {
    /// Words of scratch that [`Lifetimes::new`] asks for.
    #[must_use]
    pub const fn scratch_words(limits: &Limits) -> usize {
        5 * words::<u32>(limits.tensors)
    }

    /// Finds the first and last touch of every tensor. O(operands).
    ///
    /// # Errors
    /// Scratch that is too small.
    pub fn new(graph: &Graph<'_>, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let tensors = graph.tensors().len();
        let first = scratch.take(tensors, NEVER)?;
        let last = scratch.take(tensors, NEVER)?;
        let last_read = scratch.take(tensors, NEVER)?;
        let by_first = scratch.take(tensors, 0u32)?;
        let by_last = scratch.take(tensors, 0u32)?;
        let mut touched = 0;
        for op in graph.op_ids() {
            for &tensor in graph.operands_of(op) {
                if first[tensor.index()] == NEVER {
                    first[tensor.index()] = op.0;
                    by_first[touched] = tensor.0;
                    touched += 1;
                }
            }
            for &tensor in graph.reads(op) {
                last_read[tensor.index()] = op.0;
            }
        }
        let mut left = touched;
        for op in graph.op_ids().rev() {
            for &tensor in graph.operands_of(op) {
                if last[tensor.index()] == NEVER {
                    last[tensor.index()] = op.0;
                    left -= 1;
                    by_last[left] = tensor.0;
                }
            }
        }
        let (by_first, by_last) = (&by_first[..touched], &by_last[..touched]);
        Ok(Self { first, last, last_read, by_first, by_last })
    }

    /// The first and the last op that touch a tensor, if any does.
    #[must_use]
    pub fn touches(&self, tensor: TensorId) -> Option<(u32, u32)> {
        let first = self.first[tensor.index()];
        (first != NEVER).then(|| (first, self.last[tensor.index()]))
    }

    /// The last op that reads a tensor, if any does.
    #[must_use]
    pub fn last_read(&self, tensor: TensorId) -> Option<u32> {
        let op = self.last_read[tensor.index()];
        (op != NEVER).then_some(op)
    }
}

/// Whether a tensor may lie in the arena, and deserves it: it is touched, smaller than
/// `below_bytes`, and no input that is unread or written after its last read.
#[must_use]
pub fn admits(
    graph: &Graph<'_>,
    lifetimes: &Lifetimes<'_>,
    below_bytes: u64,
    tensor: TensorId,
) -> bool {
    let data = graph.tensor(tensor);
    let Some((_, last)) = lifetimes.touches(tensor) else { return false };
    data.bytes < below_bytes
        && (data.kind != Kind::Input || lifetimes.last_read(tensor) == Some(last))
}

/// Words of scratch that [`pack`] asks for.
#[must_use]
pub const fn scratch_words(limits: &Limits) -> usize {
    words::<u32>(limits.tensors) + 2 * words::<u64>(limits.tensors + 1)
}

/// Places every admitted tensor: states and inputs side by side, then temporaries by first
/// fit in the order of their first touch. Returns how many were placed, and the arena's
/// bytes. O(operands + tensors × gaps).
///
/// # Errors
/// Scratch or output that is too small.
pub fn pack(
    graph: &Graph<'_>,
    machine: &Machine,
    lifetimes: &Lifetimes<'_>,
    below_bytes: u64,
    out: &mut [ArenaPlacement],
    scratch: &mut Scratch<'_>,
) -> Result<(usize, u64), PlanError> {
    let mut scratch = scratch.reborrow();
    let alignment_bytes = machine.chunk_bytes.clamp(1, 256);
    let size_bytes = |tensor| graph.tensor(tensor).bytes.next_multiple_of(alignment_bytes);
    let is_temporary = |tensor| graph.tensor(tensor).kind == Kind::Temporary;
    let admitted = |&&id: &&u32| admits(graph, lifetimes, below_bytes, TensorId(id));
    let mut placed = Placed { out, len: 0 };
    let mut end_bytes = 0u64;
    for tensor in lifetimes.by_first.iter().filter(admitted).map(|&id| TensorId(id)) {
        if !is_temporary(tensor) {
            placed.push(tensor, end_bytes)?;
            // Admitted tensors are small: all of them stay far below 2^64.
            end_bytes = end_bytes.saturating_add(size_bytes(tensor));
        }
    }
    let place = scratch.take(graph.tensors().len(), 0u32)?;
    let mut gaps = Gaps::new(end_bytes, lifetimes.by_first.len() + 1, &mut scratch)?;
    let mut dying = lifetimes.by_last.iter().filter(admitted).map(|&id| TensorId(id)).peekable();
    for tensor in lifetimes.by_first.iter().filter(admitted).map(|&id| TensorId(id)) {
        if !is_temporary(tensor) {
            continue;
        }
        let now = lifetimes.first[tensor.index()];
        while let Some(dead) = dying.next_if(|dead| lifetimes.last[dead.index()] < now) {
            if is_temporary(dead) {
                let at = placed.out[place[dead.index()] as usize].offset_bytes;
                gaps.give(at, size_bytes(dead));
            }
        }
        let offset_bytes = gaps.take(size_bytes(tensor));
        end_bytes = end_bytes.max(offset_bytes.saturating_add(size_bytes(tensor)));
        place[tensor.index()] = placed.len as u32;
        placed.push(tensor, offset_bytes)?;
    }
    Ok((placed.len, end_bytes))
}

/// The output so far.
struct Placed<'a> {
    out: &'a mut [ArenaPlacement],
    len: usize,
}

impl Placed<'_> {
    fn push(&mut self, tensor: TensorId, offset_bytes: u64) -> Result<(), OutOfScratch> {
        let too_small = OutOfScratch {
            needed_words: words::<ArenaPlacement>(self.len + 1),
            free_words: words::<ArenaPlacement>(self.out.len()),
        };
        *self.out.get_mut(self.len).ok_or(too_small)? = ArenaPlacement { tensor, offset_bytes };
        self.len += 1;
        Ok(())
    }
}

/// The free ranges of the arena, by offset; the last one is endless.
struct Gaps<'a> {
    start: &'a mut [u64],
    end: &'a mut [u64],
    len: usize,
}

impl<'a> Gaps<'a> {
    fn new(from_bytes: u64, most: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let start = scratch.take(most, from_bytes)?;
        let end = scratch.take(most, u64::MAX)?;
        Ok(Self { start, end, len: 1 })
    }

    /// The lowest offset at which `bytes` are free; they no longer are.
    fn take(&mut self, bytes: u64) -> u64 {
        let fits = |at: &usize| self.end[*at] - self.start[*at] >= bytes;
        let at = (0..self.len).find(fits).unwrap_or(self.len - 1);
        let offset_bytes = self.start[at];
        self.start[at] = offset_bytes.saturating_add(bytes);
        if self.start[at] == self.end[at] && at + 1 < self.len {
            self.remove(at);
        }
        offset_bytes
    }

    /// Makes a range free again.
    fn give(&mut self, start: u64, bytes: u64) {
        let end = start.saturating_add(bytes);
        let at = self.start[..self.len].partition_point(|&other| other < start);
        let joins_before = at > 0 && self.end[at - 1] == start;
        let joins_after = at < self.len && self.start[at] == end;
        match (joins_before, joins_after) {
            (true, true) => {
                self.end[at - 1] = self.end[at];
                self.remove(at);
            }
            (true, false) => self.end[at - 1] = end,
            (false, true) => self.start[at] = start,
            (false, false) => {
                self.start.copy_within(at..self.len, at + 1);
                self.end.copy_within(at..self.len, at + 1);
                (self.start[at], self.end[at]) = (start, end);
                self.len += 1;
            }
        }
    }

    fn remove(&mut self, at: usize) {
        self.start.copy_within(at + 1..self.len, at);
        self.end.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }
}
