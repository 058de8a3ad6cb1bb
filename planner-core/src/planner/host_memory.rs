//! A limit on the host memory that gaps may take, used after a list has exceeded the host.
//!
//! As in the [host layout](crate::host), a temporary takes its bytes from the launch that writes
//! the first moved value to the last launch that uses it; everything else takes its bytes all the
//! time. Only bytes are counted here; the layout packs them, which may take a little more.

#![expect(
    clippy::indexing_slicing,
    reason = "tensors, slots and launches are those of the sequence, and the arrays have an entry \
              for each tensor"
)]

use super::gaps::Gaps;
use super::memory::Memory;
use super::request::Task;
use super::tree::MinTree;
use crate::graph::{Kind, TensorId};
use crate::schedule::Stream;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::Sequence;
use bytemuck::{Pod, Zeroable};

/// No limit.
pub(super) const UNLIMITED: u64 = u64::MAX;

/// The least step by which a limit is lowered, as a fraction of the host's memory, if a list within
/// the limit does not fit the host. A balance: a larger step leaves more unused, a smaller one
/// takes more lists.
const LOWERED: u64 = 128;

/// The most steps by which a limit is lowered, so by a sixteenth of the host's memory at most.
const MOST_LOWERED: u64 = 8;

/// The most gaps of a tensor that are visited, which bounds the time for tensors with many uses.
const MOST_SEARCHED: usize = 64;

/// The next limit after a list took `needed_bytes` under `limit_bytes`; `None` if lower limits are
/// of no use.
pub(super) fn lower(limit_bytes: u64, needed_bytes: u64, host_bytes: u64) -> Option<u64> {
    if limit_bytes > host_bytes {
        return Some(host_bytes);
    }
    let step_bytes = (host_bytes / LOWERED).saturating_add(1);
    let excess_bytes = needed_bytes.saturating_sub(host_bytes).max(step_bytes);
    let lower_bytes = limit_bytes.checked_sub(excess_bytes)?;
    let least_bytes = host_bytes.saturating_sub(step_bytes.saturating_mul(MOST_LOWERED));
    (lower_bytes >= least_bytes).then_some(lower_bytes)
}

/// The host bytes that are free at each launch.
#[derive(Debug)]
pub(super) struct HostMemory<'s> {
    task: &'s Task<'s>,
    memory: &'s Memory<'s>,
    left: MinTree<'s>,
    /// The launch after the last one that uses each tensor; zero for tensors that have their bytes
    /// in any case.
    ends: &'s mut [u32],
    /// The bytes that each tensor takes, and from which launch on.
    taken: &'s mut [Taken],
}

/// The host bytes that a tensor takes.
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

    /// The host memory of `limit_bytes` that is free if nothing moves in gaps; `None` if the limit
    /// is [`UNLIMITED`]. O(operands).
    pub(super) fn within(
        limit_bytes: u64,
        task: &'s Task<'s>,
        memory: &'s Memory<'s>,
        scratch: &mut Scratch<'s>,
    ) -> Result<Option<Self>, OutOfScratch> {
        match limit_bytes {
            UNLIMITED => Ok(None),
            _ => Self::new(limit_bytes, task, memory, scratch).map(Some),
        }
    }

    fn new(
        limit_bytes: u64,
        task: &'s Task<'s>,
        memory: &'s Memory<'s>,
        scratch: &mut Scratch<'s>,
    ) -> Result<Self, OutOfScratch> {
        let sequence = task.sequence;
        let ends = scratch.take(sequence.tensors().len(), 0u32)?;
        let taken = scratch.take(sequence.tensors().len(), Taken::default())?;
        for launch in sequence.launches() {
            // A tensor of a collective keeps its bytes to the end of the list.
            let end = match sequence.stream(launch) {
                Stream::Network => sequence.len() as u32,
                _ => launch.next().0,
            };
            for &tensor in sequence.operands_of(launch) {
                ends[tensor.index()] = end.max(ends[tensor.index()]);
            }
        }
        let bytes = |tensor: TensorId| sequence.graph().tensor(tensor).bytes;
        let mut left_bytes = limit_bytes;
        let mut states_bytes = 0u64;
        for tensor in sequence.tensor_ids() {
            let kind = sequence.graph().tensor(tensor).kind;
            let always = kind.has_two_slots() || sequence.is_used_by_host(tensor);
            if always {
                left_bytes = left_bytes.saturating_sub(bytes(tensor));
                ends[tensor.index()] = 0;
            } else if kind == Kind::State && !memory.in_arena(tensor) {
                states_bytes = states_bytes.saturating_add(bytes(tensor));
            }
        }
        if let Some(beside_bytes) = left_bytes.checked_sub(states_bytes) {
            left_bytes = beside_bytes;
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

    /// The most objects that may move in the gap after an operand, including the objects that
    /// already move.
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

    /// Records a changed number of objects that move in the gap after an operand.
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
        self.left.add(before.from as usize, end, before.bytes as i64);
        self.left.subtract(after.from as usize, end, after.bytes);
    }
}

/// The launch from which on a value takes host bytes if it moves in a gap.
fn first_launch(sequence: &Sequence<'_>, gaps: &Gaps<'_>, slot: usize) -> usize {
    let is_state = sequence.tensor(sequence.operands()[slot]).kind == Kind::State;
    match gaps.version(slot) {
        version if is_state || version == u32::MAX => 0,
        version => gaps.launch(version as usize).index(),
    }
}

/// The bytes that the gaps of an operand's tensor take together; with very many gaps, at least as
/// many as before.
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
    for _gap in 0..MOST_SEARCHED {
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
        _ => memory.bytes(task, tensor, all.saturating_sub(most), all),
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

/// The number of a tensor's last objects that hold at most this many bytes.
fn objects_within(task: &Task<'_>, memory: &Memory<'_>, tensor: TensorId, bytes: u64) -> u64 {
    let all = memory.objects(tensor);
    if bytes >= task.sequence.tensor(tensor).bytes {
        return all;
    }
    let last_bytes = memory.bytes(task, tensor, all.saturating_sub(1), all);
    match bytes.checked_sub(last_bytes) {
        Some(more_bytes) => task.machine.chunks_within(more_bytes).saturating_add(1).min(all),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Op, Tensor};
    use crate::machine::Machine;
    use crate::plan::ArenaPlacement;
    use crate::planner::strategy::Need;

    #[test]
    fn limits_fall_to_the_host_and_then_a_little_below() {
        assert_eq!(lower(UNLIMITED, 5000, 1280), Some(1280));
        assert_eq!(lower(1280, 1300, 1280), Some(1260));
        // A list that exceeds the host by less than a step.
        assert_eq!(lower(1260, 1281, 1280), Some(1249));
        assert_eq!(lower(1280, 5000, 1280), None);
        assert_eq!(lower(1, u64::MAX, 0), Some(0));
        assert_eq!(lower(0, u64::MAX, 0), None);
    }

    const CHUNK: u64 = 4096;

    /// Calls `check` with the memory that `chunks` chunks of the host leave. The tensors A and B
    /// wait in the gaps after operands 2 and 4, and a state survives after operand 9. A takes bytes
    /// up to the third launch, B from the second launch to the last.
    fn with_host(chunks: u64, check: impl FnOnce(HostMemory<'_>, &mut Gaps<'_>)) {
        let tensor = |chunks, kind| Tensor { bytes: chunks * CHUNK, kind };
        let a = tensor(4, Kind::Temporary);
        let tensors = [a, a, a, tensor(1, Kind::Input), tensor(2, Kind::State)];
        let mut first_operand = 0;
        let ops = [(2, 1), (1, 1), (1, 1), (2, 1)].map(|(reads, writes)| {
            let op = Op { time_ns: 1, first_operand, reads, writes, ..Op::default() };
            first_operand += reads + writes;
            op
        });
        let operands = [3, 4, 0, 3, 1, 0, 2, 1, 2, 4].map(TensorId);
        let mut words = [0; 8192];
        let mut scratch = Scratch::new(&mut words);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let machine = Machine::of_chunks(CHUNK).with_host_bytes(64 * CHUNK);
        let sequence = Sequence::as_given(&graph, None, &mut scratch).unwrap();
        let task = Task { sequence: &sequence, machine: &machine, budget_bytes: 32 * CHUNK };
        let mut arena = [ArenaPlacement { tensor: TensorId(0), offset_bytes: 0 }; 5];
        let memory = Memory::new(&task, Need::LargestOp, &mut arena, &mut scratch).unwrap();
        let mut gaps = Gaps::new(&sequence, &mut scratch).unwrap();
        let host = HostMemory::new(chunks * CHUNK, &task, &memory, &mut scratch).unwrap();
        check(host, &mut gaps);
    }

    #[test]
    fn a_value_takes_the_host_from_its_first_launch_to_its_last() {
        with_host(9, |mut host, gaps| {
            let mut set = |gaps: &mut Gaps<'_>, slot, objects| {
                gaps.set_moved(slot, objects);
                host.update(gaps, slot);
                [2, 4].map(|slot| host.most_objects(gaps, slot))
            };
            // The input and the state leave 6 chunks.
            assert_eq!(set(gaps, 2, 0), [4, 4]);
            assert_eq!(set(gaps, 2, 4), [4, 2]);
            assert_eq!(set(gaps, 4, 2), [4, 2]);
            assert_eq!(set(gaps, 2, 1), [4, 4]);
            assert_eq!(set(gaps, 4, 4), [2, 4]);
            let left = [0, 1, 2, 3].map(|at| host.left.at(at) / CHUNK as i64);
            assert_eq!(left, [5, 1, 1, 2]);
        });
    }

    #[test]
    fn a_state_takes_all_of_its_bytes_or_none() {
        for (chunks, most) in [(2, 0), (3, 2)] {
            with_host(chunks, |host, gaps| assert_eq!(host.most_objects(gaps, 9), most));
        }
    }
}
