//! Address ranges of plans that have ended, which the plans after them use again: a backend gives no
//! addresses back.

use crate::backend::{Chunks, DeviceAddress, ErrorType, Paging};
use crate::scratch::{OutOfScratch, Scratch, words};
use bytemuck::{Pod, Zeroable};

/// A range with nothing mapped in it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Range {
    address: u64,
    chunks: u64,
}

/// All such ranges.
#[derive(Debug)]
pub(super) struct Spares<'a> {
    ranges: &'a mut [Range],
    len: usize,
}

impl Spares<'_> {
    pub(super) const fn scratch_words(ranges: usize) -> usize {
        words::<Range>(ranges)
    }

    /// No ranges.
    pub(super) const fn none() -> Self {
        Self { ranges: &mut [], len: 0 }
    }

    /// The same ranges, with capacity for so many more.
    pub(super) fn with_more<'b>(
        &self,
        more: usize,
        scratch: &mut Scratch<'b>,
    ) -> Result<Spares<'b>, OutOfScratch> {
        let ranges = scratch.take(self.len.saturating_add(more), Range::zeroed())?;
        ranges[..self.len].copy_from_slice(&self.ranges[..self.len]);
        Ok(Spares { ranges, len: self.len })
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Adds a range, for which there is capacity.
    pub(super) fn push(&mut self, address: u64, chunks: u64) {
        if let Some(slot) = self.ranges.get_mut(self.len) {
            *slot = Range { address, chunks };
            self.len += 1;
        }
    }

    /// Takes the smallest range of at least so many chunks. O(ranges).
    fn take(&mut self, chunks: u64) -> Option<u64> {
        let ranges = self.ranges[..self.len].iter().enumerate();
        let fitting = ranges.filter(|(_, range)| range.chunks >= chunks);
        let (at, &Range { address, .. }) = fitting.min_by_key(|(_, range)| range.chunks)?;
        self.len -= 1;
        self.ranges[at] = self.ranges[self.len];
        Some(address)
    }
}

/// A device that hands out spare ranges before it reserves new ones.
#[derive(Debug)]
pub(super) struct Recycling<'r, 'a, B> {
    pub(super) device: &'r mut B,
    pub(super) spares: &'r mut Spares<'a>,
}

impl<B: ErrorType> ErrorType for Recycling<'_, '_, B> {
    type Error = B::Error;
}

impl<B: Paging> Paging for Recycling<'_, '_, B> {
    fn chunk_bytes(&self) -> u64 {
        self.device.chunk_bytes()
    }

    fn create(&mut self, count: u64) -> Result<(), Self::Error> {
        self.device.create(count)
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, Self::Error> {
        match self.spares.take(chunks) {
            Some(address) => Ok(DeviceAddress(address)),
            None => self.device.reserve(chunks),
        }
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), Self::Error> {
        self.device.map(at, chunks)
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), Self::Error> {
        self.device.unmap(at, chunks)
    }
}
