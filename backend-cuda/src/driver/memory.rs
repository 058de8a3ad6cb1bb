use crate::error::{CudaError, named};
use cudarc::driver::sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
use cudarc::driver::sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
use cudarc::driver::sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
use cudarc::driver::sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::sync::Arc;

fn location(context: &CudaContext) -> sys::CUmemLocation {
    sys::CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, id: context.cu_device() }
}

fn properties(context: &CudaContext) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType_enum(0),
        location: location(context),
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// What sizes and addresses of mappings must be multiples of.
pub(crate) fn granularity_bytes(context: &CudaContext) -> Result<u64, CudaError> {
    let (mut bytes, properties) = (0, properties(context));
    let call = "cuMemGetAllocationGranularity";
    let minimum = CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: the number may be written, and the properties read.
    let result = unsafe {
        sys::cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, minimum)
    };
    named(call, result.result()).map(|()| bytes as u64)
}

/// A physical chunk. It goes when it is dropped and mapped nowhere.
#[derive(Debug)]
pub(crate) struct Physical {
    handle: sys::CUmemGenericAllocationHandle,
    context: Arc<CudaContext>,
}

impl Physical {
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: u64) -> Result<Self, CudaError> {
        named("cuCtxSetCurrent", context.bind_to_thread())?;
        let (mut handle, properties) = (0, properties(context));
        let (handle_at, properties) = (&raw mut handle, &raw const properties);
        // SAFETY: the handle may be written, and the properties read.
        let result = unsafe { sys::cuMemCreate(handle_at, bytes as usize, properties, 0) };
        named("cuMemCreate", result.result())?;
        Ok(Self { handle, context: Arc::clone(context) })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: the handle is this object's. Where the device is lost, nothing is left to
        // release.
        let _ = unsafe { sys::cuMemRelease(self.handle) };
    }
}

/// Reserved addresses. What is mapped there must have been unmapped when they are dropped.
#[derive(Debug)]
pub(crate) struct Addresses {
    pub(crate) start: u64,
    bytes: u64,
    context: Arc<CudaContext>,
}

impl Addresses {
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: u64) -> Result<Self, CudaError> {
        named("cuCtxSetCurrent", context.bind_to_thread())?;
        let mut start = 0;
        // SAFETY: the address may be written.
        let result = unsafe { sys::cuMemAddressReserve(&raw mut start, bytes as usize, 0, 0, 0) };
        named("cuMemAddressReserve", result.result())?;
        Ok(Self { start, bytes, context: Arc::clone(context) })
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: the range is this object's, and nothing is mapped in it.
        let _ = unsafe { sys::cuMemAddressFree(self.start, self.bytes as usize) };
    }
}

/// Maps a whole chunk at reserved addresses where nothing is mapped.
pub(crate) fn map(
    context: &CudaContext,
    at: u64,
    bytes: u64,
    chunk: &Physical,
) -> Result<(), CudaError> {
    named("cuCtxSetCurrent", context.bind_to_thread())?;
    // SAFETY: the addresses are reserved and free, and the chunk has this size.
    named("cuMemMap", unsafe { sys::cuMemMap(at, bytes as usize, 0, chunk.handle, 0) }.result())
}

/// Lets the device read and write mapped addresses of one reservation.
pub(crate) fn set_access(context: &CudaContext, at: u64, bytes: u64) -> Result<(), CudaError> {
    named("cuCtxSetCurrent", context.bind_to_thread())?;
    let access = sys::CUmemAccessDesc {
        location: location(context),
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the addresses are mapped, and the description may be read.
    let result = unsafe { sys::cuMemSetAccess(at, bytes as usize, &raw const access, 1) };
    named("cuMemSetAccess", result.result())
}

/// Unmaps whole mappings that no enqueued work uses.
pub(crate) fn unmap(context: &CudaContext, at: u64, bytes: u64) -> Result<(), CudaError> {
    named("cuCtxSetCurrent", context.bind_to_thread())?;
    // SAFETY: the mappings are whole, and nothing uses them.
    named("cuMemUnmap", unsafe { sys::cuMemUnmap(at, bytes as usize) }.result())
}

/// Enqueues that mapped addresses are set to zero.
pub(crate) fn fill(stream: &CudaStream, at: u64, bytes: u64) -> Result<(), CudaError> {
    named("cuCtxSetCurrent", stream.context().bind_to_thread())?;
    // SAFETY: the range is mapped, and stays so until the work has ended.
    let filled = unsafe { result::memset_d8_async(at, 0, bytes as usize, stream.cu_stream()) };
    named("cuMemsetD8Async", filled)
}

/// Memory of the device beside the chunks, zero at first.
#[derive(Debug)]
pub(crate) struct Working {
    pub(crate) at: u64,
    context: Arc<CudaContext>,
}

impl Working {
    /// The zeros are there for what is enqueued on the stream from now on.
    pub(crate) fn zeroed(stream: &CudaStream, bytes: u64) -> Result<Self, CudaError> {
        let context = stream.context();
        named("cuCtxSetCurrent", context.bind_to_thread())?;
        // SAFETY: whoever uses it writes it first, or reads the zeros.
        let at = named("cuMemAlloc", unsafe { result::malloc_sync(bytes as usize) })?;
        let working = Self { at, context: Arc::clone(context) };
        fill(stream, at, bytes)?;
        Ok(working)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: it is this object's, and no enqueued work uses it.
        let _ = unsafe { result::free_sync(self.at) };
    }
}
