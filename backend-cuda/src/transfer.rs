//! The host's block, and copies between it and the device.

use crate::CudaDevice;
use crate::driver::{self, Pinned};
use crate::error::CudaError;
use backend_checks::{Refused, fill_states};
use cudarc::driver::CudaContext;
use planner_core::backend::{BackendError, DeviceAddress, ErrorKind, HostRange, Transfers};
use planner_core::{HostRooms, Stream};
use std::ops::Range;
use std::sync::Arc;

/// Pinned host memory, as one block.
#[derive(Debug)]
pub(crate) struct HostBlock {
    bytes: u64,
    /// None for a block without bytes.
    pinned: Option<Pinned>,
}

impl HostBlock {
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: u64) -> Result<Self, CudaError> {
        let pinned = (bytes > 0).then(|| Pinned::new(context, bytes)).transpose();
        let pinned = pinned.map_err(|error| match error.kind() {
            ErrorKind::OutOfDeviceMemory => CudaError::OutOfHostMemory { bytes },
            _ => error,
        })?;
        Ok(Self { bytes, pinned })
    }

    /// What holds some of its bytes, if there are any and it has them.
    fn check(&self, offset_bytes: u64, bytes: u64) -> Result<Option<&Pinned>, Refused> {
        match offset_bytes.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(self.pinned.as_ref()),
            _ => Err(Refused::NoHostBytes { offset_bytes, bytes }),
        }
    }

    fn write(&self, offset_bytes: u64, from: &[u8]) -> Result<(), Refused> {
        if let Some(pinned) = self.check(offset_bytes, from.len() as u64)? {
            pinned.write(offset_bytes, from);
        }
        Ok(())
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), Refused> {
        if let Some(pinned) = self.check(offset_bytes, into.len() as u64)? {
            pinned.read(offset_bytes, into);
        }
        Ok(())
    }
}

impl CudaDevice<'_> {
    /// Writes into the host's block, at once. No enqueued work may use these bytes.
    ///
    /// # Errors
    /// Bytes that the block does not have.
    pub fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), CudaError> {
        Ok(self.host_block(offset_bytes, from.len())?.write(offset_bytes, from)?)
    }

    /// Reads from the host's block. No enqueued work may write these bytes. This works after
    /// any error of the device as well.
    ///
    /// # Errors
    /// Bytes that the block does not have.
    pub fn read_host(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), CudaError> {
        Ok(self.host_block(offset_bytes, into.len())?.read(offset_bytes, into)?)
    }

    /// The block, of which some bytes are wanted.
    fn host_block(&self, offset_bytes: u64, len: usize) -> Result<&HostBlock, Refused> {
        let bytes = len as u64;
        self.host.as_ref().ok_or(Refused::NoHostBytes { offset_bytes, bytes })
    }

    /// The host's end of a copy whose device's end is mapped.
    fn checked_copy(
        &self,
        host: HostRange,
        at: DeviceAddress,
    ) -> Result<(&Pinned, Range<u64>), CudaError> {
        let HostRange { tensor, offset_bytes, bytes } = host;
        let is_known = tensor.index() < self.graph.tensors().len() && bytes > 0;
        let block = self.host.as_ref().filter(|_| is_known);
        let pinned = block.and_then(|block| block.check(offset_bytes, bytes).ok().flatten());
        let pinned = pinned.ok_or(Refused::NoHostRange(host))?;
        self.space.addresses.check_mapped(at, bytes)?;
        Ok((pinned, offset_bytes..offset_bytes + bytes))
    }
}

impl Transfers for CudaDevice<'_> {
    fn create_host(&mut self, rooms: &HostRooms<'_>) -> Result<(), CudaError> {
        if self.host.is_some() {
            return Err(Refused::HostCreatedTwice.into());
        }
        let block = HostBlock::new(&self.context, rooms.bytes())?;
        fill_states(&self.graph, rooms, &mut self.states, |offset_bytes, piece| {
            block.write(offset_bytes, piece)
        })?;
        self.host = Some(block);
        Ok(())
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), CudaError> {
        self.allow_access()?;
        let host = self.checked_copy(from, to)?;
        driver::upload(self.queued[Stream::Upload as usize].stream(), host, to.0)?;
        self.counters.h2d_bytes += from.bytes;
        Ok(())
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), CudaError> {
        self.allow_access()?;
        let host = self.checked_copy(to, from)?;
        driver::download(self.queued[Stream::Download as usize].stream(), from.0, host)?;
        self.counters.d2h_bytes += to.bytes;
        Ok(())
    }
}
