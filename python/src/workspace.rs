//! Where PyTorch allocates on CUDA while an op runs: in the op's workspace.
//!
//! PyTorch calls these C functions from its own allocator, whose lock it holds. A thread may wait for
//! that lock while it holds Python's, so no Python may run here.
#![allow(unsafe_code, reason = "PyTorch finds the functions by their names")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;

thread_local! {
    /// What is left of the workspace of the op that this thread launches.
    static LEFT: Cell<Range<usize>> = const { Cell::new(0..0) };
}

/// Lets this thread allocate so many bytes from an address on, and nothing else.
#[unsafe(no_mangle)]
extern "C" fn spillway_workspace(address: usize, bytes: usize) {
    LEFT.set(address..address.saturating_add(bytes));
}

/// Allocates, or returns null where the workspace has fewer bytes left.
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

/// Does nothing: an op's workspace is free again when the op has ended.
#[unsafe(no_mangle)]
extern "C" fn spillway_workspace_free(
    _at: *mut c_void,
    _bytes: usize,
    _device: c_int,
    _stream: *mut c_void,
) {
}
