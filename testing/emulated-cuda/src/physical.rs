//! The memory of the device: a file in memory, and the allocations in it.

use crate::file::MemoryFile;
use crate::outcome::Outcome;
use cudarc::driver::sys::CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use std::collections::{BTreeMap, HashMap};
use std::os::fd::RawFd;

/// What fresh memory holds at its start. It is not zero, so that no test relies on zeros.
const GARBAGE: u8 = 0xa5;
/// So many bytes of each allocation, at most: what is not written takes no memory.
const GARBAGE_BYTES: u64 = 16 << 10;
/// The driver takes whole pages for itself.
const DRIVER_PAGE_BYTES: u64 = 4096;

/// A range of the file that a handle owns.
#[derive(Clone, Copy, Debug)]
struct Allocation {
    offset: u64,
    bytes: u64,
    mappings: u32,
    is_released: bool,
}

/// Memory by its handles.
#[derive(Debug)]
pub(crate) struct PhysicalMemory {
    file: MemoryFile,
    limit_bytes: u64,
    used_bytes: u64,
    /// What the driver has taken for itself. It has no place in the file.
    driver_bytes: u64,
    next_handle: u64,
    allocations: HashMap<u64, Allocation>,
    /// Free ranges of the file: their lengths by their offsets.
    free: BTreeMap<u64, u64>,
}

impl PhysicalMemory {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self {
            file: MemoryFile::new(limit_bytes),
            limit_bytes,
            used_bytes: 0,
            driver_bytes: 0,
            next_handle: 1,
            allocations: HashMap::new(),
            free: BTreeMap::from([(0, limit_bytes)]),
        }
    }

    pub(crate) const fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub(crate) const fn free_bytes(&self) -> u64 {
        self.limit_bytes - self.used_bytes - self.driver_bytes
    }

    pub(crate) const fn driver_bytes(&self) -> u64 {
        self.driver_bytes
    }

    /// Takes memory for the driver itself. Returns what has to be given back.
    pub(crate) fn take(&mut self, bytes: u64) -> Outcome<u64> {
        let bytes = bytes.checked_next_multiple_of(DRIVER_PAGE_BYTES);
        let bytes = bytes.filter(|&bytes| bytes <= self.free_bytes());
        let bytes = bytes.ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        self.driver_bytes += bytes;
        Ok(bytes)
    }

    pub(crate) const fn give_back(&mut self, bytes: u64) {
        self.driver_bytes -= bytes;
    }

    /// The file, to map it.
    pub(crate) fn file(&self) -> RawFd {
        self.file.descriptor()
    }

    /// How many handles are alive, or still mapped.
    pub(crate) fn len(&self) -> usize {
        self.allocations.len()
    }

    /// Allocates the first free range that is long enough. Returns its handle.
    pub(crate) fn create(&mut self, bytes: u64) -> Outcome<u64> {
        if bytes > self.free_bytes() {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let offset = self.take_free(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let handle = self.next_handle;
        self.next_handle += 1;
        self.used_bytes += bytes;
        let allocation = Allocation { offset, bytes, mappings: 0, is_released: false };
        self.allocations.insert(handle, allocation);
        let garbage = [GARBAGE; GARBAGE_BYTES as usize];
        // Where this fails, zeros remain, which no test may rely on either.
        let _ = self.file.write(offset, &garbage[..bytes.min(GARBAGE_BYTES) as usize]);
        Ok(handle)
    }

    fn take_free(&mut self, bytes: u64) -> Option<u64> {
        let (&offset, &free) = self.free.iter().find(|&(_, &free)| free >= bytes)?;
        self.free.remove(&offset);
        if free > bytes {
            self.free.insert(offset + bytes, free - bytes);
        }
        Some(offset)
    }

    /// Adds a free range, joined with its neighbours.
    fn add_free(&mut self, mut offset: u64, mut bytes: u64) {
        if let Some(after) = self.free.remove(&(offset + bytes)) {
            bytes += after;
        }
        if let Some((&start, &before)) = self.free.range(..offset).next_back()
            && start + before == offset
        {
            (offset, bytes) = (start, before + bytes);
        }
        self.free.insert(offset, bytes);
    }

    /// Releases a handle. Its memory is free once nothing maps it.
    pub(crate) fn release(&mut self, handle: u64) -> Outcome {
        let allocation = self.allocations.get_mut(&handle).filter(|one| !one.is_released);
        allocation.ok_or(CUDA_ERROR_INVALID_VALUE)?.is_released = true;
        self.drop_unused(handle);
        Ok(())
    }

    /// Returns the offset of a handle that has this size and is not released.
    pub(crate) fn offset(&self, handle: u64, bytes: u64) -> Option<u64> {
        let allocation = self.allocations.get(&handle)?;
        (!allocation.is_released && allocation.bytes == bytes).then_some(allocation.offset)
    }

    /// Whether nobody has written some bytes of a handle, from an offset in it on.
    pub(crate) fn is_unwritten(&self, handle: u64, offset: u64, bytes: u64) -> bool {
        let allocation = self.allocations.get(&handle);
        allocation.is_some_and(|one| self.file.is_unwritten(one.offset + offset, bytes))
    }

    pub(crate) fn add_mapping(&mut self, handle: u64) {
        if let Some(allocation) = self.allocations.get_mut(&handle) {
            allocation.mappings += 1;
        }
    }

    pub(crate) fn remove_mapping(&mut self, handle: u64) {
        if let Some(allocation) = self.allocations.get_mut(&handle) {
            allocation.mappings -= 1;
        }
        self.drop_unused(handle);
    }

    fn drop_unused(&mut self, handle: u64) {
        let unused = |allocation: &&Allocation| allocation.is_released && allocation.mappings == 0;
        if let Some(&Allocation { offset, bytes, .. }) =
            self.allocations.get(&handle).filter(unused)
        {
            self.file.forget(offset, bytes);
            self.allocations.remove(&handle);
            self.used_bytes -= bytes;
            self.add_free(offset, bytes);
        }
    }

    /// Frees all memory. Nothing is mapped any more.
    pub(crate) fn clear(&mut self) {
        let handles: Vec<_> = self.allocations.keys().copied().collect();
        for handle in handles {
            if let Some(allocation) = self.allocations.get_mut(&handle) {
                (allocation.mappings, allocation.is_released) = (0, true);
            }
            self.drop_unused(handle);
        }
    }
}
