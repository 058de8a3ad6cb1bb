//! The launches of a sequence, with tensors of its own for each repeat.
//!
//! A repeat computes a dropped value, so the value takes new memory. But all versions of a tensor
//! share one place. A launch that writes another value there must wait for every launch that reads
//! the earlier value. All launches of one op write the same value, so a repeat need not wait for
//! the readers of its op's value.

#![expect(
    clippy::indexing_slicing,
    reason = "slots, tensors and versions are those of the sequence, and the arrays have an entry \
              for each"
)]

use crate::graph::{Kind, Tensor, TensorId};
use crate::schedule::Stream;
use crate::scratch::{Limits, OutOfScratch, Scratch, total, words};
use crate::sequence::{LaunchId, Sequence};
use bytemuck::{Pod, Zeroable};

/// No launch.
const NONE: u32 = u32::MAX;

/// The contents of a tensor from the first launch that writes it, or from a repeat, to the next
/// repeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(transparent)]
pub(super) struct Version(u32);

impl Version {
    /// No version.
    pub(super) const NONE: Self = Self(NONE);

    pub(super) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The versions that each launch uses.
#[derive(Debug)]
pub(super) struct Versions<'a> {
    sequence: &'a Sequence<'a>,
    /// The version of each slot.
    operands: &'a [Version],
    /// The tensor of each version.
    tensors: &'a [TensorId],
    /// For each version, the first later launch that replaces its last value by another one; or
    /// [`NONE`].
    ends: &'a [u32],
}

impl<'a> Versions<'a> {
    pub(super) const fn scratch_words(limits: &Limits) -> usize {
        total([
            words::<Version>(limits.operands),
            words::<TensorId>(Self::most(limits)),
            words::<u32>(Self::most(limits)),
            words::<Version>(limits.tensors),
            words::<[u32; 3]>(limits.tensors),
        ])
    }

    /// The most versions.
    pub(super) const fn most(limits: &Limits) -> usize {
        limits.tensors.saturating_add(limits.operands)
    }

    /// Numbers the versions: first one for each tensor, then the versions of repeats. O(operands).
    pub(super) fn new(
        sequence: &'a Sequence<'a>,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        let repeats = sequence.launches().filter(|&launch| sequence.launched(launch).is_repeat);
        let rewritten: usize = repeats.map(|launch| sequence.writes(launch).len()).sum();
        let most = sequence.tensors().len().saturating_add(rewritten);
        let tensors = scratch.take(most, TensorId(0))?;
        let ends = scratch.take(most, NONE)?;
        let operands = scratch.take(sequence.operands().len(), Version(0))?;
        let mut scratch = scratch.reborrow();
        let now = scratch.take(sequence.tensors().len(), Version(0))?;
        let mut count = 0usize;
        let mut add = |tensor: TensorId| {
            let version = Version(count as u32);
            tensors[count] = tensor;
            count = count.saturating_add(1);
            version
        };
        for (tensor, version) in sequence.tensor_ids().zip(&mut *now) {
            *version = add(tensor);
        }
        for launch in sequence.launches() {
            let (is_repeat, reads) = (sequence.launched(launch).is_repeat, sequence.reads(launch));
            for &tensor in sequence.writes(launch) {
                if is_repeat && !reads.contains(&tensor) {
                    now[tensor.index()] = add(tensor);
                }
            }
            for (slot, tensor) in sequence.slots(launch).zip(sequence.operands_of(launch)) {
                operands[slot] = now[tensor.index()];
            }
        }
        let versions = Self { sequence, operands, tensors: &tensors[..count], ends: &[] };
        versions.find_ends(ends, &mut scratch)?;
        Ok(Self { ends, ..versions })
    }

    /// Finds the [end](Self::end) of each version. O(operands).
    fn find_ends(&self, ends: &mut [u32], scratch: &mut Scratch<'_>) -> Result<(), OutOfScratch> {
        // The next write of each tensor: its launch, its version, and the launch that ends its
        // value.
        let next = scratch.take(self.sequence.tensors().len(), [NONE; 3])?;
        for launch in self.sequence.launches().rev() {
            for (&tensor, version) in self.sequence.writes(launch).iter().zip(self.writes(launch)) {
                let [later, its_version, its_end] = next[tensor.index()];
                let is_same =
                    later == NONE || self.sequence.op(LaunchId(later)) == self.sequence.op(launch);
                let end = if is_same { its_end } else { later };
                if its_version != version.0 {
                    ends[version.index()] = end;
                }
                next[tensor.index()] = [launch.0, version.0, end];
            }
        }
        Ok(())
    }

    pub(super) const fn sequence(&self) -> &'a Sequence<'a> {
        self.sequence
    }

    /// The number of versions.
    pub(super) const fn len(&self) -> usize {
        self.tensors.len()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = Version> + use<> {
        (0..self.len() as u32).map(Version)
    }

    /// The tensor of a version.
    pub(super) fn tensor(&self, version: Version) -> Tensor {
        self.sequence.tensor(self.tensors[version.index()])
    }

    /// The first later launch that replaces the last value of a version by another one.
    pub(super) fn end(&self, version: Version) -> Option<LaunchId> {
        let end = self.ends[version.index()];
        (end != NONE).then_some(LaunchId(end))
    }

    /// The state of which a launch makes a copy, such as a weight in a shorter format: the only value
    /// that the launch reads, if a repeat can make the copy again.
    pub(super) fn copied_state(&self, launch: LaunchId) -> Option<Version> {
        let [state] = self.reads(launch) else { return None };
        let is_state = self.tensor(*state).kind == Kind::State;
        (is_state && self.sequence.is_repeatable(launch)).then_some(*state)
    }

    /// The same for an op that computes the copy. A collective that gathers a state runs beside other
    /// ops, so it may run far ahead.
    pub(super) fn computed_copy(&self, launch: LaunchId) -> Option<Version> {
        self.copied_state(launch).filter(|_| self.sequence.stream(launch) == Stream::Compute)
    }

    pub(super) fn reads(&self, launch: LaunchId) -> &'a [Version] {
        &self.operands[self.sequence.first_slot(launch)..self.sequence.first_write(launch)]
    }

    pub(super) fn writes(&self, launch: LaunchId) -> &'a [Version] {
        &self.operands[self.sequence.written_slots(launch)]
    }

    /// The versions that a launch reads, then the versions that it writes.
    pub(super) fn operands_of(&self, launch: LaunchId) -> &'a [Version] {
        &self.operands[self.sequence.slots(launch)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Op, OpId};

    #[test]
    fn a_repeat_writes_a_version_of_its_own() {
        let tensors = [Kind::State, Kind::Temporary, Kind::Temporary];
        let tensors = tensors.map(|kind| Tensor { bytes: 8, kind });
        // The first op computes a value from a state, the second changes it in place, the third
        // reads it.
        let operands = [0, 1, 1, 1, 1, 2].map(TensorId);
        let op = |first_operand| Op { first_operand, reads: 1, writes: 1, ..Op::default() };
        let ops = [op(0), op(2), op(4)];
        let mut memory = [0; 256];
        let mut scratch = Scratch::new(&mut memory);
        let graph = Graph::new(&tensors, &ops, &operands, &mut scratch.reborrow()).unwrap();
        let launches = [0, 1, 2, 0, 1, 2].map(OpId);
        let sequence = Sequence::new(&graph, None, launches.into_iter(), &mut scratch).unwrap();
        let versions = Versions::new(&sequence, &mut scratch).unwrap();
        let operands: heapless::Vec<u32, 12> = sequence
            .launches()
            .flat_map(|launch| versions.operands_of(launch))
            .map(|version| version.0)
            .collect();
        assert_eq!(operands, [0, 1, 1, 1, 1, 2, 0, 3, 3, 3, 3, 4]);
        assert_eq!(
            versions.all().map(|version| versions.tensor(version).kind).last(),
            Some(Kind::Temporary)
        );
        assert_eq!(versions.len(), 5);
        // The repeat of op 0 replaces the value that op 1 changed in place. Op 2 writes the same
        // value twice.
        let ends = [None, Some(LaunchId(3)), None, None, None];
        assert!(versions.all().map(|version| versions.end(version)).eq(ends));
        let last = LaunchId(5);
        assert_eq!(
            (versions.reads(last), versions.writes(last)),
            (&[Version(3)][..], &[Version(4)][..])
        );
    }
}
