//! The host's block, and copies between it and the device.

use crate::CudaDevice;
use crate::driver::{self, Pinned};
use crate::error::CudaError;
use backend_checks::Refused;
use cudarc::driver::CudaContext;
use planner_core::backend::{BackendError, DeviceAddress, ErrorKind, HostRange, Transfers};
use planner_core::{HostRooms, Kind, Stream};
use std::ops::Range;
use std::sync::Arc;

/// States are written in pieces of this size.
const PIECE_BYTES: u64 = 1 << 20;

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

    /// A range of the block; none if the block has no such bytes.
    fn range(&self, offset_bytes: u64, bytes: u64) -> Option<(&Pinned, Range<u64>)> {
        let end = offset_bytes.checked_add(bytes).filter(|&end| end <= self.bytes)?;
        Some((self.pinned.as_ref()?, offset_bytes..end))
    }
}

impl CudaDevice<'_> {
    /// Writes into the host's block, at once. No enqueued work may use these bytes.
    ///
    /// # Errors
    /// Bytes that the block does not have.
    pub fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), CudaError> {
        if let Some(pinned) = self.checked_host(offset_bytes, from.len())? {
            pinned.write(offset_bytes, from);
        }
        Ok(())
    }

    /// Reads from the host's block. No enqueued work may write these bytes. This works after
    /// any error of the device as well.
    ///
    /// # Errors
    /// Bytes that the block does not have.
    pub fn read_host(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), CudaError> {
        if let Some(pinned) = self.checked_host(offset_bytes, into.len())? {
            pinned.read(offset_bytes, into);
        }
        Ok(())
    }

    /// The block for bytes that it has; none where there are no bytes to speak of.
    fn checked_host(&self, offset_bytes: u64, len: usize) -> Result<Option<&Pinned>, CudaError> {
        let bytes = len as u64;
        let host = self
            .host
            .as_ref()
            .filter(|host| offset_bytes.checked_add(bytes).is_some_and(|end| end <= host.bytes));
        let host = host.ok_or(Refused::NoHostBytes { offset_bytes, bytes })?;
        Ok(host.pinned.as_ref())
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
        let range = block.and_then(|block| block.range(offset_bytes, bytes));
        let range = range.ok_or(Refused::NoHostRange(host))?;
        self.space.addresses.check_mapped(at, bytes)?;
        Ok(range)
    }
}

impl Transfers for CudaDevice<'_> {
    fn create_host(&mut self, rooms: &HostRooms<'_>) -> Result<(), CudaError> {
        if self.host.is_some() {
            return Err(Refused::HostCreatedTwice.into());
        }
        let block = HostBlock::new(&self.context, rooms.bytes())?;
        let mut piece = Vec::new();
        for (tensor, properties) in self.graph.tensor_ids().zip(self.graph.tensors()) {
            if properties.kind != Kind::State {
                continue;
            }
            for first in (0..properties.bytes).step_by(PIECE_BYTES as usize) {
                piece.resize((properties.bytes - first).min(PIECE_BYTES) as usize, 0);
                (self.states)(tensor, first, &mut piece);
                let (offset_bytes, bytes) =
                    (rooms.offset_bytes(tensor, 0, first), piece.len() as u64);
                let range = block.range(offset_bytes, bytes);
                let (pinned, _) = range.ok_or(Refused::NoHostBytes { offset_bytes, bytes })?;
                pinned.write(offset_bytes, &piece);
            }
        }
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
