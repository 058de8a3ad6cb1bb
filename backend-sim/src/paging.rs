//! Virtual address ranges and the physical chunks behind them.

use crate::SimDevice;
use crate::contents::{Memory, Segment};
use crate::error::SimError;
use crate::extents::{Extent, Extents};
use crate::stream::Queue;
use planner_core::backend::{Chunks, DeviceAddress, Paging};
use std::collections::BTreeMap;

/// A mapped range: the physical address of its first byte.
#[derive(Clone, Copy, Debug)]
struct Physical(u64);

impl Extent for Physical {
    fn after(self, length: u64) -> Self {
        Self(self.0 + length)
    }

    /// Mappings stay apart: each is unmapped as it was mapped.
    fn continues(self, _: u64, _: Self) -> bool {
        false
    }
}

/// How many mappings some chunks have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mappings(u32);

impl Extent for Mappings {
    fn after(self, _: u64) -> Self {
        self
    }

    fn continues(self, _: u64, next: Self) -> bool {
        self == next
    }
}

/// The virtual address space.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    chunk_bytes: u64,
    created: Option<u64>,
    next_free: u64,
    /// Start and end of each reservation.
    reservations: BTreeMap<u64, u64>,
    mapped: Extents<Physical>,
    mappings: Extents<Mappings>,
    /// Chunks that have a mapping.
    mapped_chunks: u64,
}

impl AddressSpace {
    pub(crate) fn new(chunk_bytes: u64) -> Self {
        Self {
            chunk_bytes,
            created: None,
            // Address 0 is left out, as on real devices.
            next_free: chunk_bytes,
            reservations: BTreeMap::new(),
            mapped: Extents::default(),
            mappings: Extents::default(),
            mapped_chunks: 0,
        }
    }

    /// Whether every byte of a virtual range is mapped.
    pub(crate) fn is_mapped(&self, at: DeviceAddress, bytes: u64) -> bool {
        at.0.checked_add(bytes).is_some() && self.mapped.cover(at.0, bytes)
    }

    /// The physical bytes behind a virtual range; none where a byte is not mapped.
    pub(crate) fn physical(&self, at: DeviceAddress, bytes: u64) -> Option<Vec<Segment>> {
        let segment =
            |(_, bytes, Physical(start))| Segment { memory: Memory::Device, start, bytes };
        self.is_mapped(at, bytes).then(|| self.mapped.over(at.0, bytes).map(segment).collect())
    }

    fn reserve(&mut self, chunks: u64) -> Option<DeviceAddress> {
        let start = self.next_free;
        let end = chunks.checked_mul(self.chunk_bytes)?.checked_add(start)?;
        // A gap, so that running over the end of a range is an error.
        self.next_free = end.checked_add(self.chunk_bytes)?;
        self.reservations.insert(start, end);
        Some(DeviceAddress(start))
    }

    /// The bytes of some chunks at an address that fits a reservation.
    fn reserved_bytes(&self, at: DeviceAddress, chunks: u64) -> Result<u64, SimError> {
        let inside = || {
            let (&start, &end) = self.reservations.range(..=at.0).next_back()?;
            let bytes = chunks.checked_mul(self.chunk_bytes).filter(|&bytes| bytes > 0)?;
            let fits =
                (at.0 - start).is_multiple_of(self.chunk_bytes) && at.0.checked_add(bytes)? <= end;
            fits.then_some(bytes)
        };
        inside().ok_or(SimError::NotReserved(at))
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), SimError> {
        let bytes = self.reserved_bytes(at, chunks.count)?;
        let end = chunks.first.saturating_add(chunks.count);
        let created = self.created.unwrap_or(0);
        if end > created {
            return Err(SimError::UnknownChunk(chunks.first.max(created)));
        }
        if let Some((start, ..)) = self.mapped.over(at.0, bytes).next() {
            return Err(SimError::AlreadyMapped(DeviceAddress(start)));
        }
        self.mapped.insert(at.0, bytes, Physical(chunks.first * self.chunk_bytes));
        let before: Vec<_> = self.mappings.over(chunks.first, chunks.count).collect();
        self.mapped_chunks += chunks.count - before.iter().map(|&(_, count, _)| count).sum::<u64>();
        self.mappings.insert(chunks.first, chunks.count, Mappings(1));
        for (first, count, Mappings(mappings)) in before {
            self.mappings.insert(first, count, Mappings(mappings + 1));
        }
        Ok(())
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), SimError> {
        let bytes = self.reserved_bytes(at, chunks)?;
        if !self.mapped.cover(at.0, bytes) {
            return Err(SimError::NotMapped(at));
        }
        if self.mapped.straddle(at.0) || self.mapped.straddle(at.0 + bytes) {
            return Err(SimError::PartOfMapping(at));
        }
        let runs: Vec<_> = self.mapped.over(at.0, bytes).collect();
        self.mapped.remove(at.0, bytes);
        for (_, bytes, Physical(start)) in runs {
            self.release(start / self.chunk_bytes, bytes / self.chunk_bytes);
        }
        Ok(())
    }

    /// Some chunks lose one mapping each.
    fn release(&mut self, first: u64, count: u64) {
        let before: Vec<_> = self.mappings.over(first, count).collect();
        for (first, count, Mappings(mappings)) in before {
            if mappings == 1 {
                self.mappings.remove(first, count);
                self.mapped_chunks -= count;
            } else {
                self.mappings.insert(first, count, Mappings(mappings - 1));
            }
        }
    }
}

impl Paging for SimDevice<'_> {
    fn chunk_bytes(&self) -> u64 {
        self.machine.chunk_bytes
    }

    fn create(&mut self, count: u64) -> Result<(), SimError> {
        self.check_failure()?;
        if self.space.created.is_some() {
            return Err(SimError::CreatedTwice);
        }
        self.check_allocation(false)?;
        let device_bytes = self.machine.device_bytes;
        let bytes = count.checked_mul(self.machine.chunk_bytes);
        if bytes.is_none_or(|bytes| bytes > device_bytes) {
            return Err(SimError::OutOfDeviceMemory { chunks: count, device_bytes });
        }
        self.space.created = Some(count);
        self.contents.create(count);
        Ok(())
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, SimError> {
        self.check_failure()?;
        self.check_allocation(false)?;
        let at = self.space.reserve(chunks).ok_or(SimError::AddressSpace { chunks })?;
        self.counters.ranges += 1;
        Ok(at)
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), SimError> {
        self.check_failure()?;
        self.check_allocation(false)?;
        self.space.map(at, chunks)?;
        self.spend_mapping_ns(self.machine.map_ns_per_chunk, chunks.count);
        self.counters.map_calls += 1;
        self.counters.chunks_mapped += chunks.count;
        let peak = &mut self.counters.peak_chunks;
        *peak = self.space.mapped_chunks.max(*peak);
        Ok(())
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), SimError> {
        self.check_failure()?;
        let end = at.0.saturating_add(chunks.saturating_mul(self.machine.chunk_bytes));
        for (work, pending) in self.queues.iter().flat_map(Queue::pending) {
            let spans = pending.spans(&self.graph);
            if !self.is_forgiving
                && spans.iter().any(|span| span.at.0 < end && at.0 < span.at.0 + span.bytes)
            {
                return Err(SimError::UnmappedInUse { at, work });
            }
        }
        self.space.unmap(at, chunks)?;
        self.spend_mapping_ns(self.machine.unmap_ns_per_chunk, chunks);
        self.counters.unmap_calls += 1;
        Ok(())
    }
}

impl SimDevice<'_> {
    /// The host is busy with some chunks; what it submits next waits for it.
    fn spend_mapping_ns(&mut self, ns_per_chunk: u64, chunks: u64) {
        let ns = ns_per_chunk.saturating_mul(chunks);
        self.clock.spend_ns(ns);
        self.counters.mapping_ns = self.counters.mapping_ns.saturating_add(ns);
    }
}
