//! The memory of the device: a file in memory, and the allocations in it.
#![allow(unsafe_code, reason = "memory comes from the system")]

use crate::outcome::Outcome;
use cudarc::driver::sys::CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;

/// What fresh memory holds. It is not zero, so that no test relies on zeros.
const GARBAGE: u8 = 0xa5;

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
    file: File,
    limit_bytes: u64,
    used_bytes: u64,
    next_handle: u64,
    allocations: HashMap<u64, Allocation>,
    /// Free ranges of the file: their lengths by their offsets.
    free: BTreeMap<u64, u64>,
}

impl PhysicalMemory {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        // SAFETY: the name is a string of C; the result is checked.
        let file = unsafe { libc::memfd_create(c"emulated-cuda".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(file >= 0, "the system has no memfd");
        // SAFETY: it is open, and nobody else's.
        let file = unsafe { File::from_raw_fd(file) };
        file.set_len(limit_bytes).expect("a file in memory takes any length");
        Self {
            file,
            limit_bytes,
            used_bytes: 0,
            next_handle: 1,
            allocations: HashMap::new(),
            free: BTreeMap::from([(0, limit_bytes)]),
        }
    }

    pub(crate) const fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    pub(crate) const fn free_bytes(&self) -> u64 {
        self.limit_bytes - self.used_bytes
    }

    /// The file, to map it.
    pub(crate) fn file(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// How many handles are alive, or still mapped.
    pub(crate) fn len(&self) -> usize {
        self.allocations.len()
    }

    /// Allocates the first free range that is long enough. Returns its handle.
    pub(crate) fn create(&mut self, bytes: u64) -> Outcome<u64> {
        let offset = self.take_free(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let handle = self.next_handle;
        self.next_handle += 1;
        self.used_bytes += bytes;
        let allocation = Allocation { offset, bytes, mappings: 0, is_released: false };
        self.allocations.insert(handle, allocation);
        self.fill_with_garbage(offset, bytes);
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

    fn fill_with_garbage(&self, offset: u64, bytes: u64) {
        let garbage = vec![GARBAGE; 1 << 16];
        let mut at = offset;
        while at < offset + bytes {
            let len = garbage.len().min((offset + bytes - at) as usize);
            // Where this fails, zeros remain, which no test may rely on either.
            let _ = self.file.write_all_at(&garbage[..len], at);
            at += len as u64;
        }
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
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let (start, length) = (offset as libc::off_t, bytes as libc::off_t);
            // SAFETY: the file is open. It only gives memory back to the system.
            unsafe { libc::fallocate(self.file(), mode, start, length) };
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
