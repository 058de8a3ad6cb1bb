//! Copies, each enqueued on its stream.

use crate::SimDevice;
use crate::error::SimError;
use crate::work::Work;
use backend_checks::Refused;
use integrity::value;
use planner_core::backend::{DeviceAddress, HostRange, Transfers};
use planner_core::{Graph, HostRooms, Kind, Stream, TensorId};

/// The host's block, as far as the simulator itself puts values there or looks at them.
#[derive(Debug)]
pub(crate) struct HostBlock {
    bytes: u64,
    /// Where the rooms of each tensor begin; those of temporaries are not used.
    rooms: Vec<[u64; 2]>,
}

impl HostBlock {
    /// All of one room of a state or an input.
    pub(crate) fn range(&self, graph: &Graph<'_>, tensor: TensorId, room: u32) -> HostRange {
        let offset_bytes = self.rooms[tensor.index()][room as usize];
        HostRange { tensor, offset_bytes, bytes: graph.tensor(tensor).bytes }
    }
}

impl SimDevice<'_> {
    /// Writes into the host's block, on a device [with real bytes](SimDevice::with_bytes).
    ///
    /// # Errors
    /// Bytes that the block does not have, or that enqueued work uses; and
    /// [`SimError::NoBytes`].
    pub fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), SimError> {
        let range = self.host_bytes(offset_bytes, from.len())?;
        self.check_unused(range)?;
        self.contents.bytes_mut().ok_or(SimError::NoBytes)?.host_mut(range).copy_from_slice(from);
        Ok(())
    }

    /// Reads from the host's block, on a device [with real bytes](SimDevice::with_bytes),
    /// also after an error.
    ///
    /// # Errors
    /// Bytes that the block does not have, and [`SimError::NoBytes`].
    pub fn read_host(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SimError> {
        let range = self.host_bytes(offset_bytes, into.len())?;
        into.copy_from_slice(self.contents.bytes().ok_or(SimError::NoBytes)?.host(range));
        Ok(())
    }

    fn host_bytes(&self, offset_bytes: u64, bytes: usize) -> Result<HostRange, SimError> {
        let range = HostRange { tensor: TensorId(0), offset_bytes, bytes: bytes as u64 };
        let has = self.has_host(offset_bytes, range.bytes);
        has.then_some(range).ok_or(Refused::NoHostRange(range).into())
    }

    fn check_host(&self, range: HostRange) -> Result<(), SimError> {
        let HostRange { tensor, offset_bytes, bytes } = range;
        let is_known = tensor.index() < self.graph.tensors().len();
        if is_known && bytes > 0 && self.has_host(offset_bytes, bytes) {
            Ok(())
        } else {
            Err(Refused::NoHostRange(range).into())
        }
    }

    fn has_host(&self, offset_bytes: u64, bytes: u64) -> bool {
        let block_bytes = self.host.as_ref().map_or(0, |host| host.bytes);
        offset_bytes.checked_add(bytes).is_some_and(|end| end <= block_bytes)
    }
}

impl Transfers for SimDevice<'_> {
    fn create_host(&mut self, rooms: &HostRooms<'_>) -> Result<(), SimError> {
        self.check_failure()?;
        if self.host.is_some() {
            return Err(Refused::HostCreatedTwice.into());
        }
        self.check_allocation(true)?;
        let tensors = self.graph.tensor_ids();
        let starts = tensors.map(|tensor| [0, 1].map(|room| rooms.offset_bytes(tensor, room, 0)));
        self.contents.create_host(rooms.bytes());
        let host = HostBlock { bytes: rooms.bytes(), rooms: starts.collect() };
        for tensor in self.graph.tensor_ids() {
            if self.graph.tensor(tensor).kind == Kind::State {
                let room = host.range(&self.graph, tensor, 0);
                self.contents.fill_host(room, value::initial_state(tensor, room.bytes));
            }
        }
        self.host = Some(host);
        Ok(())
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), SimError> {
        self.check_failure()?;
        self.check_host(from)?;
        let delay = self.delay();
        self.clock.copy(Stream::Upload, from.bytes.saturating_mul(1 + delay));
        self.counters.h2d_bytes += from.bytes;
        self.submit(Stream::Upload, Work::Upload { host: from, device: to, delay })
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), SimError> {
        self.check_failure()?;
        self.check_host(to)?;
        let delay = self.delay();
        self.clock.copy(Stream::Download, to.bytes.saturating_mul(1 + delay));
        self.counters.d2h_bytes += to.bytes;
        self.submit(Stream::Download, Work::Download { host: to, device: from, delay })
    }
}
