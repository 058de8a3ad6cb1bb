//! Pinned host memory, and the copies between it and the device.

use super::api;
use super::context::{Context, make_current};
use super::stream::Stream;
use crate::error::CudaError;
use std::ops::Range;
use std::ptr::NonNull;

/// Pinned host memory, which does not move, so the device can copy from and to it.
#[derive(Debug)]
pub(crate) struct Pinned {
    start: NonNull<u8>,
    bytes: u64,
    context: Context,
}

// SAFETY: the memory belongs to the process, and any thread that has this object may use it.
unsafe impl Send for Pinned {}

impl Pinned {
    pub(crate) fn new(context: Context, bytes: u64) -> Result<Self, CudaError> {
        make_current(context)?;
        let mut start = std::ptr::null_mut();
        // SAFETY: the address may be written.
        unsafe { api::cuMemHostAlloc(&raw mut start, bytes as usize, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(CudaError::OutOfHostMemory { bytes })?;
        Ok(Self { start, bytes, context })
    }

    /// The address of a range.
    ///
    /// # Panics
    /// If the range is not inside the memory.
    fn place(&self, range: &Range<u64>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.bytes, "inside the block");
        // SAFETY: the range lies inside the block, which is one allocation.
        unsafe { self.start.as_ptr().add(range.start as usize) }
    }

    /// The address of a range.
    pub(crate) fn address(&self, range: &Range<u64>) -> u64 {
        self.place(range) as u64
    }

    /// Writes bytes at once.
    pub(crate) fn write(&self, offset_bytes: u64, from: &[u8]) {
        let to = self.place(&(offset_bytes..offset_bytes + from.len() as u64));
        // SAFETY: the range lies inside, and no Rust reference to it exists. If a copy of the
        // device uses it meanwhile, each byte is the old or the new one, and both are valid.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// Reads bytes at once.
    pub(crate) fn read(&self, offset_bytes: u64, into: &mut [u8]) {
        let from = self.place(&(offset_bytes..offset_bytes + into.len() as u64));
        // SAFETY: as above.
        unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = make_current(self.context);
        // SAFETY: this object owns the memory, and no enqueued work uses it: a device that cannot
        // wait for its work leaks the memory.
        let _ = unsafe { api::cuMemFreeHost(self.start.as_ptr().cast()) };
    }
}

/// Enqueues a copy to mapped addresses.
pub(crate) fn upload(
    stream: &Stream,
    from: (&Pinned, Range<u64>),
    to: u64,
) -> Result<(), CudaError> {
    make_current(stream.context())?;
    let (host, range) = from;
    let (place, bytes) = (host.place(&range), (range.end - range.start) as usize);
    let stream = stream.raw();
    // SAFETY: both ranges lie inside their blocks, which stay until the work has ended.
    unsafe { api::cuMemcpyHtoDAsync_v2(to, place.cast(), bytes, stream) }
}

/// Enqueues a copy from mapped addresses.
pub(crate) fn download(
    stream: &Stream,
    from: u64,
    to: (&Pinned, Range<u64>),
) -> Result<(), CudaError> {
    make_current(stream.context())?;
    let (host, range) = to;
    let (place, bytes) = (host.place(&range), (range.end - range.start) as usize);
    let stream = stream.raw();
    // SAFETY: as above.
    unsafe { api::cuMemcpyDtoHAsync_v2(place.cast(), from, bytes, stream) }
}
