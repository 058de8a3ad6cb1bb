//! Positions of ops in pools. All ops of the first pool come first, then all ops of the second pool.

use super::memory::Memory;

/// Two ranges of positions.
pub(super) type Ranges = [(usize, usize); 2];

/// The number of positions, given the number of ops.
pub(super) const fn count(memory: &Memory<'_>, ops: usize) -> usize {
    memory.pools().saturating_mul(ops)
}

/// The position of an op in a pool.
#[expect(clippy::arithmetic_side_effects, reason = "an array has an entry for each position")]
pub(super) const fn of(pool: usize, op: usize, ops: usize) -> usize {
    pool * ops + op
}

/// Ranges of ops as ranges of their positions in a pool.
#[inline]
pub(super) fn ranges(pool: usize, of_ops: Ranges, ops: usize) -> Ranges {
    of_ops.map(|(from, to)| (of(pool, from, ops), of(pool, to, ops)))
}
