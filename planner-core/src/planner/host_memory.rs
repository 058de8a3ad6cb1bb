//! What gaps may take of the host's memory, where a list has shown that it is short.
//!
//! As in the [host layout](crate::host), a temporary takes its bytes from the launch that writes
//! the first value that moves up to the last launch that touches it, and everything else all the
//! time. Only bytes are counted here: the layout packs them, which may take a little more.

use super::gaps::Gaps;
use super::memory::Memory;
use super::request::Task;
use super::tree::MinTree;
use crate::graph::{Kind, TensorId};
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::Sequence;
use bytemuck::{Pod, Zeroable};

/// As much as gaps ask for.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// The least by which a limit is lowered, as a fraction of the host's memory, where what fits it does
/// not fit the host. A balance: a larger one leaves more unused, a smaller one takes more lists.
const LOWERED: u64 = 128;

/// How often a limit is lowered: a sixteenth of the host's memory at least.
const MOST_LOWERED: u64 = 8;

/// Gaps of a tensor that are looked through, which bounds the time for tensors of many uses.
const LOOKED_AT: usize = 64;

/// The limit for a list like one that took `needed_bytes` under `limit_bytes`; none where lower
/// ones are of no use.
pub(super) fn lower(limit_bytes: u64, needed_bytes: u64, host_bytes: u64) -> Option<u64> {
    if limit_bytes > host_bytes {
        return Some(host_bytes);
    }
    let step_bytes = host_bytes / LOWERED + 1;
    let excess_bytes = needed_bytes.saturating_sub(host_bytes).max(step_bytes);
    let lower_bytes = limit_bytes.checked_sub(excess_bytes)?;
    (lower_bytes >= host_bytes.saturating_sub(MOST_LOWERED * step_bytes)).then_some(lower_bytes)
}

/// The host's bytes that are left at each launch.
#[derive(Debug)]
pub(super) struct HostMemory<'s> {
    task: &'s Task<'s>,
    memory: &'s Memory<'s>,
    left: MinTree<'s>,
    /// The launch after the last one that touches each tensor; none of those that have their bytes anyway.
    ends: &'s mut [u32],
    /// From which launch on each tensor takes how many bytes.
    taken: &'s mut [Taken],
}

/// What a tensor takes.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
struct Taken {
    from: u64,
    bytes: u64,
}

impl<'s> HostMemory<'s> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            MinTree::scratch_words(limits.ops),
            words::<u32>(limits.tensors),
            words::<Taken>(limits.tensors),
        ])
    }

    /// What `limit_bytes` leave where nothing moves in gaps. O(operands).
    pub(super) fn new(
        task: &'s Task<'s>,
        memory: &'s Memory<'s>,
        limit_bytes: u64,
        scratch: &mut Scratch<'s>,
    ) -> Result<Self, OutOfScratch> {
        let sequence = task.sequence;
        let ends = scratch.take(sequence.tensors().len(), 0u32)?;
        let taken = scratch.take(sequence.tensors().len(), Taken::default())?;
        for launch in sequence.launches() {
            for &tensor in sequence.operands_of(launch) {
                ends[tensor.index()] = launch.0 + 1;
            }
        }
        let bytes = |tensor: TensorId| sequence.graph().tensor(tensor).bytes;
        let mut left_bytes = limit_bytes;
        let mut states_bytes = 0u64;
        for tensor in sequence.tensor_ids() {
            let kind = sequence.graph().tensor(tensor).kind;
            let always = kind.has_two_slots() || sequence.is_touched_by_host(tensor);
            if always {
                left_bytes = left_bytes.saturating_sub(bytes(tensor));
                ends[tensor.index()] = 0;
            } else if kind == Kind::State && !memory.in_arena(tensor) {
                states_bytes = states_bytes.saturating_add(bytes(tensor));
            }
        }
        if states_bytes <= left_bytes {
            left_bytes -= states_bytes;
            for tensor in sequence.tensor_ids() {
                if sequence.tensor(tensor).kind == Kind::State {
                    ends[tensor.index()] = 0;
                }
            }
        }
        let left_bytes = left_bytes.min(i64::MAX as u64 / 4) as i64;
        let left = MinTree::new((0..sequence.len()).map(|_| left_bytes), scratch)?;
        Ok(Self { task, memory, left, ends, taken })
    }

    /// How many objects may move in the gap after an operand, those that do already among them.
    pub(super) fn most_objects(&self, gaps: &Gaps<'_>, slot: usize) -> u64 {
        let Self { task, memory, .. } = *self;
        let sequence = task.sequence;
        let tensor = sequence.operands()[slot];
        let all = memory.objects(tensor);
        let end = self.ends[tensor.index()] as usize;
        if end == 0 {
            return all;
        }
        let Taken { from: taken_from, bytes: taken_bytes } = self.taken[tensor.index()];
        let from = first_launch(sequence, gaps, slot);
        let room = |from, to| u64::try_from(self.left.min(from, to)).unwrap_or(0);
        let most_bytes = match taken_bytes {
            0 => room(from, end),
            _ => {
                let earlier = if from < taken_from as usize {
                    room(from, taken_from as usize)
                } else {
                    u64::MAX
                };
                room(taken_from as usize, end).saturating_add(taken_bytes).min(earlier)
            }
        };
        if sequence.tensor(tensor).kind == Kind::State {
            return if most_bytes >= sequence.tensor(tensor).bytes {
                all
            } else {
                gaps.moved(slot)
            };
        }
        objects_within(task, memory, tensor, most_bytes).max(gaps.moved(slot))
    }

    /// Takes note that another number of objects moves in the gap after an operand.
    pub(super) fn update(&mut self, gaps: &Gaps<'_>, slot: usize) {
        let Self { task, memory, .. } = *self;
        let sequence = task.sequence;
        let tensor = sequence.operands()[slot];
        let end = self.ends[tensor.index()] as usize;
        if end == 0 {
            return;
        }
        let before = self.taken[tensor.index()];
        let after = taken(task, memory, gaps, slot, before);
        self.taken[tensor.index()] = after;
        for (Taken { from, bytes }, sign) in [(before, 1), (after, -1)] {
            self.left.add(from as usize, end, sign * bytes as i64);
        }
    }
}

/// The launch from which on a value takes its bytes where it moves in a gap.
fn first_launch(sequence: &Sequence<'_>, gaps: &Gaps<'_>, slot: usize) -> usize {
    let is_state = sequence.tensor(sequence.operands()[slot]).kind == Kind::State;
    match gaps.version(slot) {
        version if is_state || version == u32::MAX => 0,
        version => gaps.launch(version as usize).index(),
    }
}

/// What the tensor of an operand takes by all of its gaps; of very many, no less than before.
fn taken(
    task: &Task<'_>,
    memory: &Memory<'_>,
    gaps: &Gaps<'_>,
    slot: usize,
    before: Taken,
) -> Taken {
    let sequence = task.sequence;
    let tensor = sequence.operands()[slot];
    let (mut from, mut most, mut at) = (u64::MAX, 0, slot);
    let mut is_whole = false;
    for _gap in 0..LOOKED_AT {
        let moved = gaps.moved(at);
        if moved > 0 {
            most = moved.max(most);
            from = from.min(first_launch(sequence, gaps, at) as u64);
        }
        at = gaps.next_slot(at);
        if at == slot {
            is_whole = true;
            break;
        }
    }
    let all = memory.objects(tensor);
    let bytes = match sequence.tensor(tensor).kind {
        _ if most == 0 => 0,
        Kind::State => sequence.tensor(tensor).bytes,
        _ => memory.bytes(task, tensor, all - most, all),
    };
    let after = Taken { from: if most == 0 { 0 } else { from }, bytes };
    match before {
        Taken { bytes: 1.., .. } if !is_whole => {
            let from = if most == 0 { before.from } else { from.min(before.from) };
            Taken { from, bytes: bytes.max(before.bytes) }
        }
        _ => after,
    }
}

/// The last objects of a tensor that hold so many bytes.
fn objects_within(task: &Task<'_>, memory: &Memory<'_>, tensor: TensorId, bytes: u64) -> u64 {
    let all = memory.objects(tensor);
    if bytes >= task.sequence.tensor(tensor).bytes {
        return all;
    }
    let last_bytes = memory.bytes(task, tensor, all.saturating_sub(1), all);
    match bytes.checked_sub(last_bytes) {
        Some(more_bytes) => (1 + more_bytes / task.machine.chunk_bytes).min(all),
        None => 0,
    }
}
