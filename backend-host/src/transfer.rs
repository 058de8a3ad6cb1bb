use crate::{HostDevice, HostError};
use backend_checks::Refused;
use integrity::value;
use planner_core::backend::{DeviceAddress, HostRange, Transfers};
use planner_core::{HostRooms, Kind};

impl HostDevice<'_> {
    /// Bytes of the host's block.
    pub(crate) fn block(&mut self, offset_bytes: u64, bytes: u64) -> Result<&mut [u8], Refused> {
        let none = Refused::NoHostBytes { offset_bytes, bytes };
        let end = offset_bytes.checked_add(bytes).ok_or(none)?;
        let block = self.block.as_mut().ok_or(none)?;
        block.get_mut(offset_bytes as usize..end as usize).ok_or(none)
    }
}

impl Transfers for HostDevice<'_> {
    fn create_host(&mut self, rooms: &HostRooms<'_>) -> Result<(), HostError> {
        if self.block.is_some() {
            return Err(Refused::HostCreatedTwice.into());
        }
        self.block = Some(vec![0; rooms.bytes() as usize]);
        let graph = self.graph;
        for state in graph.tensor_ids().filter(|&id| graph.tensor(id).kind == Kind::State) {
            let bytes = graph.tensor(state).bytes;
            let room = self.block(rooms.offset_bytes(state, 0, 0), bytes)?;
            value::initial_state(state, bytes).fill(0, room);
        }
        Ok(())
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), HostError> {
        let bytes = self.block(from.offset_bytes, from.bytes)?.to_vec();
        Ok(self.pages.write(to, &bytes)?)
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), HostError> {
        self.block(to.offset_bytes, to.bytes)?;
        let bytes = self.pages.read(from, to.bytes)?;
        self.block(to.offset_bytes, to.bytes)?.copy_from_slice(&bytes);
        Ok(())
    }
}
