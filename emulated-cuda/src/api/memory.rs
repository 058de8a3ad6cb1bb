//! Memory of the device and of the host.

use super::{driver_functions, load, store};
use crate::Outcome;
use crate::driver::DRIVER;
use crate::task::Task;
use cudarc::driver::sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
use cudarc::driver::sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
use cudarc::driver::sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocation, CUstream,
};
use std::alloc::Layout;
use std::ffi::{c_uchar, c_uint, c_ulonglong, c_void};

fn check_location(location: CUmemLocation) -> Outcome {
    let is_device = location.type_ == CU_MEM_LOCATION_TYPE_DEVICE && location.id == 0;
    if is_device { Ok(()) } else { Err(CUDA_ERROR_INVALID_DEVICE) }
}

/// Memory of the one device, without anything special.
///
/// # Safety
/// The pointer is null, or may be read.
unsafe fn check_properties(properties: *const CUmemAllocationProp) -> Outcome {
    // SAFETY: by the promise above.
    let properties = unsafe { load(properties) }?;
    if properties.type_ != CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    check_location(properties.location)
}

/// What every call that changes addresses begins with.
fn check_vmm(flags: c_ulonglong) -> Outcome {
    DRIVER.check_uncaptured()?;
    DRIVER.counters().vmm_calls += 1;
    if flags == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

/// Pages, as the driver pins them.
fn layout(bytes: usize) -> Outcome<Layout> {
    Layout::from_size_align(bytes, 4096).map_err(|_| CUDA_ERROR_OUT_OF_MEMORY)
}

driver_functions! {
    fn cuMemGetAllocationGranularity(
        granularity: *mut usize,
        properties: *const CUmemAllocationProp,
        _option: CUmemAllocationGranularity_flags,
    ) {
        DRIVER.check_initialized()?;
        // SAFETY: the caller's.
        unsafe { check_properties(properties) }?;
        // SAFETY: the caller's.
        unsafe { store(granularity, DRIVER.space().granularity as usize) }?;
    }

    fn cuMemAddressReserve(
        at: *mut CUdeviceptr,
        bytes: usize,
        _alignment: usize,
        wanted: CUdeviceptr,
        flags: c_ulonglong,
    ) {
        check_vmm(flags | wanted)?;
        DRIVER.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: the caller's.
        unsafe { store(at, DRIVER.changing_space().reserve(bytes as u64)?) }?;
    }

    fn cuMemAddressFree(at: CUdeviceptr, bytes: usize) {
        check_vmm(0)?;
        DRIVER.changing_space().free_addresses(at, bytes as u64)?;
    }

    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle,
        bytes: usize,
        properties: *const CUmemAllocationProp,
        flags: c_ulonglong,
    ) {
        check_vmm(flags)?;
        // SAFETY: the caller's.
        unsafe { check_properties(properties) }?;
        DRIVER.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: the caller's.
        unsafe { store(handle, DRIVER.changing_space().create(bytes as u64)?) }?;
    }

    fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        check_vmm(0)?;
        DRIVER.changing_space().release(handle)?;
    }

    fn cuMemMap(
        at: CUdeviceptr,
        bytes: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    ) {
        check_vmm(flags | offset as u64)?;
        DRIVER.counters().maps += 1;
        DRIVER.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        DRIVER.changing_space().map(at, bytes as u64, handle)?;
    }

    fn cuMemSetAccess(
        at: CUdeviceptr,
        bytes: usize,
        access: *const CUmemAccessDesc,
        count: usize,
    ) {
        check_vmm(0)?;
        DRIVER.counters().set_accesses += 1;
        // SAFETY: the caller's.
        let access = unsafe { load(access) }?;
        check_location(access.location)?;
        if count != 1 || access.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        DRIVER.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        DRIVER.changing_space().set_access(at, bytes as u64)?;
    }

    fn cuMemUnmap(at: CUdeviceptr, bytes: usize) {
        check_vmm(0)?;
        DRIVER.counters().unmaps += 1;
        DRIVER.changing_space().unmap(at, bytes as u64)?;
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        DRIVER.check_context()?;
        let space = DRIVER.space();
        // SAFETY: the caller's.
        unsafe { store(free, (space.limit_bytes - space.used_bytes) as usize) }?;
        // SAFETY: the caller's.
        unsafe { store(total, space.limit_bytes as usize) }?;
    }

    fn cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize) {
        DRIVER.check_uncaptured()?;
        DRIVER.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: the caller's.
        unsafe { store(at, DRIVER.changing_space().allocate(bytes as u64)?) }?;
    }

    fn cuMemFree_v2(at: CUdeviceptr) {
        DRIVER.check_uncaptured()?;
        DRIVER.changing_space().free(at)?;
    }

    fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        DRIVER.check_uncaptured()?;
        DRIVER.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        let layout = layout(bytes)?;
        // SAFETY: the size is not zero, which `pin` sees to.
        let block = DRIVER.pin(bytes, || unsafe { std::alloc::alloc_zeroed(layout) } as usize)?;
        // SAFETY: the caller's.
        unsafe { store(at, block as *mut c_void) }?;
    }

    fn cuMemFreeHost(at: *mut c_void) {
        DRIVER.check_initialized()?;
        let bytes = DRIVER.unpin(at as usize)?;
        // SAFETY: it was allocated with this layout, and is no longer pinned.
        unsafe { std::alloc::dealloc(at.cast(), layout(bytes)?) };
    }

    fn cuMemcpyHtoDAsync_v2(
        device: CUdeviceptr,
        host: *const c_void,
        bytes: usize,
        stream: CUstream,
    ) {
        let (host, bytes) = (host as usize, bytes as u64);
        check_copy(host, device, bytes)?;
        DRIVER.enqueue(stream as usize, Task::Upload { host, device, bytes })?;
    }

    fn cuMemcpyDtoHAsync_v2(
        host: *mut c_void,
        device: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) {
        let (host, bytes) = (host as usize, bytes as u64);
        check_copy(host, device, bytes)?;
        DRIVER.enqueue(stream as usize, Task::Download { device, host, bytes })?;
    }

    fn cuMemsetD8Async(device: CUdeviceptr, byte: c_uchar, bytes: usize, stream: CUstream) {
        let bytes = bytes as u64;
        DRIVER.check_context()?;
        DRIVER.space().check_access(device, bytes).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        DRIVER.counters().enqueued += 1;
        DRIVER.enqueue(stream as usize, Task::Fill { device, byte, bytes })?;
    }
}

/// What copies begin with.
fn check_copy(host: usize, device: u64, bytes: u64) -> Outcome {
    DRIVER.check_context()?;
    DRIVER.check_pinned(host, bytes)?;
    DRIVER.space().check_access(device, bytes).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    DRIVER.counters().enqueued += 1;
    DRIVER.refuse(CUDA_ERROR_INVALID_VALUE)
}
