//! Virtual ranges, each reserved by itself, and chunks, each a handle of the driver's.
//!
//! A chunk is mapped by a call of its own, since a handle can only be mapped from its start.
//! Access is set for all that was mapped side by side at once, before the next work.

use crate::CudaDevice;
use crate::driver::{self, Addresses, Physical};
use crate::error::CudaError;
use cudarc::driver::CudaContext;
use planner_core::backend::{Chunks, DeviceAddress, Paging};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// The virtual address space, and the physical chunks.
#[derive(Debug)]
pub(crate) struct Space {
    chunk_bytes: u64,
    memory_bytes: u64,
    context: Arc<CudaContext>,
    /// What is mapped, by address.
    mapped: BTreeMap<u64, Chunks>,
    /// What is mapped, and not yet accessible.
    closed: Option<Range<u64>>,
    reserved: BTreeMap<u64, Addresses>,
    chunks: Option<Vec<Physical>>,
}

impl Space {
    pub(crate) fn new(context: &Arc<CudaContext>, chunk_bytes: u64, memory_bytes: u64) -> Self {
        Self {
            chunk_bytes,
            memory_bytes,
            context: Arc::clone(context),
            mapped: BTreeMap::new(),
            closed: None,
            reserved: BTreeMap::new(),
            chunks: None,
        }
    }

    fn created(&self) -> u64 {
        self.chunks.as_ref().map_or(0, |chunks| chunks.len() as u64)
    }

    fn end(&self, start: u64, chunks: Chunks) -> u64 {
        start + chunks.count * self.chunk_bytes
    }

    /// Fails unless all of a range is mapped, in one reservation.
    pub(crate) fn check_mapped(&self, at: DeviceAddress, bytes: u64) -> Result<(), CudaError> {
        let not_mapped = CudaError::NotMapped(at);
        let (_, reserved) = self.reserved.range(..=at.0).next_back().ok_or(not_mapped)?;
        let end = at.0.checked_add(bytes).filter(|&end| end <= reserved.end());
        let end = end.ok_or(not_mapped)?;
        let mut next = at.0;
        while next < end {
            let (&start, &chunks) = self.mapped.range(..=next).next_back().ok_or(not_mapped)?;
            let behind = self.end(start, chunks);
            if behind <= next {
                return Err(not_mapped);
            }
            next = behind;
        }
        Ok(())
    }

    fn create(&self, count: u64) -> Result<Vec<Physical>, CudaError> {
        let device_bytes = self.memory_bytes;
        let too_many = CudaError::OutOfDeviceMemory { chunks: count, device_bytes };
        let bytes = count.checked_mul(self.chunk_bytes).filter(|&bytes| bytes <= device_bytes);
        bytes.ok_or(too_many)?;
        (0..count).map(|_| Physical::new(&self.context, self.chunk_bytes)).collect()
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, CudaError> {
        let exhausted = CudaError::AddressSpace { chunks };
        // Half of all addresses: drivers round up, and must not wrap around.
        let bytes = chunks.checked_mul(self.chunk_bytes).filter(|&bytes| bytes > 0);
        let bytes = bytes.filter(|bytes| bytes.leading_zeros() > 0).ok_or(exhausted)?;
        let addresses = Addresses::new(&self.context, bytes)?;
        let start = addresses.start;
        self.reserved.insert(start, addresses);
        Ok(DeviceAddress(start))
    }

    /// The bytes of some chunks at an address that fits a reservation.
    fn reserved_bytes(&self, at: DeviceAddress, chunks: u64) -> Result<u64, CudaError> {
        let inside = || {
            let (&start, reserved) = self.reserved.range(..=at.0).next_back()?;
            let bytes = chunks.checked_mul(self.chunk_bytes).filter(|&bytes| bytes > 0)?;
            let fits = (at.0 - start).is_multiple_of(self.chunk_bytes)
                && at.0.checked_add(bytes)? <= reserved.end();
            fits.then_some(bytes)
        };
        inside().ok_or(CudaError::NotReserved(at))
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), CudaError> {
        let bytes = self.reserved_bytes(at, chunks.count)?;
        let end = chunks.first.saturating_add(chunks.count);
        if end > self.created() {
            return Err(CudaError::UnknownChunk(chunks.first.max(self.created())));
        }
        if let Some((&start, &before)) = self.mapped.range(..at.0 + bytes).next_back()
            && self.end(start, before) > at.0
        {
            return Err(CudaError::AlreadyMapped(DeviceAddress(start.max(at.0))));
        }
        self.map_each(at.0, chunks)?;
        self.mapped.insert(at.0, chunks);
        Ok(())
    }

    /// Maps chunks one by one: all of them or, where the driver refuses one, none.
    fn map_each(&self, at: u64, chunks: Chunks) -> Result<(), CudaError> {
        let bytes = self.chunk_bytes;
        let physical = self.chunks.iter().flatten().skip(chunks.first as usize);
        for (place, chunk) in (0..chunks.count).zip(physical) {
            if let Err(error) = driver::map(&self.context, at + place * bytes, bytes, chunk) {
                if place > 0 {
                    driver::unmap(&self.context, at, place * bytes)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether a range begins where another ends, in the same reservation.
    fn continues(&self, closed: &Range<u64>, at: u64) -> bool {
        closed.end == at && !self.reserved.contains_key(&at)
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), CudaError> {
        let bytes = self.reserved_bytes(at, chunks)?;
        self.check_mapped(at, bytes)?;
        let starts: Vec<_> = self.mapped.range(at.0..at.0 + bytes).collect();
        let is_whole = starts.first().is_some_and(|&(&start, _)| start == at.0)
            && starts.last().is_some_and(|&(&start, &last)| self.end(start, last) == at.0 + bytes);
        if !is_whole {
            return Err(CudaError::PartOfMapping(at));
        }
        driver::unmap(&self.context, at.0, bytes)?;
        let starts: Vec<_> = starts.into_iter().map(|(&start, _)| start).collect();
        for start in starts {
            self.mapped.remove(&start);
        }
        Ok(())
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        for (&start, &chunks) in &self.mapped {
            // Where the device is lost, nothing is mapped any more.
            let _ = driver::unmap(&self.context, start, chunks.count * self.chunk_bytes);
        }
    }
}

impl CudaDevice<'_> {
    /// Lets the device read and write all that is mapped.
    pub(crate) fn allow_access(&mut self) -> Result<(), CudaError> {
        let Some(Range { start, end }) = self.space.closed.clone() else { return Ok(()) };
        self.timed(|space| driver::set_access(&space.context, start, end - start))?;
        self.counters.access_calls += 1;
        self.space.closed = None;
        Ok(())
    }

    /// Does something with the address space; the host's time counts as mapping.
    fn timed<T>(
        &mut self,
        act: impl FnOnce(&mut Space) -> Result<T, CudaError>,
    ) -> Result<T, CudaError> {
        let start = Instant::now();
        let done = act(&mut self.space);
        self.counters.mapping_ns += start.elapsed().as_nanos() as u64;
        done
    }

    fn check_uncaptured(&self) -> Result<(), CudaError> {
        if self.captured_from.is_some() { Err(CudaError::MappedInGraph) } else { Ok(()) }
    }
}

impl Paging for CudaDevice<'_> {
    fn chunk_bytes(&self) -> u64 {
        self.space.chunk_bytes
    }

    fn create(&mut self, count: u64) -> Result<(), CudaError> {
        if self.space.chunks.is_some() {
            return Err(CudaError::CreatedTwice);
        }
        self.space.chunks = Some(self.space.create(count)?);
        Ok(())
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, CudaError> {
        let at = self.space.reserve(chunks)?;
        self.counters.ranges += 1;
        Ok(at)
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), CudaError> {
        self.check_uncaptured()?;
        let closed = self.space.closed.clone();
        let start = match closed {
            Some(closed) if self.space.continues(&closed, at.0) => closed.start,
            _ => {
                self.allow_access()?;
                at.0
            }
        };
        self.timed(|space| space.map(at, chunks))?;
        self.space.closed = Some(start..self.space.end(at.0, chunks));
        self.counters.map_calls += 1;
        self.counters.chunks_mapped += chunks.count;
        Ok(())
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), CudaError> {
        self.check_uncaptured()?;
        self.allow_access()?;
        self.timed(|space| space.unmap(at, chunks))?;
        self.counters.unmap_calls += 1;
        Ok(())
    }
}
