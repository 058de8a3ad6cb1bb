//! How much memory a case takes.
#![allow(unsafe_code, reason = "counting bytes takes a global allocator")]

use crate::fault::Fault;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What an input of some kilobytes may take at most.
const MOST_BYTES: usize = 256 << 20;

/// When large allocations are refused, so that the machine has memory left for others;
const REFUSED_BYTES: usize = 2 << 30;
/// and what is small.
const SMALL_BYTES: usize = 1 << 24;

static HELD: AtomicUsize = AtomicUsize::new(0);
/// The most that was held or wanted.
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

/// Counts an allocation; false where it is refused.
fn takes(layout: Layout) -> bool {
    let held = HELD.fetch_add(layout.size(), Relaxed) + layout.size();
    PEAK.fetch_max(held, Relaxed);
    let fits = held <= REFUSED_BYTES || layout.size() <= SMALL_BYTES;
    if !fits {
        HELD.fetch_sub(layout.size(), Relaxed);
    }
    fits
}

// SAFETY: every call is passed on unchanged to the system's allocator, or refused.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc`.
        if takes(layout) { unsafe { System.alloc(layout) } } else { ptr::null_mut() }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of `alloc_zeroed`.
        if takes(layout) { unsafe { System.alloc_zeroed(layout) } } else { ptr::null_mut() }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Does something, and holds it to a bound on memory.
///
/// # Errors
/// Those of `check`, or that it took too much.
pub fn within_bounds(check: impl FnOnce() -> Result<(), Fault>) -> Result<(), Fault> {
    let before = HELD.load(Relaxed);
    PEAK.store(before, Relaxed);
    let done = check();
    let taken_bytes = PEAK.load(Relaxed).saturating_sub(before);
    if taken_bytes > MOST_BYTES {
        return Err(Fault::new("memory", format!("takes {taken_bytes} bytes of memory")));
    }
    done
}
