//! The host block, and copies between it and the device.

use crate::CudaDevice;
use crate::driver::{self, Context, Pinned};
use crate::error::CudaError;
use backend_checks::Refused;
use planner_core::Stream;
use planner_core::backend::{BackendError, DeviceAddress, ErrorKind, HostRange, Transfers};
use std::ops::Range;

/// Pinned host memory, as one block.
#[derive(Debug)]
pub(crate) struct HostBlock {
    bytes: u64,
    /// `None` for a block without bytes.
    pinned: Option<Pinned>,
}

impl HostBlock {
    pub(crate) fn new(context: Context, bytes: u64) -> Result<Self, CudaError> {
        let pinned = (bytes > 0).then(|| Pinned::new(context, bytes)).transpose();
        let pinned = pinned.map_err(|error| match error.kind() {
            ErrorKind::OutOfDeviceMemory => CudaError::OutOfHostMemory { bytes },
            _ => error,
        })?;
        Ok(Self { bytes, pinned })
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The memory of a range, which must lie in the block. `None` for a block without bytes.
    fn check(&self, range: HostRange) -> Result<Option<&Pinned>, Refused> {
        match range.offset_bytes.checked_add(range.bytes) {
            Some(end) if end <= self.bytes => Ok(self.pinned.as_ref()),
            _ => Err(Refused::NoHostRange(range)),
        }
    }
}

impl CudaDevice {
    /// The host memory behind a range. `None` for a block without bytes.
    fn pinned(&self, range: HostRange) -> Result<Option<&Pinned>, Refused> {
        self.host.as_ref().ok_or(Refused::NoHostRange(range))?.check(range)
    }

    /// The address of a range of the host block, for kernels that fill inputs.
    ///
    /// # Errors
    /// The range is outside the block.
    pub fn host_address(&self, range: HostRange) -> Result<u64, CudaError> {
        let HostRange { offset_bytes, bytes } = range;
        let pinned = self.pinned(range)?.ok_or(Refused::NoHostRange(range))?;
        Ok(pinned.address(&(offset_bytes..offset_bytes + bytes)))
    }

    /// The memory on the host for a copy. Checks that the range on the device is mapped.
    fn checked_copy(
        &self,
        host: HostRange,
        at: DeviceAddress,
    ) -> Result<(&Pinned, Range<u64>), CudaError> {
        let HostRange { offset_bytes, bytes } = host;
        let pinned = self.pinned(host)?.filter(|_| bytes > 0);
        let pinned = pinned.ok_or(Refused::NoHostRange(host))?;
        self.space.addresses.check_mapped(at, bytes)?;
        Ok((pinned, offset_bytes..offset_bytes + bytes))
    }
}

impl Transfers for CudaDevice {
    fn create_host(&mut self, bytes: u64) -> Result<(), CudaError> {
        if self.host.is_some() {
            return Err(Refused::HostCreatedTwice.into());
        }
        self.host = Some(HostBlock::new(self.context, bytes)?);
        Ok(())
    }

    fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), CudaError> {
        let range = HostRange { offset_bytes, bytes: from.len() as u64 };
        if let Some(pinned) = self.pinned(range)? {
            pinned.write(offset_bytes, from);
        }
        Ok(())
    }

    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), CudaError> {
        let range = HostRange { offset_bytes, bytes: into.len() as u64 };
        if let Some(pinned) = self.pinned(range)? {
            pinned.read(offset_bytes, into);
        }
        Ok(())
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), CudaError> {
        self.check_host_ops()?;
        self.allow_access()?;
        let host = self.checked_copy(from, to)?;
        driver::upload(self.queued[Stream::Upload as usize].stream(), host, to.0)?;
        self.counters.copies += 1;
        self.counters.h2d_bytes += from.bytes;
        Ok(())
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), CudaError> {
        self.check_host_ops()?;
        self.allow_access()?;
        let host = self.checked_copy(to, from)?;
        driver::download(self.queued[Stream::Download as usize].stream(), from.0, host)?;
        self.counters.copies += 1;
        self.counters.d2h_bytes += to.bytes;
        Ok(())
    }
}
