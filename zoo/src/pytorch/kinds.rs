//! The kinds of tensors: some outlive an iteration, and some come from outside.

use super::Device;
use super::ops::{Access, Touch, TracedOp};
use super::storage::{Origin, Tensor};
use hashbrown::HashSet;
use planner_core::Kind;
use std::collections::BTreeMap;

/// Disjoint ranges of overwritten bytes: the end of each by its start.
#[derive(Default)]
struct Covered(BTreeMap<u64, u64>);

impl Covered {
    fn add(&mut self, (mut first, mut end): (u64, u64)) {
        // From the last range back, ranges that touch the new one join it.
        while let Some((&other_first, &other_end)) = self.0.range(..=end).next_back()
            && first <= other_end
        {
            self.0.remove(&other_first);
            (first, end) = (first.min(other_first), end.max(other_end));
        }
        self.0.insert(first, end);
    }

    fn holds(&self, bytes: u64) -> bool {
        self.0.get(&0).is_some_and(|&end| bytes <= end)
    }
}

/// The effect of an iteration on a tensor from before it.
#[derive(Default)]
struct History {
    covered: Covered,
    written: bool,
    /// Whether the iteration reads the tensor while some of its bytes are from before the iteration.
    inherited: bool,
}

impl History {
    fn note(&mut self, touch: &Touch, bytes: u64) {
        self.written |= touch.access != Access::Read;
        match (touch.access, touch.bytes) {
            (Access::Overwrite, Some(range)) => self.covered.add(range),
            (Access::Overwrite, None) => {}
            _ => self.inherited |= !self.covered.holds(bytes),
        }
    }
}

/// Returns the kind of every tensor. `constants` are the storages with the same content in all steps.
pub(super) fn kinds(
    tensors: &[Tensor],
    ops: &[TracedOp],
    constants: &HashSet<i64>,
    device: Device,
) -> Vec<Kind> {
    let mut histories: Vec<History> = tensors.iter().map(|_| History::default()).collect();
    for touch in ops.iter().flat_map(|op| &op.touches) {
        histories[touch.tensor].note(touch, tensors[touch.tensor].bytes);
    }
    let before = |tensor: &Tensor| tensor.origin == Origin::Before;
    // If no tensor from before the iteration is written, parameters look like inputs.
    let trains = tensors.iter().zip(&histories).any(|(t, history)| before(t) && history.written);
    let allocated: HashSet<i64> =
        tensors.iter().filter(|tensor| !before(tensor)).map(|tensor| tensor.storage).collect();
    let stays = |tensor: &Tensor| {
        // Numbers in Python code are tensors of one element on a CPU.
        let is_number = device == Device::Cpu && tensor.bytes <= tensor.element_bytes;
        let is_constant =
            constants.contains(&tensor.storage) && !allocated.contains(&tensor.storage);
        // Masks have elements of one byte.
        is_number || is_constant || tensor.element_bytes == 1
    };
    let kind = |(tensor, history): (&Tensor, &History)| match tensor.origin {
        Origin::Allocated | Origin::Returned => Kind::Temporary,
        Origin::Born => Kind::State,
        Origin::Before => {
            if !history.inherited && history.covered.holds(tensor.bytes) {
                Kind::Temporary
            } else if history.written || !trains || stays(tensor) {
                Kind::State
            } else {
                Kind::Input
            }
        }
    };
    tensors.iter().zip(&histories).map(kind).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_grow_together() {
        let mut covered = Covered::default();
        assert!(!covered.holds(1));
        covered.add((4, 8));
        covered.add((12, 16));
        assert!(!covered.holds(4));
        covered.add((0, 4));
        assert!(covered.holds(8) && !covered.holds(9));
        covered.add((7, 13));
        assert!(covered.holds(16) && !covered.holds(17));
        assert_eq!(covered.0, BTreeMap::from([(0, 16)]));
    }
}
