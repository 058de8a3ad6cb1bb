//! The host block, and the copies and ops on it that threads run.
#![allow(unsafe_code, reason = "bytes are copied between addresses")]

use super::MappedDevice;
use super::memory::{self, AddressRange};
use crate::HostError;
use backend_checks::{HostFailure, HostOp, HostRun, Refused};
use planner_core::backend::{DeviceAddress, HostLaunch, HostRange, Launch, Transfers};
use std::fmt;

impl MappedDevice {
    /// The address of a range of the host block.
    ///
    /// # Errors
    /// The range is outside the block.
    pub fn host_address(&self, range: HostRange) -> Result<u64, HostError> {
        let none = Refused::NoHostRange(range);
        let end = range.offset_bytes.checked_add(range.bytes).ok_or(none)?;
        let (block, bytes) = self.block.as_ref().ok_or(none)?;
        if end > *bytes { Err(none.into()) } else { Ok(block.start + range.offset_bytes) }
    }

    /// Enqueues an op on [`Stream::Host`](planner_core::Stream::Host), for
    /// [`HostKernels`](planner_core::backend::HostKernels). `work` runs on the thread of that
    /// stream, after all work for which the stream waits, and gets the ranges that the launch
    /// names. The waits of a proved plan keep copies and other ops away from these ranges
    /// meanwhile. Nothing else may touch them.
    ///
    /// If `work` fails or panics, no more copies and ops on the host start. This call and all later
    /// copies and calls of [`Streams`](planner_core::backend::Streams) then report
    /// [`HostError::HostOp`]. If the device is dropped, work that has not begun is skipped, and the
    /// drop waits for work that has begun.
    ///
    /// # Errors
    /// A range is outside the block, ranges overlap, or earlier work has failed.
    pub fn launch_on_host<E: fmt::Display>(
        &mut self,
        launch: &HostLaunch<'_>,
        work: impl FnMut(HostRun<'_>) -> Result<(), E> + Send + 'static,
    ) -> Result<(), HostError> {
        self.progress.check()?;
        let mut ranges = launch.reads.iter().chain(launch.writes.iter());
        ranges.try_for_each(|range| self.host_address(range).map(drop))?;
        let op = HostOp::new(launch, work)?;
        let block = self.block.as_ref().map_or(0, |(block, _)| block.start);
        // SAFETY: the ranges are in the block, which lives as long as the thread. The plan's waits
        // keep other work on them apart.
        unsafe { self.host.run(op, launch.iteration, block) };
        Ok(())
    }

    /// Enqueues a collective on [`Stream::Network`](planner_core::Stream::Network), for kernels whose
    /// launch is on that stream. `work` runs on the thread of that stream, after all work for which
    /// the stream waits. It may use the memory that the launch names, at its addresses: the waits of a
    /// proved plan keep all other work away from it meanwhile.
    ///
    /// If `work` fails or panics, the device fails as after an op on the host.
    ///
    /// # Errors
    /// A thread cannot be started, or earlier work has failed.
    pub fn launch_on_network<E: fmt::Display>(
        &mut self,
        launch: &Launch<'_>,
        work: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> Result<(), HostError> {
        self.progress.check()?;
        let (op, iteration) = (launch.op, launch.iteration);
        self.network()?.exchange(Box::new(move || {
            HostFailure::catch(op, iteration, || work().map_err(|error| error.to_string()))
        }));
        Ok(())
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
        // SAFETY: the bytes are in the block, and the caller has waited for the copies that use
        // them.
        unsafe { memory::copy(from.as_ptr() as u64, at, bytes) };
        Ok(())
    }

    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), HostError> {
        let bytes = into.len() as u64;
        let at = self.host_address(HostRange { offset_bytes, bytes })?;
        // SAFETY: the bytes are in the block, and the caller has waited for the copies that use
        // them.
        unsafe { memory::copy(at, into.as_mut_ptr() as u64, bytes) };
        Ok(())
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), HostError> {
        self.progress.check()?;
        let host = self.host_address(from)?;
        self.addresses.check_mapped(to, from.bytes)?;
        // SAFETY: both ranges exist, and stay until the next signal is reached. The plan's waits
        // keep other work on them apart.
        unsafe { self.uploads.copy(host, to.0, from.bytes) };
        Ok(())
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), HostError> {
        self.progress.check()?;
        let host = self.host_address(to)?;
        self.addresses.check_mapped(from, to.bytes)?;
        // SAFETY: as for an upload.
        unsafe { self.downloads.copy(from.0, host, to.bytes) };
        Ok(())
    }
}
