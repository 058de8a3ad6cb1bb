//! Pinned memory of the host.
#![allow(unsafe_code, reason = "memory is mapped and unmapped by its address")]

use crate::file::MemoryFile;
use crate::outcome::Outcome;
use cudarc::driver::sys::CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A block, mapped from a file of its own, so that what nobody has written takes no memory.
#[derive(Debug)]
struct Block {
    bytes: usize,
    file: MemoryFile,
    /// Memory of the device for the tables by which it finds the block's pages.
    table_bytes: u64,
}

/// Blocks of the host that copies may use.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    limit_bytes: u64,
    /// By their addresses.
    blocks: Mutex<BTreeMap<usize, Block>>,
}

impl PinnedMemory {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, blocks: Mutex::default() }
    }

    fn blocks(&self) -> MutexGuard<'_, BTreeMap<usize, Block>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a block of zeros, for whose tables the device has given memory. Returns its address.
    pub(crate) fn allocate(&self, bytes: usize, table_bytes: u64) -> Outcome<usize> {
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let mut blocks = self.blocks();
        let used: usize = blocks.values().map(|block| block.bytes).sum();
        let fits = used.checked_add(bytes).is_some_and(|all| all as u64 <= self.limit_bytes);
        if !fits {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        let file = MemoryFile::new(bytes as u64);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of the whole file, where the system wants it.
        let at = unsafe {
            libc::mmap(ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.descriptor(), 0)
        };
        if at == libc::MAP_FAILED {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        blocks.insert(at as usize, Block { bytes, file, table_bytes });
        Ok(at as usize)
    }

    /// Frees all blocks. No work uses them any more. Returns the bytes of their tables.
    pub(crate) fn clear(&self) -> u64 {
        let all: Vec<_> = self.blocks().keys().copied().collect();
        // All are there.
        all.into_iter().filter_map(|at| self.free_unless(at, |_| false).ok()).sum()
    }

    /// Frees a block, unless work uses it: then it stays, so that it harms nobody but the test.
    /// Between the question and the end, no work passes [`Self::check`]. Returns the bytes of the
    /// tables that are no longer needed.
    pub(crate) fn free_unless(
        &self,
        at: usize,
        is_used: impl FnOnce(usize) -> bool,
    ) -> Outcome<u64> {
        let mut blocks = self.blocks();
        let Some(&Block { bytes, table_bytes, .. }) = blocks.get(&at) else {
            return Err(CUDA_ERROR_INVALID_VALUE);
        };
        if is_used(bytes) {
            return Ok(0);
        }
        blocks.remove(&at);
        // SAFETY: it was mapped with this length, and is no longer among the blocks.
        unsafe { libc::munmap(at as *mut _, bytes) };
        Ok(table_bytes)
    }

    /// Fails unless all of a range is in one block.
    pub(crate) fn check(&self, at: usize, bytes: u64) -> Outcome {
        let blocks = self.blocks();
        let block = blocks.range(..=at).next_back();
        let end = at as u64 + bytes;
        let fits = block.is_some_and(|(start, block)| end <= (start + block.bytes) as u64);
        if fits { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    /// Whether nobody has written a range, which lies in one block: then it holds zeros.
    pub(crate) fn is_unwritten(&self, at: usize, bytes: u64) -> bool {
        let blocks = self.blocks();
        let block = blocks.range(..=at).next_back();
        block.is_some_and(|(start, block)| block.file.is_unwritten((at - start) as u64, bytes))
    }

    /// Counts the blocks.
    pub(crate) fn live(&self) -> usize {
        self.blocks().len()
    }
}
