//! The host block, and copies that threads carry out.
#![allow(unsafe_code, reason = "bytes are copied between addresses")]

use super::MappedDevice;
use super::memory::{self, AddressRange};
use crate::HostError;
use backend_checks::Refused;
use planner_core::backend::{DeviceAddress, HostRange, Transfers};

impl MappedDevice {
    /// The address of bytes of the host block.
    ///
    /// # Errors
    /// Bytes outside the block.
    pub fn host_address(&self, range: HostRange) -> Result<u64, HostError> {
        let none = Refused::NoHostRange(range);
        let end = range.offset_bytes.checked_add(range.bytes).ok_or(none)?;
        let (block, bytes) = self.block.as_ref().ok_or(none)?;
        if end > *bytes { Err(none.into()) } else { Ok(block.start + range.offset_bytes) }
    }
}

impl Transfers for MappedDevice {
    fn create_host(&mut self, bytes: u64) -> Result<(), HostError> {
        if self.block.is_some() {
            return Err(Refused::HostCreatedTwice.into());
        }
        self.block = Some((AddressRange::allocate(bytes)?, bytes));
        Ok(())
    }

    fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), HostError> {
        let bytes = from.len() as u64;
        let at = self.host_address(HostRange { offset_bytes, bytes })?;
        // SAFETY: the bytes are in the block, and the caller has waited for copies of them.
        unsafe { memory::copy(from.as_ptr() as u64, at, bytes) };
        Ok(())
    }

    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), HostError> {
        let bytes = into.len() as u64;
        let at = self.host_address(HostRange { offset_bytes, bytes })?;
        // SAFETY: the bytes are in the block, and the caller has waited for copies of them.
        unsafe { memory::copy(at, into.as_mut_ptr() as u64, bytes) };
        Ok(())
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), HostError> {
        let host = self.host_address(from)?;
        self.addresses.check_mapped(to, from.bytes)?;
        // SAFETY: both ranges are there, and stay until the next signal is reached; the waits of
        // the plan keep other work on them apart.
        unsafe { self.uploads.copy(host, to.0, from.bytes) };
        Ok(())
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), HostError> {
        let host = self.host_address(to)?;
        self.addresses.check_mapped(from, to.bytes)?;
        // SAFETY: as for an upload.
        unsafe { self.downloads.copy(from.0, host, to.bytes) };
        Ok(())
    }
}
