use crate::error::refused;
use crate::{HostDevice, HostError};
use planner_core::backend::{Chunks, DeviceAddress, ErrorKind, Paging};
use std::collections::BTreeMap;

/// Chunks, and a table of where they are mapped.
#[derive(Debug)]
pub(crate) struct Pages {
    chunk_bytes: u64,
    device_bytes: u64,
    chunks: Vec<Vec<u8>>,
    /// Ends of all ranges, by where they start.
    ranges: BTreeMap<u64, u64>,
    /// The chunk at an address, and the address at which its mapping starts.
    mapped: BTreeMap<u64, (usize, u64)>,
}

impl Pages {
    pub(crate) fn new(chunk_bytes: u64, device_bytes: u64) -> Self {
        Self {
            chunk_bytes,
            device_bytes,
            chunks: Vec::new(),
            ranges: BTreeMap::new(),
            mapped: BTreeMap::new(),
        }
    }

    /// The parts of a range: each a chunk, where it begins there, and how long it is.
    fn parts(
        &self,
        at: DeviceAddress,
        bytes: u64,
    ) -> Result<Vec<(usize, usize, usize)>, HostError> {
        let none = refused("not all of this is mapped");
        let end = at.0.checked_add(bytes).ok_or(none)?;
        let (mut parts, mut next) = (Vec::new(), at.0);
        while next < end {
            let offset = next % self.chunk_bytes;
            let length = (self.chunk_bytes - offset).min(end - next);
            let &(chunk, _) = self.mapped.get(&(next - offset)).ok_or(none)?;
            parts.push((chunk, offset as usize, length as usize));
            next += length;
        }
        Ok(parts)
    }

    pub(crate) fn read(&self, at: DeviceAddress, bytes: u64) -> Result<Vec<u8>, HostError> {
        let parts = self.parts(at, bytes)?;
        let parts =
            parts.iter().map(|&(chunk, from, length)| &self.chunks[chunk][from..][..length]);
        Ok(parts.collect::<Vec<_>>().concat())
    }

    pub(crate) fn write(&mut self, at: DeviceAddress, mut from: &[u8]) -> Result<(), HostError> {
        for (chunk, to, length) in self.parts(at, from.len() as u64)? {
            let (first, rest) = from.split_at(length);
            self.chunks[chunk][to..][..length].copy_from_slice(first);
            from = rest;
        }
        Ok(())
    }

    /// Where some chunks at an address end, if they lie in a range.
    fn end(&self, at: DeviceAddress, chunks: u64) -> Result<u64, HostError> {
        let end = || {
            let end = at.0.checked_add(chunks.checked_mul(self.chunk_bytes)?)?;
            let (_, &range_end) = self.ranges.range(..=at.0).next_back()?;
            (at.0.is_multiple_of(self.chunk_bytes) && end <= range_end).then_some(end)
        };
        end().ok_or(refused("no range has such chunks"))
    }
}

impl Paging for HostDevice<'_> {
    fn chunk_bytes(&self) -> u64 {
        self.pages.chunk_bytes
    }

    fn create(&mut self, count: u64) -> Result<(), HostError> {
        if count > self.pages.device_bytes / self.pages.chunk_bytes {
            return Err(HostError(ErrorKind::OutOfDeviceMemory, "the device is too small"));
        }
        self.pages.chunks = vec![vec![0; self.pages.chunk_bytes as usize]; count as usize];
        Ok(())
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, HostError> {
        let chunk_bytes = self.pages.chunk_bytes;
        // A chunk is left out behind each range, and address 0 before the first.
        let last = self.pages.ranges.last_key_value().map_or(0, |(_, &end)| end);
        let start = last + chunk_bytes;
        let end = chunks.checked_mul(chunk_bytes).and_then(|bytes| start.checked_add(bytes));
        let end = end
            .filter(|&end| end < u64::MAX - chunk_bytes)
            .ok_or(refused("there are no addresses left"))?;
        self.pages.ranges.insert(start, end);
        Ok(DeviceAddress(start))
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), HostError> {
        let end = self.pages.end(at, chunks.count)?;
        if chunks.first.saturating_add(chunks.count) > self.pages.chunks.len() as u64 {
            return Err(refused("there are no such chunks"));
        }
        if self.pages.mapped.range(at.0..end).next().is_some() {
            return Err(refused("something is mapped there"));
        }
        let pages = (at.0..end).step_by(self.pages.chunk_bytes as usize);
        for (page, chunk) in pages.zip(chunks.first as usize..) {
            self.pages.mapped.insert(page, (chunk, at.0));
        }
        Ok(())
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), HostError> {
        let end = self.pages.end(at, chunks)?;
        let inside = self.pages.mapped.range(at.0..end).count() as u64;
        let starts =
            |page: u64| self.pages.mapped.get(&page).is_none_or(|&(_, start)| start == page);
        if inside != chunks || !starts(at.0) || !starts(end) {
            return Err(refused("this is no whole mapping"));
        }
        self.pages.mapped.retain(|page, _| !(at.0..end).contains(page));
        Ok(())
    }
}
