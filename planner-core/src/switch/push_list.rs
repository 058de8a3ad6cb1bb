//! A list in scratch memory that grows by one entry at a time.

use super::planner::out_of_scratch;
use crate::scratch::{OutOfScratch, Scratch};
use bytemuck::Pod;

/// The entries so far, in a buffer of fixed length.
pub(super) struct PushList<'s, T> {
    buffer: &'s mut [T],
    len: usize,
}

impl<'s, T: Pod> PushList<'s, T> {
    /// An empty list with room for `most` entries.
    pub(super) fn new(most: usize, scratch: &mut Scratch<'s>) -> Result<Self, OutOfScratch> {
        Ok(Self { buffer: scratch.take(most, T::zeroed())?, len: 0 })
    }

    /// Appends an entry.
    pub(super) fn push(&mut self, entry: T) -> Result<(), OutOfScratch> {
        let next_len = self.len.saturating_add(1);
        *self.buffer.get_mut(self.len).ok_or(out_of_scratch::<T>(next_len))? = entry;
        self.len = next_len;
        Ok(())
    }

    /// The entries.
    pub(super) fn entries(&mut self) -> &mut [T] {
        self.buffer.get_mut(..self.len).unwrap_or_default()
    }

    /// The entries, without the list.
    pub(super) fn into_entries(self) -> &'s mut [T] {
        self.buffer.get_mut(..self.len).unwrap_or_default()
    }
}
