//! Device memory, addresses, and what is mapped where.
#![allow(unsafe_code, reason = "memory is mapped by the system")]

use crate::Outcome;
use cudarc::driver::sys::CUresult::{
    self, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY,
};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;

/// Some of the device's memory.
#[derive(Clone, Copy, Debug)]
struct Extent {
    offset: u64,
    bytes: u64,
    mappings: u32,
    released: bool,
}

#[derive(Clone, Copy, Debug)]
struct Mapping {
    bytes: u64,
    handle: u64,
    accessible: bool,
}

/// The device's memory and its addresses.
#[derive(Debug)]
pub(crate) struct Space {
    memory: File,
    pub(crate) limit_bytes: u64,
    pub(crate) granularity: u64,
    pub(crate) used_bytes: u64,
    next_handle: u64,
    extents: HashMap<u64, Extent>,
    /// Where memory is free, with the lengths.
    free: BTreeMap<u64, u64>,
    /// Reserved addresses, with their lengths.
    reserved: BTreeMap<u64, u64>,
    mapped: BTreeMap<u64, Mapping>,
}

impl Space {
    pub(crate) fn new(limit_bytes: u64, granularity: u64) -> Self {
        // SAFETY: the name is a string of C; the result is checked.
        let memory = unsafe { libc::memfd_create(c"emulated-cuda".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(memory >= 0, "the system has no memfd");
        // SAFETY: it is open, and nobody else's.
        let memory = unsafe { File::from_raw_fd(memory) };
        memory.set_len(limit_bytes).expect("a file in memory takes any length");
        Self {
            memory,
            limit_bytes,
            granularity,
            used_bytes: 0,
            next_handle: 1,
            extents: HashMap::new(),
            free: BTreeMap::from([(0, limit_bytes)]),
            reserved: BTreeMap::new(),
            mapped: BTreeMap::new(),
        }
    }

    /// A multiple of the granularity that is not zero.
    fn check_size(&self, bytes: u64) -> Outcome {
        let is_whole = bytes > 0 && bytes.is_multiple_of(self.granularity);
        if is_whole { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    pub(crate) fn reserve(&mut self, bytes: u64) -> Outcome<u64> {
        self.check_size(bytes)?;
        let longer = bytes.checked_add(self.granularity).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, where the system wants it.
        let at =
            unsafe { libc::mmap(ptr::null_mut(), longer as usize, libc::PROT_NONE, flags, -1, 0) };
        if at == libc::MAP_FAILED {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let start = (at as u64).next_multiple_of(self.granularity);
        let (before, behind) = (start - at as u64, at as u64 + longer - start - bytes);
        for (at, bytes) in [(at as u64, before), (start + bytes, behind)] {
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
        let offset = self.gap(bytes).ok_or(CUDA_ERROR_OUT_OF_MEMORY)?;
        let handle = self.next_handle;
        self.next_handle += 1;
        self.used_bytes += bytes;
        self.extents.insert(handle, Extent { offset, bytes, mappings: 0, released: false });
        self.scribble(offset, bytes);
        Ok(handle)
    }

    /// Takes the first place in memory with room for so much.
    fn gap(&mut self, bytes: u64) -> Option<u64> {
        let (&offset, &free) = self.free.iter().find(|&(_, &free)| free >= bytes)?;
        self.free.remove(&offset);
        if free > bytes {
            self.free.insert(offset + bytes, free - bytes);
        }
        Some(offset)
    }

    /// Gives a place back, joined with its neighbours.
    fn give_back(&mut self, mut offset: u64, mut bytes: u64) {
        if let Some(behind) = self.free.remove(&(offset + bytes)) {
            bytes += behind;
        }
        if let Some((&start, &before)) = self.free.range(..offset).next_back()
            && start + before == offset
        {
            (offset, bytes) = (start, before + bytes);
        }
        self.free.insert(offset, bytes);
    }

    /// Makes sure that nobody takes fresh memory for zeros.
    fn scribble(&self, offset: u64, bytes: u64) {
        use std::os::unix::fs::FileExt;
        let noise = vec![0xa5; 1 << 16];
        let mut at = offset;
        while at < offset + bytes {
            let len = noise.len().min((offset + bytes - at) as usize);
            // What cannot be written is zero, which is no worse.
            let _ = self.memory.write_all_at(&noise[..len], at);
            at += len as u64;
        }
    }

    pub(crate) fn release(&mut self, handle: u64) -> Outcome {
        let extent = self.extents.get_mut(&handle).filter(|extent| !extent.released);
        extent.ok_or(CUDA_ERROR_INVALID_VALUE)?.released = true;
        self.drop_unused(handle);
        Ok(())
    }

    /// Memory goes when it is released and no longer mapped.
    fn drop_unused(&mut self, handle: u64) {
        let unused = |extent: &&Extent| extent.released && extent.mappings == 0;
        if let Some(&Extent { offset, bytes, .. }) = self.extents.get(&handle).filter(unused) {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            let file = self.memory.as_raw_fd();
            // SAFETY: the file is open. It only gives memory back to the system.
            unsafe { libc::fallocate(file, mode, offset as libc::off_t, bytes as libc::off_t) };
            self.extents.remove(&handle);
            self.used_bytes -= bytes;
            self.give_back(offset, bytes);
        }
    }

    pub(crate) fn map(&mut self, at: u64, bytes: u64, handle: u64) -> Outcome {
        self.check_size(bytes)?;
        let end = at.checked_add(bytes).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        let reserved = self.reserved.range(..=at).next_back();
        let fits = reserved.is_some_and(|(start, length)| end <= start + length);
        let before = self.mapped.range(..end).next_back();
        let is_taken = before.is_some_and(|(start, mapping)| start + mapping.bytes > at);
        let extent = self.extents.get(&handle).copied().filter(|extent| !extent.released);
        let extent = extent.filter(|extent| extent.bytes == bytes);
        let Some(extent) =
            extent.filter(|_| fits && !is_taken && at.is_multiple_of(self.granularity))
        else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        self.show(at, bytes, Some(extent.offset))?;
        self.mapped.insert(at, Mapping { bytes, handle, accessible: false });
        if let Some(extent) = self.extents.get_mut(&handle) {
            extent.mappings += 1;
        }
        Ok(())
    }

    /// Puts device memory, or nothing, at an address.
    fn show(&self, at: u64, bytes: u64, offset: Option<u64>) -> Outcome {
        let (flags, file) = match offset {
            Some(_) => (libc::MAP_SHARED, self.memory.as_raw_fd()),
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1),
        };
        let flags = flags | libc::MAP_FIXED;
        let offset = offset.unwrap_or(0) as libc::off_t;
        // SAFETY: the range lies inside a reservation, so nothing of anybody else is there.
        let shown = unsafe {
            libc::mmap(at as *mut _, bytes as usize, libc::PROT_NONE, flags, file, offset)
        };
        if shown == libc::MAP_FAILED { Err(CUDA_ERROR_OUT_OF_MEMORY) } else { Ok(()) }
    }

    /// The mappings that make up a range, all of them whole and in one reservation.
    fn whole(&self, at: u64, bytes: u64) -> Outcome<Vec<u64>> {
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
        for start in self.whole(at, bytes)? {
            if let Some(mapping) = self.mapped.get_mut(&start) {
                mapping.accessible = true;
            }
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the range holds device memory only.
        let set = unsafe { libc::mprotect(at as *mut _, bytes as usize, access) };
        if set == 0 { Ok(()) } else { Err(CUDA_ERROR_OUT_OF_MEMORY) }
    }

    pub(crate) fn unmap(&mut self, at: u64, bytes: u64) -> Outcome {
        let starts = self.whole(at, bytes)?;
        self.show(at, bytes, None)?;
        for start in starts {
            if let Some(mapping) = self.mapped.remove(&start) {
                if let Some(extent) = self.extents.get_mut(&mapping.handle) {
                    extent.mappings -= 1;
                }
                self.drop_unused(mapping.handle);
            }
        }
        Ok(())
    }

    /// A piece of memory with an address of its own, as `cuMemAlloc` gives it.
    pub(crate) fn allocate(&mut self, bytes: u64) -> Outcome<u64> {
        let bytes = bytes.max(1).next_multiple_of(self.granularity);
        let handle = self.create(bytes)?;
        let at = self.reserve(bytes)?;
        self.map(at, bytes, handle)?;
        self.set_access(at, bytes)?;
        self.release(handle)?;
        Ok(at)
    }

    pub(crate) fn free(&mut self, at: u64) -> Outcome {
        let bytes = *self.reserved.get(&at).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        self.unmap(at, bytes)?;
        self.free_addresses(at, bytes)
    }

    /// Fails unless all of a range may be read and written.
    pub(crate) fn check_access(&self, at: u64, bytes: u64) -> Result<(), CUresult> {
        let end = at.checked_add(bytes).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
        let mut next = at;
        while next < end {
            let before = self.mapped.range(..=next).next_back();
            let behind = before.filter(|(_, mapping)| mapping.accessible);
            let behind = behind.map(|(start, mapping)| start + mapping.bytes);
            next = behind.filter(|&end| end > next).ok_or(CUDA_ERROR_ILLEGAL_ADDRESS)?;
        }
        Ok(())
    }

    /// The mapping around an address that may be read and written: where it starts and ends.
    pub(crate) fn accessible(&self, at: u64) -> Option<[u64; 2]> {
        let (&start, mapping) = self.mapped.range(..=at).next_back()?;
        let end = start + mapping.bytes;
        (mapping.accessible && at < end).then_some([start, end])
    }

    /// Takes everything back.
    pub(crate) fn clear(&mut self) {
        let reserved = std::mem::take(&mut self.reserved);
        self.mapped.clear();
        for (at, bytes) in reserved {
            // SAFETY: it was mapped by `reserve`, and nobody uses it any more.
            unsafe { libc::munmap(at as *mut _, bytes as usize) };
        }
        let handles: Vec<_> = self.extents.keys().copied().collect();
        for handle in handles {
            if let Some(extent) = self.extents.get_mut(&handle) {
                (extent.mappings, extent.released) = (0, true);
            }
            self.drop_unused(handle);
        }
    }

    /// What is mapped, reserved or held.
    pub(crate) fn live(&self) -> usize {
        self.extents.len() + self.reserved.len() + self.mapped.len()
    }
}
