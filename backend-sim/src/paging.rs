//! Virtual address ranges and the physical chunks behind them.

use crate::SimDevice;
use crate::contents::{Memory, Segment};
use crate::error::SimError;
use crate::extents::{Extent, Extents};
use crate::stream::Queue;
use backend_checks::{AddressMap, Refused};
use planner_core::backend::{Chunks, DeviceAddress, Paging};
use std::ops::Range;

/// The number of mappings that each chunk of an extent has.
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
    next_free: u64,
    addresses: AddressMap<()>,
    mappings: Extents<Mappings>,
    /// Chunks that have a mapping.
    mapped_chunks: u64,
}

impl AddressSpace {
    pub(crate) fn new(chunk_bytes: u64) -> Self {
        Self {
            // Address 0 stays free, as on real devices.
            next_free: chunk_bytes,
            addresses: AddressMap::new(chunk_bytes),
            mappings: Extents::default(),
            mapped_chunks: 0,
        }
    }

    /// Whether every byte of a virtual range is mapped.
    pub(crate) fn is_mapped(&self, at: DeviceAddress, bytes: u64) -> bool {
        self.addresses.check_mapped(at, bytes).is_ok()
    }

    /// The physical bytes behind a virtual range. `None` if a byte is not mapped.
    pub(crate) fn physical(&self, at: DeviceAddress, bytes: u64) -> Option<Vec<Segment>> {
        let segment = |Range { start, end }| {
            let memory = Memory::Device;
            Segment { memory, start, bytes: end - start }
        };
        let physical = self.addresses.physical(at, bytes).ok()?;
        Some(physical.into_iter().map(segment).collect())
    }

    fn reserve(&mut self, chunks: u64) -> Option<DeviceAddress> {
        let at = DeviceAddress(self.next_free);
        let bytes = chunks.checked_mul(self.addresses.chunk_bytes())?;
        // A gap follows each range, so that an access beyond the end of a range is an error.
        self.next_free = at.0.checked_add(bytes)?.checked_add(self.addresses.chunk_bytes())?;
        self.addresses.reserve(at, bytes, ());
        Some(at)
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), Refused> {
        self.addresses.check_map(at, chunks)?;
        self.addresses.map(at, chunks);
        let before: Vec<_> = self.mappings.over(chunks.first, chunks.count).collect();
        self.mapped_chunks += chunks.count - before.iter().map(|&(_, count, _)| count).sum::<u64>();
        self.mappings.insert(chunks.first, chunks.count, Mappings(1));
        for (first, count, Mappings(mappings)) in before {
            self.mappings.insert(first, count, Mappings(mappings + 1));
        }
        Ok(())
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), Refused> {
        self.addresses.check_unmap(at, chunks)?;
        let chunk_bytes = self.addresses.chunk_bytes();
        let runs = self.addresses.physical(at, chunks * chunk_bytes)?;
        self.addresses.unmap(at, chunks);
        for Range { start, end } in runs {
            self.release(start / chunk_bytes, (end - start) / chunk_bytes);
        }
        Ok(())
    }

    /// Removes one mapping from each of some chunks.
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

impl Paging for SimDevice {
    fn chunk_bytes(&self) -> u64 {
        self.machine.chunk_bytes
    }

    fn most_range_chunks(&self) -> u64 {
        self.most_range_chunks
    }

    fn create(&mut self, count: u64) -> Result<(), SimError> {
        self.check_failure()?;
        self.space.addresses.check_create()?;
        self.check_allocation(false)?;
        let device_bytes = self.machine.device_bytes;
        let bytes = count.checked_mul(self.machine.chunk_bytes);
        if bytes.is_none_or(|bytes| bytes > device_bytes) {
            return Err(SimError::OutOfDeviceMemory { chunks: count, device_bytes });
        }
        self.space.addresses.create(count);
        Ok(())
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, SimError> {
        self.check_failure()?;
        self.check_allocation(false)?;
        let has_room = chunks <= self.most_range_chunks;
        let at = has_room.then(|| self.space.reserve(chunks)).flatten();
        let at = at.ok_or(SimError::AddressSpace { chunks })?;
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
        for (work, pending) in self.queues.0.iter().flat_map(Queue::pending) {
            let spans = pending.spans();
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

impl SimDevice {
    /// Lets the host be busy with some chunks. Work that it submits later starts after that.
    fn spend_mapping_ns(&mut self, ns_per_chunk: u64, chunks: u64) {
        let ns = ns_per_chunk.saturating_mul(chunks);
        self.clock.spend_ns(ns);
        self.counters.mapping_ns = self.counters.mapping_ns.saturating_add(ns);
    }
}
