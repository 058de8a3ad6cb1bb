//! Lets PyTorch allocate in an op's workspace on CUDA while the op runs.
//!
//! PyTorch calls these C functions from its own allocator, while it holds that allocator's lock. A
//! thread may wait for that lock while it holds Python's lock, so no Python may run here.
#![allow(unsafe_code, reason = "PyTorch finds the functions by their names")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;

thread_local! {
    /// The rest of the workspace of the op that this thread launches.
    static LEFT: Cell<Range<usize>> = const { Cell::new(0..0) };
}

/// Lets this thread allocate only `bytes` bytes from `address` on.
#[unsafe(no_mangle)]
extern "C" fn spillway_workspace(address: usize, bytes: usize) {
    LEFT.set(address..address.saturating_add(bytes));
}

/// Allocates memory. Returns null if the workspace has too few bytes left.
#[unsafe(no_mangle)]
extern "C" fn spillway_workspace_allocate(
    bytes: usize,
    _device: c_int,
    _stream: *mut c_void,
) -> *mut c_void {
    let Range { start, end } = LEFT.take();
    let fits = bytes <= end - start;
    LEFT.set(if fits { start + bytes..end } else { start..end });
    if fits { ptr::with_exposed_provenance_mut(start) } else { ptr::null_mut() }
}

/// Does nothing, since an op's workspace is free again when the op has ended.
#[unsafe(no_mangle)]
extern "C" fn spillway_workspace_free(
    _at: *mut c_void,
    _bytes: usize,
    _device: c_int,
    _stream: *mut c_void,
) {
}
