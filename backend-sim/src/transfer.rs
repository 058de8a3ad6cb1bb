//! The host block and the copies, each enqueued on its stream.

use crate::SimDevice;
use crate::error::SimError;
use crate::stream::Queue;
use crate::work::Work;
use backend_checks::Refused;
use integrity::{Reading, Value};
use planner_core::backend::{DeviceAddress, HostRange, Transfers};
use planner_core::{Stream, TensorId};

impl SimDevice {
    /// Writes a tensor's value into the host block, as [`Transfers::write_host`] writes bytes.
    ///
    /// # Errors
    /// A range outside the block, [`SimError::HostInUse`], and failures of earlier work.
    pub fn write_value(
        &mut self,
        to: HostRange,
        tensor: TensorId,
        value: Value,
    ) -> Result<(), SimError> {
        self.check_failure()?;
        self.check_host(to)?;
        self.check_unused(to)?;
        self.contents.write_host(to, tensor, value);
        Ok(())
    }

    /// Reads a tensor's host copy.
    ///
    /// # Errors
    /// A range outside the block, [`SimError::HostCopy`] if the range is not one complete version
    /// of the tensor, and failures of earlier work.
    pub fn read_value(&self, from: HostRange, tensor: TensorId) -> Result<Reading, SimError> {
        self.check_failure()?;
        self.check_host(from)?;
        self.contents.read_host(from, tensor)
    }

    fn check_host(&self, range: HostRange) -> Result<(), SimError> {
        let HostRange { offset_bytes, bytes } = range;
        let end = offset_bytes.checked_add(bytes);
        let is_inside = end.zip(self.host_bytes).is_some_and(|(end, block)| end <= block);
        if is_inside { Ok(()) } else { Err(Refused::NoHostRange(range).into()) }
    }

    /// Checks that a copy or an op on the host can use this range.
    pub(crate) fn check_copy(&self, range: HostRange) -> Result<(), SimError> {
        if range.bytes == 0 {
            return Err(Refused::NoHostRange(range).into());
        }
        self.check_host(range)
    }

    /// Checks that the host may write this range now.
    fn check_unused(&self, range: HostRange) -> Result<(), SimError> {
        let used = |host: HostRange| {
            let (start, end) = (host.offset_bytes, host.offset_bytes + host.bytes);
            start < range.offset_bytes + range.bytes && range.offset_bytes < end
        };
        for (work, pending) in self.queues.0.iter().flat_map(Queue::pending) {
            if !self.is_forgiving && pending.host().iter().any(|span| used(span.range)) {
                return Err(SimError::HostInUse { range, work });
            }
        }
        Ok(())
    }
}

impl Transfers for SimDevice {
    fn create_host(&mut self, bytes: u64) -> Result<(), SimError> {
        self.check_failure()?;
        if self.host_bytes.is_some() {
            return Err(Refused::HostCreatedTwice.into());
        }
        self.check_allocation(true)?;
        self.host_bytes = Some(bytes);
        Ok(())
    }

    /// Works on a device [with real bytes](SimDevice::with_bytes). Other devices return
    /// [`SimError::NoBytes`] and have [`write_value`](SimDevice::write_value) instead. Returns
    /// [`SimError::HostInUse`] if enqueued work uses the bytes.
    fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), SimError> {
        let range = HostRange { offset_bytes, bytes: from.len() as u64 };
        self.check_host(range)?;
        self.check_unused(range)?;
        self.contents.bytes_mut().ok_or(SimError::NoBytes)?.write_host(offset_bytes, from);
        Ok(())
    }

    /// Works on a device [with real bytes](SimDevice::with_bytes). Other devices return
    /// [`SimError::NoBytes`] and have [`read_value`](SimDevice::read_value) instead.
    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SimError> {
        let range = HostRange { offset_bytes, bytes: into.len() as u64 };
        self.check_host(range)?;
        self.contents.bytes().ok_or(SimError::NoBytes)?.read_host(offset_bytes, into);
        Ok(())
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), SimError> {
        self.check_failure()?;
        self.check_copy(from)?;
        let delay = self.delay();
        self.clock.copy(Stream::Upload, from.bytes.saturating_mul(1 + delay));
        self.counters.h2d_bytes += from.bytes;
        self.submit(Stream::Upload, Work::Upload { host: from, device: to, delay })
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), SimError> {
        self.check_failure()?;
        self.check_copy(to)?;
        let delay = self.delay();
        self.clock.copy(Stream::Download, to.bytes.saturating_mul(1 + delay));
        self.counters.d2h_bytes += to.bytes;
        self.submit(Stream::Download, Work::Download { host: to, device: from, delay })
    }
}
