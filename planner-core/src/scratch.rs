//! Working memory that the caller owns.
//!
//! Nothing in this crate allocates: a function that needs working memory takes a [`Scratch`], and a
//! `const fn` beside it tells how many 64-bit words it needs.

use bytemuck::Pod;
use core::fmt;

/// A region of 64-bit words from which typed slices are taken, from front to back.
#[derive(Debug)]
pub struct Scratch<'a> {
    free: &'a mut [u64],
}

/// The caller's working memory is too small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfScratch {
    /// Words that the failed request needed.
    pub needed_words: usize,
    /// Words that were left.
    pub free_words: usize,
}

impl fmt::Display for OutOfScratch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed_words, free_words } = self;
        write!(f, "working memory is too small: {needed_words} words needed, {free_words} free")
    }
}

impl core::error::Error for OutOfScratch {}

/// A buffer for output that the caller provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// The steps of a plan.
    Steps,
    /// The parts resident at its start.
    Resident,
    /// Its arena.
    Arena,
    /// Its pools.
    Pools,
    /// The pool of each tensor.
    TensorPool,
    /// The entries of a schedule.
    Schedule,
    /// The object numbers of placements.
    Objects,
    /// The ends of placements.
    Ends,
    /// The parts that a plan holds between two iterations.
    Held,
    /// The chunks of a switch.
    Chunks,
    /// The steps of a switch.
    SwitchSteps,
}

impl Buffer {
    /// The first `needed` entries of a buffer.
    pub(crate) fn first<T>(
        self,
        entries: &mut [T],
        needed: usize,
    ) -> Result<&mut [T], BufferTooShort> {
        let error = BufferTooShort { buffer: self, needed, len: entries.len() };
        entries.get_mut(..needed).ok_or(error)
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Steps => "steps",
            Self::Resident => "resident tensors",
            Self::Arena => "the arena",
            Self::Pools => "pools",
            Self::TensorPool => "the pool of each tensor",
            Self::Schedule => "the schedule",
            Self::Objects => "object numbers",
            Self::Ends => "the ends of placements",
            Self::Held => "the held parts",
            Self::Chunks => "the chunks of a switch",
            Self::SwitchSteps => "the steps of a switch",
        })
    }
}

/// An output buffer is too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferTooShort {
    /// The buffer.
    pub buffer: Buffer,
    /// Entries that it needs.
    pub needed: usize,
    /// Entries that it has.
    pub len: usize,
}

impl fmt::Display for BufferTooShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { buffer, needed, len } = self;
        write!(f, "the buffer for {buffer} is too short: it needs {needed} entries and has {len}")
    }
}

impl core::error::Error for BufferTooShort {}

/// Words that `count` values of type `T` take in a [`Scratch`].
#[must_use]
pub const fn words<T>(count: usize) -> usize {
    count.saturating_mul(size_of::<T>()).div_ceil(size_of::<u64>())
}

/// The largest number of launches in a list, as a multiple of the ops, and of operands of these
/// launches, as a multiple of the operands. A balance: working memory grows with it. With 2, the search
/// finds no plan for a few works with little device memory and a small host.
pub(crate) const MOST_LAUNCHES: usize = 3;

/// The saturating sum. No memory has as many words as the maximum.
pub(crate) const fn total<const N: usize>(parts: [usize; N]) -> usize {
    let (mut total, mut rest) = (0usize, parts.as_slice());
    while let [part, others @ ..] = rest {
        total = total.saturating_add(*part);
        rest = others;
    }
    total
}

pub(crate) const fn larger(one: usize, other: usize) -> usize {
    if one > other { one } else { other }
}

impl<'a> Scratch<'a> {
    /// Takes slices from `memory` and overwrites its contents.
    pub const fn new(memory: &'a mut [u64]) -> Self {
        Self { free: memory }
    }

    /// Takes `count` values, each set to `fill`.
    ///
    /// # Errors
    /// [`OutOfScratch`] if fewer than [`words::<T>(count)`](words) words are left.
    pub fn take<T: Pod>(&mut self, count: usize, fill: T) -> Result<&'a mut [T], OutOfScratch> {
        let needed_words = words::<T>(count);
        let error = OutOfScratch { needed_words, free_words: self.free.len() };
        let free = core::mem::take(&mut self.free);
        let Some((taken, rest)) = free.split_at_mut_checked(needed_words) else {
            return Err(error);
        };
        self.free = rest;
        // The last word may be filled only in part.
        let bytes = bytemuck::cast_slice_mut::<u64, u8>(taken);
        let filled = bytes.get_mut(..count.saturating_mul(size_of::<T>())).ok_or(error)?;
        let Ok(slice) = bytemuck::try_cast_slice_mut::<u8, T>(filled) else { return Err(error) };
        slice.fill(fill);
        Ok(slice)
    }

    /// The number of words that are left.
    #[must_use]
    pub const fn free_words(&self) -> usize {
        self.free.len()
    }

    /// The words that are still free; they are returned when the result is dropped.
    pub const fn reborrow(&mut self) -> Scratch<'_> {
        Scratch { free: self.free }
    }
}

/// The sizes on which output and working memory depend. [`Limits::of_graph`] gives the sizes for
/// planning, [`Limits::of_plan`] the sizes for functions on a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Operations of the graph.
    pub ops: usize,
    /// Reads and writes of all operations together.
    pub operands: usize,
    /// Tensors of the graph.
    pub tensors: usize,
    /// Steps of a plan.
    pub steps: usize,
    /// Pieces into which the ranges of a plan cut the tensors; at least `tensors`, and at most two
    /// more for each range.
    pub pieces: usize,
    /// Pools of a plan.
    pub pools: usize,
    /// Iterations that the placements of a plan cover; 0 or 1 without placements.
    pub iterations: usize,
    /// Object numbers in the placements of a plan; 0 without placements.
    pub objects: usize,
}

impl Limits {
    /// A number of steps that suffices for a plan of every strategy: for each operand, at most a
    /// prefetch, an offload and two evicts; and as many for each tensor to close the cycle.
    #[must_use]
    pub const fn max_steps(&self) -> usize {
        total([self.ops, self.operands.saturating_mul(4), self.tensors.saturating_mul(4)])
    }

    /// The same graph, with limits for plans of this many steps.
    #[must_use]
    pub const fn with_steps(self, steps: usize) -> Self {
        // Two ranges of a tensor may be resident at start.
        let ranges = steps.saturating_add(self.tensors.saturating_mul(2));
        let pieces = self.tensors.saturating_add(ranges.saturating_mul(2));
        Self { steps, pieces, ..self }
    }

    /// The limits for lists with repeats.
    #[must_use]
    pub(crate) const fn with_repeats(self) -> Self {
        let ops = self.ops.saturating_mul(MOST_LAUNCHES);
        Self { ops, operands: self.operands.saturating_mul(MOST_LAUNCHES), ..self }
    }

    /// Entries of a schedule.
    #[must_use]
    pub const fn entries(&self) -> usize {
        match self.iterations {
            0 => self.steps,
            iterations => self.steps.saturating_mul(iterations),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::planner;
    #[cfg(feature = "baselines")]
    use crate::planner::swap;
    use crate::{bounds, executor, footprint, host, lower, packing, placement, switch};
    use crate::{timeline, verify};

    #[test]
    fn no_memory_is_enough_for_limits_beyond_all() {
        const MOST: usize = usize::MAX;
        let limits = Limits {
            ops: MOST,
            operands: MOST,
            tensors: MOST,
            steps: MOST,
            pieces: MOST,
            pools: MOST,
            iterations: MOST,
            objects: MOST,
        };
        let ranges = executor::AddressRanges { count: MOST, rows: MOST };
        for needed_words in [
            crate::Graph::scratch_words(MOST),
            crate::arena::scratch_words(&limits),
            bounds::scratch_words(&limits),
            executor::scratch_words(&limits, MOST),
            footprint::scratch_words(&limits),
            host::HostLayout::scratch_words(&limits),
            lower::scratch_words(&limits),
            packing::scratch_words(MOST),
            crate::pieces::Pieces::scratch_words(&limits),
            placement::scratch_words(&limits),
            placement::contiguous_scratch_words(&limits),
            placement::addresses_scratch_words(&limits),
            limits.max_steps(),
            planner::scratch_words(&limits),
            #[cfg(feature = "baselines")]
            swap::scratch_words(&limits),
            #[cfg(feature = "baselines")]
            swap::Classes::needs_scratch_words(&limits),
            executor::switch_scratch_words(&limits, MOST, MOST, ranges),
            switch::Holding::scratch_words(&limits),
            switch::keep_offsets_scratch_words(&limits, &limits),
            switch::scratch_words(&limits, &limits, MOST),
            switch::verify_scratch_words(&limits, &limits, MOST, MOST, MOST),
            timeline::scratch_words(&limits),
            verify::scratch_words(&limits),
        ] {
            // A slice has at most as many bytes as the largest `isize`.
            assert!(needed_words > isize::MAX as usize / size_of::<u64>());
        }
    }

    #[test]
    fn planning_needs_as_many_words_as_documented() {
        let none = Limits::default();
        for count in [1, 10, 100, 1000, 1025, 131_073, (1 << 20) + 1] {
            for (limits, rate) in [
                (Limits { ops: count, ..none }, 600),
                (Limits { operands: count, ..none }, 65),
                (Limits { tensors: count, ..none }, 108),
            ] {
                let needed_words = planner::scratch_words(&limits.with_steps(0));
                assert!(needed_words <= 900_000 + rate * count, "{needed_words}: {limits:?}");
            }
        }
    }

    #[test]
    fn slices_are_typed_filled_and_bounded() {
        let mut memory = [u64::MAX; 4];
        let mut scratch = Scratch::new(&mut memory);
        assert_eq!(scratch.take::<u32>(3, 7).unwrap(), &[7, 7, 7]);
        {
            let mut inner = scratch.reborrow();
            assert_eq!(inner.take::<[i64; 2]>(1, [1, 2]).unwrap(), &[[1, 2]]);
            assert_eq!(
                inner.take::<u64>(1, 0),
                Err(OutOfScratch { needed_words: 1, free_words: 0 })
            );
        }
        assert_eq!(scratch.take::<[u32; 3]>(1, [1, 2, 3]).unwrap(), &[[1, 2, 3]]);
    }
}
