//! Unmappings that wait until the device no longer uses the range.

#![expect(
    clippy::indexing_slicing,
    reason = "`slot` is a number modulo the length of the ring, which is not zero"
)]

use super::Fault;
use crate::backend::{DeviceAddress, Paging, Point, Streams};
use crate::schedule::PerStream;
use crate::scratch::{OutOfScratch, Scratch, words};
use bytemuck::{Pod, Zeroable};

/// A mapping that waits to be unmapped.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Pending {
    /// The point to wait for on each stream; 0 for none.
    points: PerStream<u64>,
    address: u64,
    chunks: u64,
}

/// Pending unmappings, in a ring. They are done in the order in which they were put off, so one
/// counter says which of them are done.
#[derive(Debug)]
pub(super) struct Unmaps<'a> {
    ring: &'a mut [Pending],
    /// Unmappings done since the start.
    done: u64,
    /// Unmappings put off since the start.
    put_off: u64,
}

#[expect(
    clippy::arithmetic_side_effects,
    reason = "`done` and `put_off` are counted one by one, and the ring is not empty"
)]
impl<'a> Unmaps<'a> {
    pub(super) const fn scratch_words(most_pending: usize) -> usize {
        words::<Pending>(most_pending)
    }

    /// `most_pending` must not be zero.
    pub(super) fn new(
        most_pending: usize,
        scratch: &mut Scratch<'a>,
    ) -> Result<Self, OutOfScratch> {
        Ok(Self { ring: scratch.take(most_pending, Pending::zeroed())?, done: 0, put_off: 0 })
    }

    /// How many unmappings have been put off so far. All of them are done once this many are done.
    pub(super) const fn put_off_so_far(&self) -> u64 {
        self.put_off
    }

    /// Whether the first `count` unmappings are done.
    pub(super) const fn are_done(&self, count: u64) -> bool {
        count <= self.done
    }

    /// Puts off an unmapping until `points`, one a stream, are reached. Blocks if the ring is full.
    pub(super) fn put_off<B: Streams + Paging>(
        &mut self,
        device: &mut B,
        points: PerStream<u64>,
        at: DeviceAddress,
        chunks: u64,
    ) -> Result<(), Fault<B::Error>> {
        self.finish(device, (self.put_off + 1).saturating_sub(self.ring.len() as u64))?;
        let slot = self.slot(self.put_off);
        self.ring[slot] = Pending { points, address: at.0, chunks };
        self.put_off += 1;
        Ok(())
    }

    const fn slot(&self, number: u64) -> usize {
        (number % self.ring.len() as u64) as usize
    }

    /// Does the unmappings whose points are reached, without blocking.
    pub(super) fn reclaim<B: Streams + Paging>(
        &mut self,
        device: &mut B,
    ) -> Result<(), Fault<B::Error>> {
        while self.done < self.put_off {
            for point in self.ring[self.slot(self.done)].points() {
                if !device.reached(point)? {
                    return Ok(());
                }
            }
            self.do_next(device)?;
        }
        Ok(())
    }

    /// Blocks until the first `count` unmappings are done.
    pub(super) fn finish<B: Streams + Paging>(
        &mut self,
        device: &mut B,
        count: u64,
    ) -> Result<(), Fault<B::Error>> {
        while self.done < count {
            for point in self.ring[self.slot(self.done)].points() {
                device.block_until(point)?;
            }
            self.do_next(device)?;
        }
        Ok(())
    }

    fn do_next<B: Paging>(&mut self, device: &mut B) -> Result<(), Fault<B::Error>> {
        let Pending { address, chunks, .. } = self.ring[self.slot(self.done)];
        self.done += 1;
        Ok(device.unmap(DeviceAddress(address), chunks)?)
    }
}

impl Pending {
    fn points(self) -> impl Iterator<Item = Point> {
        self.points
            .into_iter()
            .filter(|&(_, value)| value > 0)
            .map(|(stream, value)| Point { stream, value })
    }
}
