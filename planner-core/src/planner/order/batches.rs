//! Finds the micro-batch of each op.
//!
//! A micro-batch starts at an op that reads an input and no value computed from another input. A
//! value computed from several micro-batches, such as a sum of gradients, belongs to the last of
//! them. A value that depends on no input, such as the copy of a weight, belongs to the first
//! micro-batch that uses it.

#![expect(
    clippy::indexing_slicing,
    reason = "launches and versions are those of the sequence, and the arrays have an entry for \
              each"
)]

use super::versions::Versions;
use crate::graph::Kind;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};

/// No micro-batch.
const NONE: u32 = u32::MAX;

/// The micro-batches of a graph, in the given order.
#[derive(Debug)]
pub(super) struct Batches<'a> {
    of: &'a mut [u32],
    count: u32,
}

impl<'a> Batches<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<u32>(limits.ops).saturating_mul(2),
            words::<u64>(limits.ops),
            words::<u32>(Versions::most(limits)),
        ])
    }

    /// Finds the micro-batches. O(operands).
    pub(super) fn new(
        versions: &Versions<'_>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let of = scratch.take(versions.sequence().len(), NONE)?;
        let mut scratch = scratch.reborrow();
        let starts = find_starts(versions, of, &mut scratch)?;
        let times_ns = scratch.take(starts, 0u64)?;
        let sequence = versions.sequence();
        for (launch, &start) in sequence.launches().zip(&*of).filter(|&(_, &start)| start != NONE) {
            let time_ns = &mut times_ns[start as usize];
            *time_ns = time_ns.saturating_add(sequence.time_ns(launch));
        }
        // A short start is not a micro-batch: it computes a mask that all of them share, or the
        // rate of an update.
        let sum_ns = times_ns.iter().fold(0, |sum: u64, &time_ns| sum.saturating_add(time_ns));
        let least_ns = sum_ns.checked_div(times_ns.len() as u64).unwrap_or(0) / 2;
        let number = scratch.take(starts, 0u32)?;
        let mut count = 0u32;
        for (number, &time_ns) in number.iter_mut().zip(&*times_ns) {
            *number = count;
            count = count.saturating_add(u32::from(time_ns >= least_ns));
        }
        for start in &mut *of {
            *start = number.get(*start as usize).map_or(0, |&at| at.min(count.saturating_sub(1)));
        }
        Ok(Self { of, count })
    }

    /// The number of micro-batches.
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// The group of an op's micro-batch, if groups have `size` micro-batches; a size of 0 counts
    /// as 1. If groups overlap, the first group has half as many, and the last group at least one
    /// and a half times as many. No other pass overlaps the first forward pass, so it should be
    /// short. The last backward pass also moves the states that updates read, so it should be long.
    pub(super) fn group(&self, launch: u32, size: u32, overlaps: bool) -> u32 {
        let size = size.max(1);
        let groups = |batches: u32| batches.checked_div(size).unwrap_or(0);
        if !overlaps {
            return groups(self.of(launch));
        }
        let first = size.div_ceil(2);
        let last = size.saturating_add(first);
        let middle = groups(self.count.saturating_sub(first).saturating_sub(last));
        match self.of(launch).checked_sub(first) {
            None => 0,
            Some(after) => groups(after).min(middle).saturating_add(1),
        }
    }

    /// The micro-batch of an op; the first micro-batch if the op depends on no micro-batch.
    pub(super) fn of(&self, launch: u32) -> u32 {
        self.of[launch as usize]
    }
}

/// Numbers the ops that start micro-batches. Writes for each op the number of the last start that
/// it depends on, or [`NONE`]. Returns the number of starts.
fn find_starts(
    versions: &Versions<'_>,
    of: &mut [u32],
    scratch: &mut Scratch<'_>,
) -> Result<usize, OutOfScratch> {
    let made_in = scratch.reborrow().take(versions.len(), NONE)?;
    let mut starts = 0;
    for (launch, start) in versions.sequence().launches().zip(&mut *of) {
        let is_input = |version| versions.tensor(version).kind == Kind::Input;
        let reads = || versions.reads(launch).iter().copied();
        let made =
            reads().filter(|&version| !is_input(version)).map(|version| made_in[version.index()]);
        *start = made.filter(|&start| start != NONE).max().unwrap_or(NONE);
        if *start == NONE && reads().any(is_input) {
            *start = starts;
            starts = starts.saturating_add(1);
        }
        for &version in versions.writes(launch) {
            made_in[version.index()] = *start;
        }
    }
    let used_in = made_in;
    used_in.fill(NONE);
    for (launch, start) in versions.sequence().launches().zip(of).rev() {
        if *start == NONE {
            let used = versions.writes(launch).iter().map(|version| used_in[version.index()]);
            *start = used.min().unwrap_or(NONE);
        }
        for &version in versions.reads(launch) {
            used_in[version.index()] = used_in[version.index()].min(*start);
        }
    }
    Ok(starts as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_group_is_smaller_and_the_last_one_larger() {
        let groups = |count: u32, size: u32| {
            let mut of: [u32; 16] = core::array::from_fn(|batch| batch as u32);
            let batches = Batches { of: &mut of, count };
            let mut sizes = heapless::Vec::<u32, 16>::new();
            for batch in 0..count {
                let group = batches.group(batch, size, true) as usize;
                assert!(group == sizes.len() || group + 1 == sizes.len(), "group {group}");
                match sizes.get_mut(group) {
                    Some(size) => *size += 1,
                    None => sizes.push(1).unwrap(),
                }
            }
            sizes
        };
        assert_eq!(groups(1, 1), [1]);
        assert_eq!(groups(2, 1), [1, 1]);
        assert_eq!(groups(4, 1), [1, 1, 2]);
        assert_eq!(groups(8, 1), [1, 1, 1, 1, 1, 1, 2]);
        assert_eq!(groups(8, 2), [1, 2, 2, 3]);
        assert_eq!(groups(9, 2), [1, 2, 2, 4]);
        assert_eq!(groups(16, 4), [2, 4, 4, 6]);
        assert_eq!(groups(8, 0), groups(8, 1));
        assert_eq!(groups(8, u32::MAX), [8]);
    }
    use crate::graph::{Graph, Op, Tensor, TensorId};
    use crate::sequence::Sequence;

    /// The micro-batch of each op, given the tensors that it reads, the tensor that it writes, and its
    /// time.
    fn batches_of<const OPS: usize>(kinds: &[Kind], ops: [(&[u32], u32, u64); OPS]) -> [u32; OPS] {
        let mut operands = heapless::Vec::<TensorId, 32>::new();
        let ops = ops.map(|(reads, written, time_ns)| {
            let first_operand = operands.len() as u32;
            operands.extend(reads.iter().chain([&written]).map(|&id| TensorId(id)));
            Op { time_ns, first_operand, reads: reads.len() as u32, writes: 1, ..Op::default() }
        });
        let tensors: heapless::Vec<Tensor, 16> =
            kinds.iter().map(|&kind| Tensor { bytes: 4, kind }).collect();
        let mut memory = [0; 1024];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let given = Sequence::as_given(&graph, None, &mut scratch).unwrap();
        let versions = Versions::new(&given, &mut scratch).unwrap();
        let batches = Batches::new(&versions, &mut scratch).unwrap();
        assert_eq!(batches.count(), 2);
        core::array::from_fn(|op| batches.of(op as u32))
    }

    #[test]
    fn an_op_with_several_inputs_belongs_to_the_last_batch() {
        // A mask, two batches, the rate of the update, a weight; a value computed from the mask; a
        // value and a gradient for each batch; the sum; a step.
        let mut kinds = [Kind::Temporary; 11];
        kinds[..4].fill(Kind::Input);
        kinds[4] = Kind::State;
        // The mask and the update take almost no time.
        let of = batches_of(
            &kinds,
            [
                (&[0], 5, 1),
                (&[1, 4], 6, 10),
                (&[6, 5], 6, 10),
                (&[6], 9, 10),
                (&[4], 7, 10),
                (&[2, 4], 8, 10),
                (&[8, 5], 8, 10),
                (&[8, 9], 9, 10),
                (&[3], 10, 1),
                (&[10, 4], 4, 1),
            ],
        );
        // Nothing uses the value that the fifth op computes from the weight.
        assert_eq!(of, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
    }

    #[test]
    fn a_copy_belongs_to_the_first_batch_that_uses_it() {
        let mut kinds = [Kind::Temporary; 8];
        kinds[..2].fill(Kind::Input);
        kinds[2] = Kind::State;
        // A copy of the weight for both batches, and a copy for the second batch, by two ops.
        let of = batches_of(
            &kinds,
            [(&[2], 3, 1), (&[2], 4, 1), (&[4], 5, 1), (&[0, 3], 6, 10), (&[1, 3, 5], 7, 10)],
        );
        assert_eq!(of, [0, 1, 1, 0, 1]);
    }
}
