//! [`Paging`]: a table from addresses to chunks. [`Transfers`]: the host block, and copies.

use crate::{MyDevice, MyError};
use backend_checks::Refused;
use planner_core::Stream;
use planner_core::backend::{Chunks, DeviceAddress, ErrorKind, HostRange, Paging, Transfers};
use std::iter;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Memory that all threads use at once. Only waits order what they do with it: a wait that is missing
/// shows as wrong bytes, as it does on a device.
pub(crate) type Memory = Arc<Vec<AtomicU8>>;

/// Allocates memory, of which there may be too little.
fn allocate(bytes: u64, too_little: ErrorKind) -> Result<Memory, MyError> {
    let mut memory = Vec::new();
    let reserved = memory.try_reserve_exact(bytes as usize);
    reserved.map_err(|error| MyError::new(too_little, error))?;
    memory.resize_with(bytes as usize, AtomicU8::default);
    Ok(Arc::new(memory))
}

/// Bytes that work uses. A driver hands addresses to the device, which looks them up while the work
/// runs. Here they are looked up when the work is enqueued.
#[derive(Debug)]
pub(crate) struct Bytes {
    memory: Memory,
    ranges: Vec<Range<u64>>,
}

impl Bytes {
    pub(crate) fn read(&self) -> Vec<u8> {
        let mut read = Vec::new();
        for range in &self.ranges {
            let from = &self.memory[range.start as usize..range.end as usize];
            read.extend(from.iter().map(|byte| byte.load(Relaxed)));
        }
        read
    }

    pub(crate) fn write(&self, mut from: &[u8]) {
        for range in &self.ranges {
            let to = &self.memory[range.start as usize..range.end as usize];
            let (first, rest) = from.split_at(to.len());
            to.iter().zip(first).for_each(|(to, &byte)| to.store(byte, Relaxed));
            from = rest;
        }
    }
}

impl MyDevice {
    /// Bytes of device memory.
    pub(crate) fn on_device(&self, at: DeviceAddress, bytes: u64) -> Result<Bytes, MyError> {
        let ranges = self.table.physical(at, bytes)?;
        Ok(Bytes { memory: Arc::clone(&self.chunks), ranges })
    }

    /// Bytes of the host block.
    pub(crate) fn on_host(&self, range: HostRange) -> Result<Bytes, MyError> {
        let none = Refused::NoHostRange(range);
        let block = self.block.as_ref().ok_or(none)?;
        let end = range.offset_bytes.checked_add(range.bytes);
        let end = end.filter(|&end| end <= block.len() as u64).ok_or(none)?;
        let ranges = iter::once(range.offset_bytes..end).collect();
        Ok(Bytes { memory: Arc::clone(block), ranges })
    }
}

impl Paging for MyDevice {
    fn chunk_bytes(&self) -> u64 {
        self.table.chunk_bytes()
    }

    /// A driver creates the physical memory, without addresses: `cuMemCreate`, `vkAllocateMemory`.
    fn create(&mut self, count: u64) -> Result<(), MyError> {
        self.table.check_create()?;
        if count > self.device_bytes / self.chunk_bytes() {
            let reason = format_args!("the device has no {count} chunks");
            return Err(MyError::new(ErrorKind::OutOfDeviceMemory, reason));
        }
        self.chunks = allocate(count * self.chunk_bytes(), ErrorKind::OutOfDeviceMemory)?;
        self.table.create(count);
        Ok(())
    }

    /// A driver reserves addresses without memory: `cuMemAddressReserve`, or a sparse buffer.
    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, MyError> {
        let at = self.next_address;
        let none = || MyError::new(ErrorKind::Other, "no addresses are left");
        let bytes = self.table.bytes(chunks).ok_or_else(none)?;
        self.next_address = at.checked_add(bytes).ok_or_else(none)?;
        self.table.reserve(DeviceAddress(at), bytes, ());
        Ok(DeviceAddress(at))
    }

    /// A driver maps the chunks and enables access: `cuMemMap`, `vkQueueBindSparse`.
    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), MyError> {
        self.table.check_map(at, chunks)?;
        self.table.map(at, chunks);
        Ok(())
    }

    /// A driver unmaps them: `cuMemUnmap`. The chunks keep their bytes.
    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), MyError> {
        self.table.check_unmap(at, chunks)?;
        self.table.unmap(at, chunks);
        Ok(())
    }
}

impl Transfers for MyDevice {
    /// A driver allocates pinned memory that the device can copy from and to: `cuMemHostAlloc`.
    fn create_host(&mut self, bytes: u64) -> Result<(), MyError> {
        if self.block.is_some() {
            return Err(Refused::HostCreatedTwice.into());
        }
        self.block = Some(allocate(bytes, ErrorKind::OutOfHostMemory)?);
        Ok(())
    }

    /// A driver does what this does: it writes the bytes at once, on the calling thread.
    fn write_host(&mut self, offset_bytes: u64, from: &[u8]) -> Result<(), MyError> {
        self.on_host(HostRange { offset_bytes, bytes: from.len() as u64 })?.write(from);
        Ok(())
    }

    fn read_host(&mut self, offset_bytes: u64, into: &mut [u8]) -> Result<(), MyError> {
        let bytes = self.on_host(HostRange { offset_bytes, bytes: into.len() as u64 })?;
        into.copy_from_slice(&bytes.read());
        Ok(())
    }

    /// A driver enqueues an asynchronous copy: `cuMemcpyHtoDAsync`, `vkCmdCopyBuffer`.
    fn upload(&mut self, from: HostRange, to: DeviceAddress) -> Result<(), MyError> {
        let (from, to) = (self.on_host(from)?, self.on_device(to, from.bytes)?);
        self.enqueue(Stream::Upload, Box::new(move || to.write(&from.read())));
        Ok(())
    }

    fn download(&mut self, from: DeviceAddress, to: HostRange) -> Result<(), MyError> {
        let (from, to) = (self.on_device(from, to.bytes)?, self.on_host(to)?);
        self.enqueue(Stream::Download, Box::new(move || to.write(&from.read())));
        Ok(())
    }
}
