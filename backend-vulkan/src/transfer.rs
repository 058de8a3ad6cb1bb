//! The host block, and copies between it and the device.

use crate::VulkanDevice;
use crate::driver::{Buffer, BufferRange, Device, HostTask, Memory, Segments};
use crate::error::VulkanError;
use backend_checks::{HostOp, HostRun, Refused};
use planner_core::Stream;
use planner_core::backend::{DeviceAddress, HostLaunch, HostRange, Transfers};
use std::fmt;
use std::sync::Arc;

/// The size of a segment of the block. Drivers limit the size of one allocation.
const SEGMENT_BYTES: u64 = 1 << 30;

/// The host memory for the device's copies, as one block.
#[derive(Debug)]
pub(crate) struct HostBlock {
    bytes: u64,
    segment_bytes: u64,
    segments: Vec<(Buffer, Memory)>,
    /// The segments' addresses, for ops on the host.
    addresses: Arc<Segments>,
}

impl HostBlock {
    fn new(device: &Arc<Device>, bytes: u64) -> Result<Self, VulkanError> {
        let limits = &device.physical;
        let most_bytes = limits.max_allocation_bytes.min(limits.max_buffer_bytes);
        let segment_bytes = SEGMENT_BYTES.min(most_bytes);
        if bytes > device.physical.host_memory_bytes() {
            return Err(VulkanError::OutOfHostMemory { bytes });
        }
        let (mut segments, mut starts) = (Vec::new(), Vec::new());
        let mut left = bytes;
        while left > 0 {
            let bytes = left.min(segment_bytes);
            let memory_type = |bits| device.physical.memory_type_of_host(bits);
            let segment = Buffer::with_memory(device, bytes, true, memory_type);
            let (buffer, memory) = segment.map_err(|error| error.on_host(bytes))?;
            starts.push(memory.address());
            segments.push((buffer, memory));
            left -= bytes;
        }
        let addresses = Arc::new(Segments { starts, bytes: segment_bytes });
        Ok(Self { bytes, segment_bytes, segments, addresses })
    }

    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The parts of a range: the segment, the offset in it, and the number of bytes.
    fn parts(
        &self,
        offset_bytes: u64,
        bytes: u64,
    ) -> impl Iterator<Item = (usize, u64, u64)> + use<> {
        let (segment_bytes, end) = (self.segment_bytes, offset_bytes + bytes);
        let mut next = offset_bytes;
        std::iter::from_fn(move || {
            let (segment, offset) = (next / segment_bytes, next % segment_bytes);
            let bytes = (segment_bytes - offset).min(end - next);
            next += bytes;
            (bytes > 0).then_some((segment as usize, offset, bytes))
        })
    }

    /// Writes bytes inside the block.
    fn write(&mut self, offset_bytes: u64, mut from: &[u8]) {
        for (segment, offset, bytes) in self.parts(offset_bytes, from.len() as u64) {
            let (first, rest) = from.split_at(bytes as usize);
            self.segments[segment].1.write(offset, first);
            from = rest;
        }
    }

    /// Reads bytes inside the block.
    fn read(&self, offset_bytes: u64, mut into: &mut [u8]) {
        for (segment, offset, bytes) in self.parts(offset_bytes, into.len() as u64) {
            let (first, rest) = into.split_at_mut(bytes as usize);
            self.segments[segment].1.read(offset, first);
            into = rest;
        }
    }
}

impl VulkanDevice {
    /// The block, if it contains the range.
    fn block(&self, range: HostRange) -> Result<&HostBlock, Refused> {
        let end = range.offset_bytes.checked_add(range.bytes);
        let block = self.host.as_ref().filter(|block| end.is_some_and(|end| end <= block.bytes));
        block.ok_or(Refused::NoHostRange(range))
    }

    /// The copies between a host range and an address, each as the host's range and the device's
    /// range.
    fn copies(&self, host: HostRange, at: DeviceAddress) -> Result<Vec<Pair>, VulkanError> {
        let HostRange { offset_bytes, bytes } = host;
        let block = self.block(host)?;
        if bytes == 0 {
            return Err(Refused::NoHostRange(host).into());
        }
        let mut device = self.space.range(at, bytes)?;
        let parts = block.parts(offset_bytes, bytes).map(|(segment, offset_bytes, bytes)| {
            let buffer = block.segments[segment].0.raw;
            let here = BufferRange { buffer, offset_bytes, bytes, ..device };
            let there = BufferRange { bytes, ..device };
            device.offset_bytes += bytes;
            [here, there]
        });
        Ok(parts.collect())
    }
}

impl VulkanDevice {
    /// Enqueues an op on [`Stream::Host`], for [`HostKernels`](planner_core::backend::HostKernels).
    /// `work` runs on the thread of that stream, after all work for which the stream waits, and
    /// gets the ranges that the launch names. The waits of a proved plan keep copies and other ops
    /// away from these ranges meanwhile. Nothing else may touch them. An operand in several
    /// segments of the block is copied into one buffer for the op, and copied back.
    ///
    /// If `work` fails or panics, no more ops on the host run. This call and all later copies and
    /// calls of [`Streams`](planner_core::backend::Streams) then report [`VulkanError::HostOp`].
    /// Work that is enqueued on the device still runs. If the device is dropped, ops that have not
    /// begun are skipped, and the drop waits for an op that has begun.
    ///
    /// # Errors
    /// A range is outside the block, ranges overlap, or earlier work has failed.
    pub fn launch_on_host<E: fmt::Display>(
        &mut self,
        launch: &HostLaunch<'_>,
        work: impl FnMut(HostRun<'_>) -> Result<(), E> + Send + 'static,
    ) -> Result<(), VulkanError> {
        self.host_stream.check()?;
        let reads = launch.reads.iter().map(|range| (range, false));
        let ranges = reads.chain(launch.writes.iter().map(|range| (range, true)));
        let ranges: Vec<(HostRange, bool)> = ranges.collect();
        ranges.iter().try_for_each(|&(range, _)| self.block(range).map(drop))?;
        let op = HostOp::new(launch, work)?;
        let Some(block) = &self.host else {
            return Err(Refused::NoHostRange(HostRange { offset_bytes: 0, bytes: 0 }).into());
        };
        let segments = Arc::clone(&block.addresses);
        let iteration = launch.iteration;
        self.host_stream.run(HostTask { op, iteration, ranges, segments });
        Ok(())
    }
}

/// The source and the destination of a copy.
type Pair = [BufferRange; 2];

impl Transfers for VulkanDevice {
    fn create_host(&mut self, bytes: u64) -> Result<(), VulkanError> {
        if self.host.is_some() {
            return Err(Refused::HostCreatedTwice.into());
        }
        self.host = Some(HostBlock::new(&self.device, bytes)?);
        Ok(())
    }

    fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), VulkanError> {
        let range = HostRange { offset_bytes, bytes: from.len() as u64 };
        self.block(range)?;
        let block = self.host.as_mut().ok_or(Refused::NoHostRange(range))?;
        block.write(offset_bytes, from);
        Ok(())
    }

    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), VulkanError> {
        let range = HostRange { offset_bytes, bytes: into.len() as u64 };
        self.block(range)?.read(offset_bytes, into);
        Ok(())
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), VulkanError> {
        self.host_stream.check()?;
        let copies = self.copies(from, to)?;
        let commands = self.record(Stream::Upload)?;
        for [host, device] in copies {
            commands.copy(host, device);
        }
        self.counters.h2d_bytes += from.bytes;
        Ok(())
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), VulkanError> {
        self.host_stream.check()?;
        let copies = self.copies(to, from)?;
        let commands = self.record(Stream::Download)?;
        for [host, device] in copies {
            commands.copy(device, host);
        }
        self.counters.d2h_bytes += to.bytes;
        Ok(())
    }
}
