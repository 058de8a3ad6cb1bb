//! Virtual ranges, which are parts of a few reservations, and chunks, each a handle of the driver.
//!
//! A call maps only one chunk, since a handle can only be mapped from its start. One call sets
//! access for all chunks that were mapped side by side, before the next work.

use crate::CudaDevice;
use crate::driver::{self, Addresses, Context, Physical};
use crate::error::CudaError;
use backend_checks::AddressMap;
use planner_core::backend::{Chunks, DeviceAddress, Paging};
use std::mem;
use std::ops::Range;
use std::time::Instant;

/// The fewest addresses of a reservation. A reservation for each range would make tens of thousands
/// of calls.
const RESERVED_BYTES: u64 = 1 << 34;

/// The virtual address space, and the physical chunks.
#[derive(Debug)]
pub(crate) struct Space {
    memory_bytes: u64,
    context: Context,
    /// The range that is mapped but not yet accessible.
    closed: Option<Range<u64>>,
    pub(crate) addresses: AddressMap<()>,
    /// The reservations of which the ranges are parts.
    reserved: Vec<Addresses>,
    /// The rest of the last reservation.
    rest: Range<u64>,
    chunks: Vec<Physical>,
}

impl Space {
    pub(crate) fn new(context: Context, chunk_bytes: u64, memory_bytes: u64) -> Self {
        Self {
            memory_bytes,
            context,
            closed: None,
            addresses: AddressMap::new(chunk_bytes),
            reserved: Vec::new(),
            rest: 0..0,
            chunks: Vec::new(),
        }
    }

    fn create(&mut self, count: u64) -> Result<(), CudaError> {
        self.addresses.check_create()?;
        let chunk_bytes = self.addresses.chunk_bytes();
        let device_bytes = self.memory_bytes;
        let too_many = CudaError::OutOfDeviceMemory { chunks: count, device_bytes };
        let bytes = count.checked_mul(chunk_bytes).filter(|&bytes| bytes <= device_bytes);
        bytes.ok_or(too_many)?;
        let chunks = (0..count).map(|_| Physical::new(self.context, chunk_bytes));
        self.chunks = chunks.collect::<Result<_, _>>()?;
        self.addresses.create(count);
        Ok(())
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, CudaError> {
        let exhausted = CudaError::AddressSpace { chunks };
        // At most half of all addresses: drivers round up, and must not wrap around.
        let bytes = self.addresses.bytes(chunks).filter(|bytes| bytes.leading_zeros() > 0);
        let bytes = bytes.ok_or(exhausted)?;
        if self.rest.end - self.rest.start < bytes {
            let least = RESERVED_BYTES.next_multiple_of(self.addresses.chunk_bytes());
            let reserved = Addresses::new(self.context, bytes.max(least))?;
            self.rest = reserved.range();
            self.reserved.push(reserved);
        }
        let at = DeviceAddress(self.rest.start);
        self.rest.start += bytes;
        self.addresses.reserve(at, bytes, ());
        Ok(at)
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), CudaError> {
        self.addresses.check_map(at, chunks)?;
        self.map_each(at.0, chunks)?;
        self.addresses.map(at, chunks);
        Ok(())
    }

    /// Maps chunks one by one. If the driver refuses one, no chunk stays mapped.
    fn map_each(&self, at: u64, chunks: Chunks) -> Result<(), CudaError> {
        let bytes = self.addresses.chunk_bytes();
        let physical = self.chunks.iter().skip(chunks.first as usize);
        for (place, chunk) in (0..chunks.count).zip(physical) {
            if let Err(error) = driver::map(self.context, at + place * bytes, bytes, chunk) {
                if place > 0 {
                    driver::unmap(self.context, at, place * bytes)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether a range begins where another ends, in the same reservation.
    fn continues(&self, closed: &Range<u64>, at: DeviceAddress) -> bool {
        closed.end == at.0 && !self.addresses.begins(at)
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), CudaError> {
        self.addresses.check_unmap(at, chunks)?;
        driver::unmap(self.context, at.0, chunks * self.addresses.chunk_bytes())?;
        self.addresses.unmap(at, chunks);
        Ok(())
    }
}

impl Space {
    /// Gives up all chunks, ranges and mappings without freeing them.
    pub(crate) fn leak(&mut self) {
        mem::forget((mem::take(&mut self.chunks), mem::take(&mut self.reserved)));
        self.addresses = AddressMap::new(self.addresses.chunk_bytes());
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        for (at, bytes) in self.addresses.mappings() {
            // If the device is lost, nothing is mapped any more.
            let _ = driver::unmap(self.context, at.0, bytes);
        }
    }
}

impl CudaDevice {
    /// The bytes of all chunks that were created.
    #[must_use]
    pub const fn created_bytes(&self) -> u64 {
        self.space.chunks.len() as u64 * self.space.addresses.chunk_bytes()
    }

    /// Lets the device read and write all mapped memory.
    pub(crate) fn allow_access(&mut self) -> Result<(), CudaError> {
        let Some(Range { start, end }) = self.space.closed.clone() else { return Ok(()) };
        self.timed(|space| driver::set_access(space.context, start, end - start))?;
        self.counters.access_calls += 1;
        self.space.closed = None;
        Ok(())
    }

    /// Runs a call on the address space. Its time on the host counts as mapping.
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
        if self.is_capturing() { Err(CudaError::MappedInGraph) } else { Ok(()) }
    }
}

impl Paging for CudaDevice {
    fn chunk_bytes(&self) -> u64 {
        self.space.addresses.chunk_bytes()
    }

    fn create(&mut self, count: u64) -> Result<(), CudaError> {
        self.space.create(count)
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
            Some(closed) if self.space.continues(&closed, at) => closed.start,
            _ => {
                self.allow_access()?;
                at.0
            }
        };
        self.timed(|space| space.map(at, chunks))?;
        self.space.closed = Some(start..at.0 + chunks.count * self.chunk_bytes());
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
