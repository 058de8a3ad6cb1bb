//! Pinned memory of the host.
#![allow(unsafe_code, reason = "memory is allocated and freed by its address")]

use crate::outcome::Outcome;
use cudarc::driver::sys::CUresult::{CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY};
use std::alloc::Layout;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The driver pins whole pages.
const PAGE_BYTES: usize = 4096;

/// Blocks of the host that copies may use.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    limit_bytes: u64,
    /// Their lengths by their addresses.
    blocks: Mutex<BTreeMap<usize, usize>>,
}

impl PinnedMemory {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, blocks: Mutex::default() }
    }

    fn blocks(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Allocates a block of zeros. Returns its address.
    pub(crate) fn allocate(&self, bytes: usize) -> Outcome<usize> {
        if bytes == 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        let layout = layout(bytes)?;
        let mut blocks = self.blocks();
        let used: usize = blocks.values().sum();
        let fits = used.checked_add(bytes).is_some_and(|all| all as u64 <= self.limit_bytes);
        if !fits {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        // SAFETY: the size is not zero.
        let block = unsafe { std::alloc::alloc_zeroed(layout) };
        if block.is_null() {
            return Err(CUDA_ERROR_OUT_OF_MEMORY);
        }
        blocks.insert(block as usize, bytes);
        Ok(block as usize)
    }

    /// Frees all blocks. No work uses them any more.
    pub(crate) fn clear(&self) {
        let all: Vec<_> = self.blocks().keys().copied().collect();
        for at in all {
            // It is there.
            let _ = self.free_unless(at, |_| false);
        }
    }

    /// Frees a block, unless work uses it: then it stays, so that it harms nobody but the test.
    /// Between the question and the end, no work passes [`Self::check`].
    pub(crate) fn free_unless(&self, at: usize, is_used: impl FnOnce(usize) -> bool) -> Outcome {
        let mut blocks = self.blocks();
        let bytes = *blocks.get(&at).ok_or(CUDA_ERROR_INVALID_VALUE)?;
        if is_used(bytes) {
            return Ok(());
        }
        blocks.remove(&at);
        // SAFETY: it was allocated with this layout, and is no longer among the blocks.
        unsafe { std::alloc::dealloc(at as *mut u8, layout(bytes)?) };
        Ok(())
    }

    /// Fails unless all of a range is in one block.
    pub(crate) fn check(&self, at: usize, bytes: u64) -> Outcome {
        let blocks = self.blocks();
        let block = blocks.range(..=at).next_back();
        let fits = block.is_some_and(|(start, len)| at as u64 + bytes <= (start + len) as u64);
        if fits { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
    }

    /// Counts the blocks.
    pub(crate) fn live(&self) -> usize {
        self.blocks().len()
    }
}

fn layout(bytes: usize) -> Outcome<Layout> {
    Layout::from_size_align(bytes, PAGE_BYTES).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
}
