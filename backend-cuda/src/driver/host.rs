use crate::error::{CudaError, named};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// Host memory that does not move, so that the device copies from and to it.
#[derive(Debug)]
pub(crate) struct Pinned {
    start: NonNull<u8>,
    bytes: u64,
    context: Arc<CudaContext>,
}

impl Pinned {
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: u64) -> Result<Self, CudaError> {
        named("cuCtxSetCurrent", context.bind_to_thread())?;
        // SAFETY: whatever the memory holds, it is bytes.
        let start = named("cuMemHostAlloc", unsafe { result::malloc_host(bytes as usize, 0) })?;
        let start = NonNull::new(start.cast()).ok_or(CudaError::OutOfHostMemory { bytes })?;
        Ok(Self { start, bytes, context: Arc::clone(context) })
    }

    /// Where a range lies.
    ///
    /// # Panics
    /// A range that is not inside.
    fn place(&self, range: &Range<u64>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.bytes, "inside the block");
        // SAFETY: it lies inside.
        unsafe { self.start.as_ptr().add(range.start as usize) }
    }

    /// Writes, at once.
    pub(crate) fn write(&self, offset_bytes: u64, from: &[u8]) {
        let to = self.place(&(offset_bytes..offset_bytes + from.len() as u64));
        // SAFETY: the range lies inside, and no copy of the device's uses it.
        unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
    }

    /// Reads, at once.
    pub(crate) fn read(&self, offset_bytes: u64, into: &mut [u8]) {
        let from = self.place(&(offset_bytes..offset_bytes + into.len() as u64));
        // SAFETY: the same.
        unsafe { from.copy_to_nonoverlapping(into.as_mut_ptr(), into.len()) };
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: it is this object's, and no enqueued work uses it.
        let _ = unsafe { result::free_host(self.start.as_ptr().cast()) };
    }
}

/// Enqueues a copy to mapped addresses.
pub(crate) fn upload(
    stream: &CudaStream,
    from: (&Pinned, Range<u64>),
    to: u64,
) -> Result<(), CudaError> {
    named("cuCtxSetCurrent", stream.context().bind_to_thread())?;
    let (host, range) = from;
    let (place, bytes) = (host.place(&range), (range.end - range.start) as usize);
    let stream = stream.cu_stream();
    // SAFETY: both ranges lie inside what they are parts of, and stay until the work has ended.
    let result = unsafe { sys::cuMemcpyHtoDAsync_v2(to, place.cast(), bytes, stream) };
    named("cuMemcpyHtoDAsync", result.result())
}

/// Enqueues a copy from mapped addresses.
pub(crate) fn download(
    stream: &CudaStream,
    from: u64,
    to: (&Pinned, Range<u64>),
) -> Result<(), CudaError> {
    named("cuCtxSetCurrent", stream.context().bind_to_thread())?;
    let (host, range) = to;
    let (place, bytes) = (host.place(&range), (range.end - range.start) as usize);
    let stream = stream.cu_stream();
    // SAFETY: the same.
    let result = unsafe { sys::cuMemcpyDtoHAsync_v2(place.cast(), from, bytes, stream) };
    named("cuMemcpyDtoHAsync", result.result())
}
