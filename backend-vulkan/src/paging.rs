//! Virtual ranges inside sparse buffers, and chunks, which are parts of a few allocations.
//!
//! A queue binds pages on the device, in order. It need not be a queue of a stream. Calls that map
//! or unmap are gathered and submitted together before the next submission, which waits for them.

use crate::VulkanDevice;
use crate::adapter::Opened;
use crate::address_space::AddressSpace;
use crate::driver::{Bind, Buffer, BufferRange, Device, Memory, Queue, Semaphore};
use crate::error::VulkanError;
use backend_checks::AddressMap;
use planner_core::backend::{Chunks, DeviceAddress, Paging};
use std::sync::Arc;
use std::time::Instant;

/// The size of an allocation that chunks are parts of. Drivers may allow only 4,096 allocations, so
/// more memory needs chunks larger than this.
const SLAB_BYTES: u64 = 1 << 30;

/// The size of a sparse buffer, unless one range is larger.
const BLOCK_BYTES: u64 = 16 << 30;

/// The most binds that are gathered before they are submitted.
const MOST_PENDING: usize = 1024;

/// A sparse buffer, and how much of it is reserved. Users that share the buffer also keep it alive.
#[derive(Debug)]
struct Block {
    buffer: Arc<Buffer>,
    address: u64,
    used_bytes: u64,
}

/// The virtual address space, and the physical chunks.
pub(crate) struct Space {
    memory_bytes: u64,
    address_space: AddressSpace,
    queue: Queue,
    /// The semaphore reaches `bound` once all binds so far are done.
    semaphore: Semaphore,
    bound: u64,
    pending: Vec<Bind>,
    /// Whether the pending binds unmap. Binds of both kinds could meet at an address, so they are
    /// not mixed.
    unmaps: bool,
    /// Keeps the block of each reservation.
    addresses: AddressMap<usize>,
    blocks: Vec<Block>,
    slabs: Arc<Vec<Memory>>,
    device: Arc<Device>,
}

impl Space {
    pub(crate) fn new(
        opened: &Opened,
        chunk_bytes: u64,
        address_space: AddressSpace,
    ) -> Result<Self, VulkanError> {
        Ok(Self {
            memory_bytes: opened.memory_bytes,
            address_space,
            queue: opened.binding,
            semaphore: Semaphore::new(&opened.device)?,
            bound: 0,
            pending: Vec::new(),
            unmaps: false,
            addresses: AddressMap::new(chunk_bytes),
            blocks: Vec::new(),
            slabs: Arc::default(),
            device: Arc::clone(&opened.device),
        })
    }

    /// The part of a sparse buffer at an address.
    ///
    /// # Errors
    /// The range is not in one reservation, or not completely mapped.
    pub(crate) fn range(&self, at: DeviceAddress, bytes: u64) -> Result<BufferRange, VulkanError> {
        let block = &self.blocks[*self.addresses.check_mapped(at, bytes)?];
        let (device, buffer) = (self.device.number, block.buffer.raw);
        Ok(BufferRange { device, buffer, offset_bytes: at.0 - block.address, bytes })
    }

    /// The sparse buffer at an address, by number, and the memory behind it.
    #[cfg(feature = "wgpu")]
    pub(crate) fn block(
        &self,
        at: DeviceAddress,
    ) -> Option<(usize, Arc<Buffer>, Arc<Vec<Memory>>)> {
        let &block = self.addresses.check_mapped(at, 0).ok()?;
        let buffer = Arc::clone(&self.blocks[block].buffer);
        Some((block, buffer, Arc::clone(&self.slabs)))
    }

    /// Allocations for `count` chunks.
    fn slabs(&self, count: u64) -> Result<Vec<Memory>, VulkanError> {
        let bytes = count
            .checked_mul(self.addresses.chunk_bytes())
            .filter(|&bytes| bytes <= self.memory_bytes);
        let device_bytes = self.memory_bytes;
        let mut left =
            bytes.ok_or(VulkanError::OutOfDeviceMemory { chunks: count, device_bytes })?;
        if left == 0 {
            return Ok(Vec::new());
        }
        let bits = Buffer::sparse(&self.device, self.addresses.chunk_bytes())?
            .requirements()
            .memory_type_bits;
        let memory_type = self.device.physical.memory_type_of_device(bits);
        let mut slabs = Vec::new();
        while left > 0 {
            let bytes = left.min(self.slab_chunks() * self.addresses.chunk_bytes());
            slabs.push(Memory::new(&self.device, bytes, memory_type, false)?);
            left -= bytes;
        }
        Ok(slabs)
    }

    fn slab_chunks(&self) -> u64 {
        let most_bytes = SLAB_BYTES.min(self.device.physical.max_allocation_bytes);
        (most_bytes / self.addresses.chunk_bytes()).max(1)
    }

    /// Reserves addresses in the first block with enough free bytes, or in a new one.
    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, VulkanError> {
        let exhausted = VulkanError::AddressSpace { chunks, space: self.address_space };
        let bytes = self.addresses.bytes(chunks).ok_or_else(|| exhausted.clone())?;
        let has_bytes = |block: &Block| block.buffer.bytes - block.used_bytes >= bytes;
        let block = match self.blocks.iter().position(has_bytes) {
            Some(block) => block,
            None => self.add_block(bytes)?.ok_or(exhausted)?,
        };
        let Block { address, used_bytes, .. } = &mut self.blocks[block];
        let at = DeviceAddress(*address + *used_bytes);
        *used_bytes += bytes;
        self.addresses.reserve(at, bytes, block);
        Ok(at)
    }

    /// Adds a block of at least `bytes` bytes. `None` if the address space is too small.
    fn add_block(&mut self, bytes: u64) -> Result<Option<usize>, VulkanError> {
        let whole_chunks = |bytes: u64| bytes - bytes % self.addresses.chunk_bytes();
        let most_bytes = whole_chunks(self.device.physical.max_buffer_bytes);
        if bytes > most_bytes {
            return Err(VulkanError::Range { bytes, most_bytes });
        }
        let taken_bytes = self.taken_bytes();
        let left_bytes = whole_chunks(self.address_space.bytes - taken_bytes);
        if bytes > left_bytes {
            return Ok(None);
        }
        let block_bytes = bytes.max(BLOCK_BYTES).min(most_bytes).min(left_bytes);
        let buffer = Buffer::sparse(&self.device, block_bytes)
            .map_err(|error| self.beyond_reported(error, taken_bytes + block_bytes))?;
        let address = buffer.address();
        self.blocks.push(Block { buffer: Arc::new(buffer), address, used_bytes: 0 });
        Ok(Some(self.blocks.len() - 1))
    }

    /// The whole chunks of the largest buffer.
    fn most_range_chunks(&self) -> u64 {
        let most_bytes = self.device.physical.max_buffer_bytes.min(self.address_space.bytes);
        most_bytes / self.addresses.chunk_bytes()
    }

    /// The size of all blocks.
    pub(crate) fn taken_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.buffer.bytes).sum()
    }

    /// An error of the driver, with the limits if all sparse buffers together exceed the reported
    /// limit.
    fn beyond_reported(&self, error: VulkanError, sparse_bytes: u64) -> VulkanError {
        let space = self.address_space;
        match error {
            VulkanError::Driver { call, code } if sparse_bytes > space.reported_bytes => {
                VulkanError::BeyondReported { call, code, sparse_bytes, space }
            }
            error => error,
        }
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), VulkanError> {
        let &block = self.addresses.check_map(at, chunks)?;
        self.flush_for(false)?;
        self.addresses.map(at, chunks);
        let (mut chunk, mut at, end) = (chunks.first, at.0, chunks.first + chunks.count);
        while chunk < end {
            let (slab, index) = (chunk / self.slab_chunks(), chunk % self.slab_chunks());
            let count = (self.slab_chunks() - index).min(end - chunk);
            let memory = (&self.slabs[slab as usize], index * self.addresses.chunk_bytes());
            let block = &self.blocks[block];
            let (offset, bytes) = (at - block.address, count * self.addresses.chunk_bytes());
            self.pending.push(Bind::new(&block.buffer, offset, bytes, Some(memory)));
            chunk += count;
            at += bytes;
        }
        Ok(())
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), VulkanError> {
        let &block = self.addresses.check_unmap(at, chunks)?;
        self.flush_for(true)?;
        self.addresses.unmap(at, chunks);
        let bytes = chunks * self.addresses.chunk_bytes();
        let block = &self.blocks[block];
        self.pending.push(Bind::new(&block.buffer, at.0 - block.address, bytes, None));
        Ok(())
    }

    /// Submits the pending binds if another bind of this kind cannot join them.
    fn flush_for(&mut self, unmaps: bool) -> Result<(), VulkanError> {
        if self.unmaps != unmaps || self.pending.len() >= MOST_PENDING {
            self.bind()?;
            self.unmaps = unmaps;
        }
        Ok(())
    }

    /// Submits the pending binds. Returns whether there were any.
    fn bind(&mut self) -> Result<bool, VulkanError> {
        if self.pending.is_empty() {
            return Ok(false);
        }
        self.device
            .bind_sparse(self.queue, &self.pending, &self.semaphore, self.bound + 1)
            .map_err(|error| self.beyond_reported(error, self.taken_bytes()))?;
        self.bound += 1;
        self.pending.clear();
        Ok(true)
    }

    /// The number of submissions of binds.
    pub(crate) const fn bound(&self) -> u64 {
        self.bound
    }

    /// The point for which a submission waits so that all pages are bound. `None` if no page was
    /// ever bound.
    pub(crate) fn binds(&self) -> Option<(&Semaphore, u64)> {
        (self.bound > 0).then_some((&self.semaphore, self.bound))
    }
}

impl VulkanDevice {
    /// Submits all pending binds.
    pub(crate) fn flush_binds(&mut self) -> Result<(), VulkanError> {
        if self.space.pending.is_empty() {
            return Ok(());
        }
        self.timed(Space::bind).map(|_| ())
    }

    /// Runs a call on the address space. Its time on the host counts as mapping.
    fn timed<T>(
        &mut self,
        act: impl FnOnce(&mut Space) -> Result<T, VulkanError>,
    ) -> Result<T, VulkanError> {
        let (start, bound) = (Instant::now(), self.space.bound);
        let done = act(&mut self.space);
        self.counters.mapping_ns += start.elapsed().as_nanos() as u64;
        self.counters.bind_calls += self.space.bound - bound;
        done
    }
}

impl Paging for VulkanDevice {
    fn chunk_bytes(&self) -> u64 {
        self.space.addresses.chunk_bytes()
    }

    fn most_range_chunks(&self) -> u64 {
        self.space.most_range_chunks()
    }

    fn create(&mut self, count: u64) -> Result<(), VulkanError> {
        self.space.addresses.check_create()?;
        self.space.slabs = Arc::new(self.space.slabs(count)?);
        self.space.addresses.create(count);
        Ok(())
    }

    fn reserve(&mut self, chunks: u64) -> Result<DeviceAddress, VulkanError> {
        let at = self.space.reserve(chunks)?;
        self.counters.ranges += 1;
        Ok(at)
    }

    fn map(&mut self, at: DeviceAddress, chunks: Chunks) -> Result<(), VulkanError> {
        self.timed(|space| space.map(at, chunks))?;
        self.counters.map_calls += 1;
        self.counters.chunks_mapped += chunks.count;
        Ok(())
    }

    fn unmap(&mut self, at: DeviceAddress, chunks: u64) -> Result<(), VulkanError> {
        self.timed(|space| space.unmap(at, chunks))?;
        self.counters.unmap_calls += 1;
        Ok(())
    }
}
