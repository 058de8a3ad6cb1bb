//! Copies, each enqueued on its stream.

use crate::SimDevice;
use crate::error::SimError;
use crate::work::Work;
use planner_core::backend::{DeviceAddress, HostRange, Transfers};
use planner_core::{Kind, Stream};

impl SimDevice<'_> {
    fn check_host(&self, range: HostRange) -> Result<(), SimError> {
        let HostRange { tensor, room, offset_bytes, bytes } = range;
        let inside = self.graph.tensors().get(tensor.index()).is_some_and(|data| {
            let rooms = if data.kind == Kind::Input { 2 } else { 1 };
            let end = offset_bytes.checked_add(bytes);
            room < rooms && bytes > 0 && end.is_some_and(|end| end <= data.bytes)
        });
        if inside { Ok(()) } else { Err(SimError::NoHostRange(range)) }
    }
}

impl Transfers for SimDevice<'_> {
    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), SimError> {
        self.check_failure()?;
        self.check_host(from)?;
        self.clock.copy(Stream::Upload, from.bytes);
        self.counters.h2d_bytes += from.bytes;
        self.submit(Stream::Upload, Work::Upload { host: from, device: to })
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), SimError> {
        self.check_failure()?;
        self.check_host(to)?;
        self.clock.copy(Stream::Download, to.bytes);
        self.counters.d2h_bytes += to.bytes;
        self.submit(Stream::Download, Work::Download { host: to, device: from })
    }
}
