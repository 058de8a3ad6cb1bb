//! Chunks and addresses: a mapping is an entry in a table.

use crate::{HostDevice, HostError};
use backend_checks::{AddressMap, Refused};
use planner_core::backend::{Chunks, DeviceAddress, Paging};

/// The device's memory, and the addresses at which it is mapped.
#[derive(Debug)]
pub(crate) struct Pages {
    device_bytes: u64,
    memory: Vec<u8>,
    next_free: u64,
    addresses: AddressMap<()>,
}

impl Pages {
    pub(crate) fn new(chunk_bytes: u64, device_bytes: u64) -> Self {
        let addresses = AddressMap::new(chunk_bytes);
        // Address 0 stays free.
        Self { device_bytes, memory: Vec::new(), next_free: chunk_bytes, addresses }
    }

    pub(crate) fn read(&self, at: DeviceAddress, mut into: &mut [u8]) -> Result<(), Refused> {
        for part in self.addresses.physical(at, into.len() as u64)? {
            let (first, rest) = into.split_at_mut((part.end - part.start) as usize);
            first.copy_from_slice(&self.memory[part.start as usize..part.end as usize]);
            into = rest;
        }
        Ok(())
    }

    pub(crate) fn write(&mut self, at: DeviceAddress, mut from: &[u8]) -> Result<(), Refused> {
        for part in self.addresses.physical(at, from.len() as u64)? {
            let (first, rest) = from.split_at((part.end - part.start) as usize);
            self.memory[part.start as usize..part.end as usize].copy_from_slice(first);
            from = rest;
        }
        Ok(())
    }
}

impl Paging for HostDevice {
    fn chunk_bytes(&self) -> u64 {
        self.pages.addresses.chunk_bytes()
    }

    fn create(&mut self, count: u64) -> Result<(), HostError> {
        self.pages.addresses.check_create()?;
        if count > self.pages.device_bytes / self.chunk_bytes() {
            return Err(HostError::OutOfDeviceMemory);
        }
        self.pages.memory = vec![0; (count * self.chunk_bytes()) as usize];
        self.pages.addresses.create(count);
        Ok(())
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, HostError> {
        let at = self.pages.next_free;
        let bytes = self.pages.addresses.bytes(chunks).ok_or(HostError::AddressSpace)?;
        let end = at.checked_add(bytes).ok_or(HostError::AddressSpace)?;
        // One chunk stays free after each range, so that no two ranges touch.
        let next_free = end.checked_add(self.chunk_bytes()).ok_or(HostError::AddressSpace)?;
        self.pages.next_free = next_free;
        self.pages.addresses.reserve(DeviceAddress(at), bytes, ());
        Ok(DeviceAddress(at))
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), HostError> {
        self.pages.addresses.check_map(at, chunks)?;
        self.pages.addresses.map(at, chunks);
        Ok(())
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), HostError> {
        self.pages.addresses.check_unmap(at, chunks)?;
        self.pages.addresses.unmap(at, chunks);
        Ok(())
    }
}
