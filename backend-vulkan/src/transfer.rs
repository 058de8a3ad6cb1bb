//! The host's block, and copies between it and the device.

use crate::VulkanDevice;
use crate::driver::{Buffer, BufferRange, Device, Memory};
use crate::error::VulkanError;
use backend_checks::{Refused, fill_states};
use planner_core::backend::{DeviceAddress, HostRange, Transfers};
use planner_core::{HostRooms, Stream};
use std::sync::Arc;

/// Size of a segment of the block. Drivers bound the size of one allocation.
const SEGMENT_BYTES: u64 = 1 << 30;

/// Host memory that the device copies from and to, as one block.
#[derive(Debug)]
pub(crate) struct HostBlock {
    bytes: u64,
    segment_bytes: u64,
    segments: Vec<(Buffer, Memory)>,
}

impl HostBlock {
    fn new(device: &Arc<Device>, bytes: u64) -> Result<Self, VulkanError> {
        let limits = &device.physical;
        let most_bytes = limits.max_allocation_bytes.min(limits.max_buffer_bytes);
        let segment_bytes = SEGMENT_BYTES.min(most_bytes);
        if bytes > device.physical.host_memory_bytes() {
            return Err(VulkanError::OutOfHostMemory { bytes });
        }
        let mut block = Self { bytes, segment_bytes, segments: Vec::new() };
        let mut left = bytes;
        while left > 0 {
            let bytes = left.min(segment_bytes);
            let memory_type = |bits| device.physical.memory_type_of_host(bits);
            let segment = Buffer::with_memory(device, bytes, true, memory_type);
            block.segments.push(segment.map_err(|error| error.on_host(bytes))?);
            left -= bytes;
        }
        Ok(block)
    }

    /// The parts of a range: the segment, the offset in it, and how many bytes.
    fn parts(&self, offset_bytes: u64, bytes: u64) -> impl Iterator<Item = (usize, u64, u64)> {
        let (segment_bytes, end) = (self.segment_bytes, offset_bytes + bytes);
        let mut next = offset_bytes;
        std::iter::from_fn(move || {
            let (segment, offset) = (next / segment_bytes, next % segment_bytes);
            let bytes = (segment_bytes - offset).min(end - next);
            next += bytes;
            (bytes > 0).then_some((segment as usize, offset, bytes))
        })
    }

    fn check(&self, offset_bytes: u64, bytes: u64) -> Result<(), Refused> {
        match offset_bytes.checked_add(bytes) {
            Some(end) if end <= self.bytes => Ok(()),
            _ => Err(Refused::NoHostBytes { offset_bytes, bytes }),
        }
    }

    fn write(&self, offset_bytes: u64, mut from: &[u8]) -> Result<(), Refused> {
        self.check(offset_bytes, from.len() as u64)?;
        for (segment, offset, bytes) in self.parts(offset_bytes, from.len() as u64) {
            let (first, rest) = from.split_at(bytes as usize);
            self.segments[segment].1.write(offset, first);
            from = rest;
        }
        Ok(())
    }

    fn read(&self, offset_bytes: u64, mut into: &mut [u8]) -> Result<(), Refused> {
        self.check(offset_bytes, into.len() as u64)?;
        for (segment, offset, bytes) in self.parts(offset_bytes, into.len() as u64) {
            let (first, rest) = into.split_at_mut(bytes as usize);
            self.segments[segment].1.read(offset, first);
            into = rest;
        }
        Ok(())
    }
}

impl VulkanDevice<'_> {
    /// Writes into the host's block, at once. No enqueued work may use these bytes.
    ///
    /// # Errors
    /// Bytes that the block does not have.
    pub fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), VulkanError> {
        Ok(self.host_block(offset_bytes, from.len())?.write(offset_bytes, from)?)
    }

    /// Reads from the host's block. No enqueued work may write these bytes. This works after
    /// any error of the device as well.
    ///
    /// # Errors
    /// Bytes that the block does not have.
    pub fn read_host(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), VulkanError> {
        Ok(self.host_block(offset_bytes, into.len())?.read(offset_bytes, into)?)
    }

    /// The block, of which some bytes are wanted.
    fn host_block(&self, offset_bytes: u64, len: usize) -> Result<&HostBlock, Refused> {
        let bytes = len as u64;
        self.host.as_ref().ok_or(Refused::NoHostBytes { offset_bytes, bytes })
    }

    /// The copies that go between a host range and an address, each as the host's bytes and
    /// the device's.
    fn copies(&self, host: HostRange, at: DeviceAddress) -> Result<Vec<Pair>, VulkanError> {
        let HostRange { tensor, offset_bytes, bytes } = host;
        let block = self.host.as_ref().filter(|block| block.check(offset_bytes, bytes).is_ok());
        let is_known = tensor.index() < self.graph.tensors().len() && bytes > 0;
        let block = block.filter(|_| is_known).ok_or(Refused::NoHostRange(host))?;
        let mut device = self.space.range(at, bytes)?;
        let parts = block.parts(offset_bytes, bytes).map(|(segment, offset_bytes, bytes)| {
            let here = BufferRange { buffer: block.segments[segment].0.raw, offset_bytes, bytes };
            let there = BufferRange { bytes, ..device };
            device.offset_bytes += bytes;
            [here, there]
        });
        Ok(parts.collect())
    }
}

/// Bytes that are copied, at both ends.
type Pair = [BufferRange; 2];

impl Transfers for VulkanDevice<'_> {
    fn create_host(&mut self, rooms: &HostRooms<'_>) -> Result<(), VulkanError> {
        if self.host.is_some() {
            return Err(Refused::HostCreatedTwice.into());
        }
        let block = HostBlock::new(&self.device, rooms.bytes())?;
        fill_states(&self.graph, rooms, &mut self.states, |offset_bytes, piece| {
            block.write(offset_bytes, piece)
        })?;
        self.host = Some(block);
        Ok(())
    }

    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), VulkanError> {
        let copies = self.copies(from, to)?;
        let commands = self.record(Stream::Upload)?;
        for [host, device] in copies {
            commands.copy(host, device);
        }
        self.counters.h2d_bytes += from.bytes;
        Ok(())
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), VulkanError> {
        let copies = self.copies(to, from)?;
        let commands = self.record(Stream::Download)?;
        for [host, device] in copies {
            commands.copy(device, host);
        }
        self.counters.d2h_bytes += to.bytes;
        Ok(())
    }
}
