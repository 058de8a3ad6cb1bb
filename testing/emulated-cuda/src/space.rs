//! The address space of the device, and what is mapped in it.
#![allow(unsafe_code, reason = "memory is mapped by the system")]

use crate::outcome::Outcome;
use crate::physical::PhysicalMemory;
use crate::usage::Usage;
use cudarc::driver::sys::CUresult::{
    CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::{ptr, slice};

/// The address space, as calls and work share it.
#[derive(Debug)]
pub(crate) struct SharedSpace {
    space: RwLock<AddressSpace>,
    /// Calls that want to change it.
    wanted: AtomicU32,
    pub(crate) usage: Usage,
}

impl SharedSpace {
    pub(crate) fn new(space: AddressSpace) -> Self {
        Self { space: RwLock::new(space), wanted: AtomicU32::new(0), usage: Usage::default() }
    }

    /// The space to use: nothing is mapped or unmapped while the guard lives.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, AddressSpace> {
        self.space.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The space to change. Waits until work lets it go, not until it has ended.
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, AddressSpace> {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let space = self.space.write().unwrap_or_else(PoisonError::into_inner);
        self.wanted.fetch_sub(1, Ordering::SeqCst);
        space
    }

    /// Whether a call waits to change it. Kernels let it go then.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    handle: u64,
    is_accessible: bool,
}

/// Reserved addresses and mappings. Addresses are those of the host.
#[derive(Debug)]
pub(crate) struct AddressSpace {
    memory: PhysicalMemory,
    granularity_bytes: u64,
    /// Reserved ranges: their lengths by their addresses.
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapping>,
}

impl AddressSpace {
    /// Creates the space. The granularity is a power of two and at least a page.
    pub(crate) fn new(memory: PhysicalMemory, granularity_bytes: u64) -> Self {
        let (reserved, mapped) = (BTreeMap::new(), BTreeMap::new());
        Self { memory, granularity_bytes, reserved, mapped }
    }

    pub(crate) const fn memory(&self) -> &PhysicalMemory {
        &self.memory
    }

    pub(crate) const fn memory_mut(&mut self) -> &mut PhysicalMemory {
        &mut self.memory
    }

    pub(crate) const fn granularity_bytes(&self) -> u64 {
        self.granularity_bytes
    }

    /// Fails unless a size is a multiple of the granularity and not zero.
    fn check_size(&self, bytes: u64) -> Outcome {
        let is_whole = bytes > 0 && bytes.is_multiple_of(self.granularity_bytes);
        if is_whole { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    pub(crate) fn reserve(&mut self, bytes: u64) -> Outcome<u64> {
        self.check_size(bytes)?;
        let longer = bytes.checked_add(self.granularity_bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, where the system wants it.
        let at =
            unsafe { libc::mmap(ptr::null_mut(), longer as usize, libc::PROT_NONE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let start = (at as u64).next_multiple_of(self.granularity_bytes);
        let (before, after) = (start - at as u64, at as u64 + longer - start - bytes);
        for (at, bytes) in [(at as u64, before), (start + bytes, after)] {
            if bytes > 0 {
                // SAFETY: both are parts of what has just been mapped, beside the aligned part.
                unsafe { libc::munmap(at as *mut _, bytes as usize) };
            }
        }
        self.reserved.insert(start, bytes);
        Ok(start)
    }

    pub(crate) fn free_addresses(&mut self, at: u64, bytes: u64) -> Outcome {
        if self.reserved.get(&at) != Some(&bytes) || self.mapped.range(at..at + bytes).count() > 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        self.reserved.remove(&at);
        // SAFETY: it was mapped by `reserve`, and nothing of the device is mapped in it.
        unsafe { libc::munmap(at as *mut _, bytes as usize) };
        Ok(())
    }

    pub(crate) fn create(&mut self, bytes: u64) -> Outcome<u64> {
        self.check_size(bytes)?;
        self.memory.create(bytes)
    }

    pub(crate) fn release(&mut self, handle: u64) -> Outcome {
        self.memory.release(handle)
    }

    /// Maps a whole handle at a free address inside one reservation.
    pub(crate) fn map(&mut self, at: u64, bytes: u64, handle: u64) -> Outcome {
        self.check_size(bytes)?;
        let end = at.checked_add(bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let reserved = self.reserved.range(..=at).next_back();
        let fits = reserved.is_some_and(|(start, length)| end <= start + length);
        let before = self.mapped.range(..end).next_back();
        let is_taken = before.is_some_and(|(start, mapping)| start + mapping.bytes > at);
        if !fits || is_taken || !at.is_multiple_of(self.granularity_bytes) {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let offset = self.memory.offset(handle, bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.remap(at, bytes, Some(offset))?;
        self.mapped.insert(at, Mapping { bytes, handle, is_accessible: false });
        self.memory.add_mapping(handle);
        Ok(())
    }

    /// Puts device memory at an address, or only reserves it.
    fn remap(&self, at: u64, bytes: u64, offset: Option<u64>) -> Outcome {
        let (flags, file) = match offset {
            Some(_) => (libc::MAP_SHARED, self.memory.file()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
        };
        let flags = flags | libc::MAP_FIXED;
        let offset = offset.unwrap_or(0) as libc::off_t;
        // SAFETY: the range lies inside a reservation, so nothing of anybody else is there.
        let mapped = unsafe {
            libc::mmap(at as *mut _, bytes as usize, libc::PROT_NONE, flags, file, offset)
        };
        if mapped == libc::MAP_FAILED { Err(CUDA_ERROR_OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// Returns the starts of the mappings that make up a range. Fails unless they are whole,
    /// without a gap, and in one reservation.
    fn whole_mappings(&self, at: u64, bytes: u64) -> Outcome<Vec<u64>> {
        let end = at.checked_add(bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let reserved = self.reserved.range(..=at).next_back();
        let mut next = at;
        let mut starts = Vec::new();
        for (&start, mapping) in self.mapped.range(at..end) {
            if start != next {
                break;
            }
            starts.push(start);
            next = start + mapping.bytes;
        }
        let is_whole = bytes > 0
            && next == end
            && reserved.is_some_and(|(start, length)| end <= start + length);
        if is_whole { Ok(starts) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    pub(crate) fn set_access(&mut self, at: u64, bytes: u64) -> Outcome {
        for start in self.whole_mappings(at, bytes)? {
            if let Some(mapping) = self.mapped.get_mut(&start) {
                mapping.is_accessible = true;
            }
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range holds device memory only.
        let set = unsafe { libc::mprotect(at as *mut _, bytes as usize, access) };
        if set == 0 { Ok(()) } else { Err(CUDA_ERROR_OUT_OF_MEMORY) }
    }

    pub(crate) fn unmap(&mut self, at: u64, bytes: u64) -> Outcome {
        let starts = self.whole_mappings(at, bytes)?;
        self.remap(at, bytes, None)?;
        for start in starts {
            if let Some(mapping) = self.mapped.remove(&start) {
                self.memory.remove_mapping(mapping.handle);
            }
        }
        Ok(())
    }

    /// Allocates memory with an address of its own, as `cuMemAlloc` does.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Outcome<u64> {
        let bytes = bytes.max(1).next_multiple_of(self.granularity_bytes);
        let handle = self.create(bytes)?;
        let at = self.reserve(bytes)?;
        self.map(at, bytes, handle)?;
        self.set_access(at, bytes)?;
        self.release(handle)?;
        Ok(at)
    }

    /// Returns the length of a reserved range.
    pub(crate) fn reserved_bytes(&self, at: u64) -> Outcome<u64> {
        self.reserved.get(&at).copied().ok_or(CUDA_ERROR_INVALID_VALUE)
    }

    pub(crate) fn free(&mut self, at: u64) -> Outcome {
        let bytes = self.reserved_bytes(at)?;
        self.unmap(at, bytes)?;
        self.free_addresses(at, bytes)
    }

    /// Sets a range to the initial bytes, and to zeros after them.
    pub(crate) fn initialize(&mut self, at: u64, bytes: u64, initial: &[u8]) -> Outcome {
        self.check_access(at, bytes)?;
        // SAFETY: the range may be written, and nothing else uses it: work holds the space.
        let range = unsafe { slice::from_raw_parts_mut(at as *mut u8, bytes as usize) };
        let (start, rest) = range.split_at_mut(initial.len());
        start.copy_from_slice(initial);
        rest.fill(0);
        Ok(())
    }

    /// Fails unless all of a range may be read and written.
    pub(crate) fn check_access(&self, at: u64, bytes: u64) -> Outcome {
        let end = at.checked_add(bytes).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
        let mut next = at;
        while next < end {
            let [_, mapping_end] = self.accessible(next).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
            next = mapping_end;
        }
        Ok(())
    }

    /// Whether nobody has written a mapped range: then it holds zeros.
    pub(crate) fn is_unwritten(&self, at: u64, bytes: u64) -> bool {
        let end = at + bytes;
        let first = self.mapped.range(..=at).next_back().map_or(at, |(&start, _)| start);
        self.mapped.range(first..end).all(|(&start, mapping)| {
            let (from, to) = (at.max(start), end.min(start + mapping.bytes));
            self.memory.is_unwritten(mapping.handle, from - start, to - from)
        })
    }

    /// Returns the start and the end of the accessible mapping around an address.
    pub(crate) fn accessible(&self, at: u64) -> Option<[u64; 2]> {
        let (&start, mapping) = self.mapped.range(..=at).next_back()?;
        let end = start + mapping.bytes;
        (mapping.is_accessible && at < end).then_some([start, end])
    }

    /// Unmaps and frees everything.
    pub(crate) fn clear(&mut self) {
        let reserved = std::mem::take(&mut self.reserved);
        self.mapped.clear();
        for (at, bytes) in reserved {
            // SAFETY: it was mapped by `reserve`, and nobody uses it any more.
            unsafe { libc::munmap(at as *mut _, bytes as usize) };
        }
        self.memory.clear();
    }

    /// Counts what is mapped, reserved or allocated.
    pub(crate) fn live(&self) -> usize {
        self.memory.len() + self.reserved.len() + self.mapped.len()
    }
}
