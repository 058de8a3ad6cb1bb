//! Values: 64 bits that stand for all bytes of one version of a tensor.

use planner_core::{Graph, Kind, OpId, TensorId};

const STATE: u64 = 1;
const INPUT: u64 = 2;
const OP: u64 = 3;
const DIGEST: u64 = 4;

/// Folds a word into a state. Both orders of two words give different results.
pub(crate) const fn mix(state: u64, word: u64) -> u64 {
    scramble(scramble(state) ^ word)
}

/// The finalizer of `SplitMix64`: a permutation in which every bit depends on every other.
pub(crate) const fn scramble(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The value a state has before the first iteration.
pub(crate) const fn initial_state(tensor: TensorId) -> u64 {
    mix(STATE, tensor.0 as u64)
}

/// The value an input has in an iteration.
pub(crate) const fn input(tensor: TensorId, iteration: u64) -> u64 {
    mix(mix(INPUT, tensor.0 as u64), iteration)
}

/// What an op makes of the values it reads, in their order.
pub(crate) fn op_result(op: OpId, reads: impl Iterator<Item = u64>) -> u64 {
    reads.fold(mix(OP, u64::from(op.0)), mix)
}

/// The value of the `position`-th tensor an op writes.
pub(crate) const fn written(op_result: u64, position: usize) -> u64 {
    mix(op_result, position as u64)
}

/// One number for the values of all states, in their order.
pub(crate) fn digest(states: impl Iterator<Item = u64>) -> u64 {
    states.fold(DIGEST, mix)
}

/// The digest that `iterations` of a graph leave, computed from the graph alone: each op
/// in the given order, on whole values. What any plan, on any schedule, must reproduce.
#[must_use]
pub fn reference_digest(graph: &Graph<'_>, iterations: u64) -> u64 {
    let mut values: Vec<u64> = graph.tensor_ids().map(initial_state).collect();
    for iteration in 1..=iterations {
        for tensor in graph.tensor_ids() {
            if graph.tensor(tensor).kind == Kind::Input {
                values[tensor.index()] = input(tensor, iteration);
            }
        }
        for op in graph.op_ids() {
            let reads = graph.reads(op).iter().map(|tensor| values[tensor.index()]);
            let result = op_result(op, reads);
            for (position, tensor) in graph.writes(op).iter().enumerate() {
                values[tensor.index()] = written(result, position);
            }
        }
    }
    let states = graph.tensor_ids().filter(|&tensor| graph.tensor(tensor).kind == Kind::State);
    digest(states.map(|tensor| values[tensor.index()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_position_and_iteration_matter() {
        assert_ne!(mix(mix(0, 1), 2), mix(mix(0, 2), 1));
        let read = |values: [u64; 2]| op_result(OpId(0), values.into_iter());
        assert_ne!(read([1, 2]), read([2, 1]));
        assert_ne!(written(7, 0), written(7, 1));
        assert_ne!(input(TensorId(0), 1), input(TensorId(0), 2));
        assert_ne!(input(TensorId(0), 1), input(TensorId(1), 1));
    }
}
