//! Chunks and addresses: each mapping of the device is a mapping of the system.
#![allow(unsafe_code, reason = "memory is mapped by the system")]

use super::MappedDevice;
use super::memory::{self, AddressRange};
use crate::HostError;
use backend_checks::Refused;
use planner_core::backend::{Chunks, DeviceAddress, Paging};

impl Paging for MappedDevice {
    fn chunk_bytes(&self) -> u64 {
        self.addresses.chunk_bytes()
    }

    fn create(&mut self, count: u64) -> Result<(), HostError> {
        self.addresses.check_create()?;
        let bytes = count.checked_mul(self.chunk_bytes());
        let bytes = bytes.filter(|&bytes| bytes <= self.device_bytes);
        let bytes = bytes.ok_or(HostError::OutOfDeviceMemory)?;
        self.pages = Some(memory::create_pages(bytes)?);
        self.created_bytes = bytes;
        self.addresses.create(count);
        Ok(())
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, HostError> {
        let bytes = self.addresses.bytes(chunks).ok_or(HostError::AddressSpace)?;
        let range = AddressRange::reserve(bytes)?;
        let at = DeviceAddress(range.start);
        self.addresses.reserve(at, bytes, range);
        Ok(at)
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), HostError> {
        self.addresses.check_map(at, chunks)?;
        let pages = self.pages.as_ref().ok_or(Refused::UnknownChunk(chunks.first))?;
        let [offset, bytes] =
            [chunks.first, chunks.count].map(|chunks| chunks * self.chunk_bytes());
        // SAFETY: the addresses are reserved, and nothing is mapped there yet.
        unsafe { memory::map(pages, offset, at.0, bytes)? };
        self.addresses.map(at, chunks);
        Ok(())
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), HostError> {
        self.addresses.check_unmap(at, chunks)?;
        // SAFETY: the addresses are reserved, and no enqueued work uses them.
        unsafe { memory::unmap(at.0, chunks * self.chunk_bytes())? };
        self.addresses.unmap(at, chunks);
        Ok(())
    }
}
