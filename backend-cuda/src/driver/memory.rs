//! Memory of the device: addresses, chunks and mappings.

use super::api;
use super::context::{Context, make_current};
use super::stream::Stream;
use crate::error::CudaError;
use cudarc::driver::sys;
use cudarc::driver::sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
use cudarc::driver::sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
use cudarc::driver::sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
use std::ops::Range;

/// `CU_MEM_ALLOC_GRANULARITY_MINIMUM`.
const MINIMUM: u32 = 0;

fn location(context: Context) -> sys::CUmemLocation {
    let __bindgen_anon_1 = sys::CUmemLocation_st__bindgen_ty_1 { id: context.device };
    sys::CUmemLocation { type_: CU_MEM_LOCATION_TYPE_DEVICE, __bindgen_anon_1 }
}

fn properties(context: Context) -> sys::CUmemAllocationProp {
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

/// Sizes and addresses of mappings must be multiples of this.
pub(crate) fn granularity_bytes(context: Context) -> Result<u64, CudaError> {
    let (mut bytes, properties) = (0, properties(context));
    // SAFETY: the number may be written, and the properties may be read.
    unsafe { api::cuMemGetAllocationGranularity(&raw mut bytes, &raw const properties, MINIMUM) }?;
    Ok(bytes as u64)
}

/// A physical chunk. The driver frees it once it is dropped and has no mapping.
#[derive(Debug)]
pub(crate) struct Physical {
    handle: sys::CUmemGenericAllocationHandle,
    context: Context,
}

impl Physical {
    pub(crate) fn new(context: Context, bytes: u64) -> Result<Self, CudaError> {
        make_current(context)?;
        let (mut handle, properties) = (0, properties(context));
        let (handle_at, properties) = (&raw mut handle, &raw const properties);
        // SAFETY: the handle may be written, and the properties may be read.
        unsafe { api::cuMemCreate(handle_at, bytes as usize, properties, 0) }?;
        Ok(Self { handle, context })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        let _ = make_current(self.context);
        // SAFETY: this object owns the handle. If the device is lost, there is nothing to release.
        let _ = unsafe { api::cuMemRelease(self.handle) };
    }
}

/// Reserved addresses. All mappings there must be removed before a drop.
#[derive(Debug)]
pub(crate) struct Addresses {
    start: u64,
    bytes: u64,
    context: Context,
}

impl Addresses {
    pub(crate) fn new(context: Context, bytes: u64) -> Result<Self, CudaError> {
        make_current(context)?;
        let mut start = 0;
        // SAFETY: the address may be written.
        unsafe { api::cuMemAddressReserve(&raw mut start, bytes as usize, 0, 0, 0) }?;
        Ok(Self { start, bytes, context })
    }

    pub(crate) fn range(&self) -> Range<u64> {
        self.start..self.start + self.bytes
    }
}

impl Drop for Addresses {
    fn drop(&mut self) {
        let _ = make_current(self.context);
        // SAFETY: this object owns the range, and nothing is mapped in it.
        let _ = unsafe { api::cuMemAddressFree(self.start, self.bytes as usize) };
    }
}

/// Maps a whole chunk at reserved addresses that have no mapping.
pub(crate) fn map(
    context: Context,
    at: u64,
    bytes: u64,
    chunk: &Physical,
) -> Result<(), CudaError> {
    make_current(context)?;
    // SAFETY: the addresses are reserved and free, and the chunk has this size.
    unsafe { api::cuMemMap(at, bytes as usize, 0, chunk.handle, 0) }
}

/// Lets the device read and write mapped addresses of one reservation.
pub(crate) fn set_access(context: Context, at: u64, bytes: u64) -> Result<(), CudaError> {
    make_current(context)?;
    let access = sys::CUmemAccessDesc {
        location: location(context),
        flags: CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: the addresses are mapped, and the description may be read.
    unsafe { api::cuMemSetAccess(at, bytes as usize, &raw const access, 1) }
}

/// Unmaps whole mappings that no enqueued work uses.
pub(crate) fn unmap(context: Context, at: u64, bytes: u64) -> Result<(), CudaError> {
    make_current(context)?;
    // SAFETY: the mappings are whole, and nothing uses them.
    unsafe { api::cuMemUnmap(at, bytes as usize) }
}

/// Enqueues a fill of mapped addresses with zeros.
pub(crate) fn fill(stream: &Stream, at: u64, bytes: u64) -> Result<(), CudaError> {
    make_current(stream.context())?;
    // SAFETY: the range is mapped, and stays mapped until the work has ended.
    unsafe { api::cuMemsetD8Async(at, 0, bytes as usize, stream.raw()) }
}

/// Memory of the device beside the chunks.
#[derive(Debug)]
pub(crate) struct Working {
    pub(crate) at: u64,
    context: Context,
}

impl Working {
    pub(crate) fn new(context: Context, bytes: u64) -> Result<Self, CudaError> {
        make_current(context)?;
        let mut at = 0;
        // SAFETY: the address may be written.
        unsafe { api::cuMemAlloc_v2(&raw mut at, bytes as usize) }?;
        Ok(Self { at, context })
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let _ = make_current(self.context);
        // SAFETY: this object owns the memory, and no enqueued work uses it.
        let _ = unsafe { api::cuMemFree_v2(self.at) };
    }
}
