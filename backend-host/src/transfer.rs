//! The host block, and copies between it and device memory.

use crate::{HostDevice, HostError};
use backend_checks::Refused;
use planner_core::backend::{DeviceAddress, HostRange, Transfers};

impl HostDevice {
    /// The bytes of a range of the host block.
    fn block(&mut self, range: HostRange) -> Result<&mut [u8], Refused> {
        let none = Refused::NoHostRange(range);
        let end = range.offset_bytes.checked_add(range.bytes).ok_or(none)?;
        let block = self.block.as_mut().ok_or(none)?;
        block.get_mut(range.offset_bytes as usize..end as usize).ok_or(none)
    }
}

impl Transfers for HostDevice {
    fn create_host(&mut self, bytes: u64) -> Result<(), HostError> {
        if self.block.is_some() {
            return Err(Refused::HostCreatedTwice.into());
        }
        self.block = Some(vec![0; bytes as usize]);
        Ok(())
    }

    fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), HostError> {
        self.block(HostRange { offset_bytes, bytes: from.len() as u64 })?.copy_from_slice(from);
        Ok(())
    }

    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), HostError> {
        into.copy_from_slice(self.block(HostRange { offset_bytes, bytes: into.len() as u64 })?);
        Ok(())
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), HostError> {
        let bytes = self.block(from)?.to_vec();
        Ok(self.pages.write(to, &bytes)?)
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), HostError> {
        self.block(to)?;
        let mut bytes = vec![0; to.bytes as usize];
        self.pages.read(from, &mut bytes)?;
        self.block(to)?.copy_from_slice(&bytes);
        Ok(())
    }
}
