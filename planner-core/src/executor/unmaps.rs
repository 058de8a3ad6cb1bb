//! Mappings that may go once the device no longer uses them.

use super::Fault;
use crate::backend::{DeviceAddress, Paging, Point, Streams};
use crate::schedule::Stream;
use crate::scratch::{OutOfScratch, Scratch, words};

/// No slot.
const NONE: u32 = u32::MAX;

/// The point to be reached on each stream (0 where there is none), the address, and the
/// number of chunks; no chunks where nothing is pending.
type Pending = [u64; 5];

/// Pending unmappings, in the order in which they were put off. Each virtual range has a
/// slot of its own, since it has one mapping at most.
#[derive(Debug)]
pub(super) struct Unmaps<'a> {
    pending: &'a mut [Pending],
    /// The slots before and behind each one.
    links: &'a mut [[u32; 2]],
    first: u32,
    last: u32,
}

impl<'a> Unmaps<'a> {
    pub(super) const fn scratch_words(slots: usize) -> usize {
        words::<Pending>(slots).saturating_add(words::<[u32; 2]>(slots))
    }

    pub(super) fn new(slots: usize, scratch: &mut Scratch<'a>) -> Result<Self, OutOfScratch> {
        let pending = scratch.take(slots, [0; 5])?;
        let links = scratch.take(slots, [NONE; 2])?;
        Ok(Self { pending, links, first: NONE, last: NONE })
    }

    /// Puts off an unmapping until `points`, one a stream, are reached.
    pub(super) fn put_off(
        &mut self,
        slot: usize,
        points: [u64; 3],
        at: DeviceAddress,
        chunks: u64,
    ) {
        let [compute, upload, download] = points;
        self.pending[slot] = [compute, upload, download, at.0, chunks];
        self.links[slot] = [self.last, NONE];
        match self.links.get_mut(self.last as usize) {
            Some(last) => last[1] = slot as u32,
            None => self.first = slot as u32,
        }
        self.last = slot as u32;
    }

    /// Unmaps what can be unmapped without blocking, oldest first.
    pub(super) fn reclaim<B: Streams + Paging>(
        &mut self,
        device: &mut B,
    ) -> Result<(), Fault<B::Error>> {
        while let Some(&pending) = self.pending.get(self.first as usize) {
            for point in points(pending) {
                if !device.reached(point)? {
                    return Ok(());
                }
            }
            self.unmap(device, self.first as usize)?;
        }
        Ok(())
    }

    /// Makes sure that nothing is mapped in a slot's range, blocking where the device
    /// still uses it.
    pub(super) fn clear<B: Streams + Paging>(
        &mut self,
        device: &mut B,
        slot: usize,
    ) -> Result<(), Fault<B::Error>> {
        let pending = self.pending[slot];
        if pending[4] == 0 {
            return Ok(());
        }
        for point in points(pending) {
            device.block_until(point)?;
        }
        self.unmap(device, slot)
    }

    fn unmap<B: Streams + Paging>(
        &mut self,
        device: &mut B,
        slot: usize,
    ) -> Result<(), Fault<B::Error>> {
        let [_, _, _, at, chunks] = core::mem::take(&mut self.pending[slot]);
        let [before, behind] = self.links[slot];
        match self.links.get_mut(before as usize) {
            Some(before) => before[1] = behind,
            None => self.first = behind,
        }
        match self.links.get_mut(behind as usize) {
            Some(behind) => behind[0] = before,
            None => self.last = before,
        }
        Ok(device.unmap(DeviceAddress(at), chunks)?)
    }
}

fn points(pending: Pending) -> impl Iterator<Item = Point> {
    Stream::ALL
        .into_iter()
        .zip(pending)
        .filter(|&(_, value)| value > 0)
        .map(|(stream, value)| Point { stream, value })
}
