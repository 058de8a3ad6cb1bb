//! Gives PyTorch an op's workspace on CUDA while the op runs, and the planned memory for the op's
//! results.
//!
//! PyTorch calls the C functions from its own allocator, while it holds that allocator's lock. A
//! thread may wait for that lock while it holds Python's lock, so no Python may run in them.
#![allow(unsafe_code, reason = "PyTorch finds the C functions by their names")]

use pyo3::pyfunction;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::ptr;

/// A segment at the planned address of a result: the segment's number among the segments that the op
/// takes, the bytes that PyTorch asks for, and the address.
///
/// PyTorch rounds the bytes up, so a segment may reach beyond the result's memory.
type Place = (usize, usize, usize);

#[derive(Default)]
struct Launch {
    /// The rest of the workspace.
    left: Range<usize>,
    places: Vec<Place>,
    /// The address and the bytes of each segment so far.
    segments: Vec<(usize, usize)>,
    /// The segments that PyTorch has not given back.
    held: usize,
    refused_bytes: usize,
}

impl Launch {
    fn take(&mut self, bytes: usize) -> Option<usize> {
        let number = self.segments.len();
        let place = self.places.iter().find(|&&(of, size, _)| (of, size) == (number, bytes));
        let address = match place {
            Some(&(_, _, address)) => address,
            None if bytes <= self.left.len() => {
                let start = self.left.start;
                self.left.start += bytes;
                start
            }
            None => {
                self.refused_bytes = self.refused_bytes.saturating_add(bytes);
                return None;
            }
        };
        self.segments.push((address, bytes));
        self.held += 1;
        Some(address)
    }

    fn give_back(&mut self, address: usize) {
        if self.segments.iter().any(|&(start, _)| start == address) {
            self.held = self.held.saturating_sub(1);
        }
    }
}

thread_local! {
    /// The op that this thread launches.
    static LAUNCH: RefCell<Launch> = RefCell::default();
}

/// Lets this thread allocate `bytes` bytes from `address` on, and the segments of `places`, until
/// `end_workspace`.
#[pyfunction]
pub(crate) fn begin_workspace(address: usize, bytes: usize, places: Vec<Place>) {
    let left = address..address.saturating_add(bytes);
    LAUNCH.set(Launch { left, places, ..Launch::default() });
}

/// Returns the address and the bytes of each segment that this thread has allocated, how many of
/// them are still held, and the bytes that were refused.
#[pyfunction]
pub(crate) fn end_workspace() -> (Vec<(usize, usize)>, usize, usize) {
    let Launch { segments, held, refused_bytes, .. } = LAUNCH.take();
    (segments, held, refused_bytes)
}

/// Allocates a segment. Returns null if the workspace has too few bytes left.
#[unsafe(no_mangle)]
extern "C" fn spillway_workspace_allocate(
    bytes: usize,
    _device: c_int,
    _stream: *mut c_void,
) -> *mut c_void {
    match LAUNCH.with_borrow_mut(|launch| launch.take(bytes)) {
        Some(address) => ptr::with_exposed_provenance_mut(address),
        None => ptr::null_mut(),
    }
}

/// Takes a segment back. Its memory is free again when the op has ended.
#[unsafe(no_mangle)]
extern "C" fn spillway_workspace_free(
    at: *mut c_void,
    _bytes: usize,
    _device: c_int,
    _stream: *mut c_void,
) {
    // While a thread ends, its launch is already gone.
    let _ = LAUNCH.try_with(|launch| launch.borrow_mut().give_back(at.expose_provenance()));
}
