//! Memory of the device and of the host.

use super::{driver_functions, load, store};
use crate::caller::Caller;
use crate::driver::Driver;
use crate::outcome::Outcome;
use crate::task::Task;
use cudarc::driver::sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
use cudarc::driver::sys::CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
use cudarc::driver::sys::CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocation, CUstream,
};
use std::ffi::{c_uchar, c_uint, c_ulonglong, c_void};

fn check_location(location: CUmemLocation) -> Outcome {
    // SAFETY: a location of a device has its number.
    let is_device = location.type_ == CU_MEM_LOCATION_TYPE_DEVICE
        && unsafe { location.__bindgen_anon_1.id } == 0;
    if is_device { Ok(()) } else { Err(CUDA_ERROR_INVALID_DEVICE) }
}

/// Fails unless memory is wanted of the one device, and without options.
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

/// Checks and counts a call of the virtual memory management.
fn check_vmm(driver: &Driver, caller: &Caller, flags: c_ulonglong) -> Outcome {
    driver.check_uncaptured(caller)?;
    driver.counters().vmm_calls += 1;
    if flags == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_VALUE) }
}

driver_functions! {
    |driver, caller|

    fn cuMemGetAllocationGranularity(
        granularity: *mut usize,
        properties: *const CUmemAllocationProp,
        _option: CUmemAllocationGranularity_flags,
    ) {
        driver.check_initialized()?;
        // SAFETY: the caller's.
        unsafe { check_properties(properties) }?;
        // SAFETY: the caller's.
        unsafe { store(granularity, driver.device.space.read().granularity_bytes() as usize) }?;
    }

    fn cuMemAddressReserve(
        at: *mut CUdeviceptr,
        bytes: usize,
        _alignment: usize,
        wanted: CUdeviceptr,
        flags: c_ulonglong,
    ) {
        check_vmm(driver, caller, flags | wanted)?;
        caller.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: the caller's.
        unsafe { store(at, driver.device.space.write().reserve(bytes as u64)?) }?;
    }

    fn cuMemAddressFree(at: CUdeviceptr, bytes: usize) {
        check_vmm(driver, caller, 0)?;
        driver.device.space.write().free_addresses(at, bytes as u64)?;
    }

    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle,
        bytes: usize,
        properties: *const CUmemAllocationProp,
        flags: c_ulonglong,
    ) {
        check_vmm(driver, caller, flags)?;
        // SAFETY: the caller's.
        unsafe { check_properties(properties) }?;
        caller.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: the caller's.
        unsafe { store(handle, driver.device.space.write().create(bytes as u64)?) }?;
    }

    fn cuMemRelease(handle: CUmemGenericAllocationHandle) {
        check_vmm(driver, caller, 0)?;
        driver.device.space.write().release(handle)?;
    }

    fn cuMemMap(
        at: CUdeviceptr,
        bytes: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    ) {
        check_vmm(driver, caller, flags | offset as u64)?;
        driver.counters().maps += 1;
        caller.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        driver.device.space.write().map(at, bytes as u64, handle)?;
    }

    fn cuMemSetAccess(
        at: CUdeviceptr,
        bytes: usize,
        access: *const CUmemAccessDesc,
        count: usize,
    ) {
        check_vmm(driver, caller, 0)?;
        driver.counters().set_accesses += 1;
        // SAFETY: the caller's.
        let access = unsafe { load(access) }?;
        check_location(access.location)?;
        if count != 1 || access.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        caller.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        driver.device.space.write().set_access(at, bytes as u64)?;
    }

    fn cuMemUnmap(at: CUdeviceptr, bytes: usize) {
        check_vmm(driver, caller, 0)?;
        driver.counters().unmaps += 1;
        let mut space = driver.device.space.write();
        driver.note_freed(at, bytes as u64);
        space.unmap(at, bytes as u64)?;
    }

    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) {
        driver.check_context(caller)?;
        let space = driver.device.space.read();
        // SAFETY: the caller's.
        unsafe { store(free, space.memory().free_bytes() as usize) }?;
        // SAFETY: the caller's.
        unsafe { store(total, space.memory().limit_bytes() as usize) }?;
    }

    fn cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize) {
        driver.check_uncaptured(caller)?;
        caller.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: the caller's.
        unsafe { store(at, driver.device.space.write().allocate(bytes as u64)?) }?;
    }

    fn cuMemFree_v2(at: CUdeviceptr) {
        driver.check_uncaptured(caller)?;
        let mut space = driver.device.space.write();
        driver.note_freed(at, space.reserved_bytes(at)?);
        space.free(at)?;
    }

    fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, _flags: c_uint) {
        driver.check_uncaptured(caller)?;
        caller.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: the caller's.
        unsafe { store(at, driver.device.pin(bytes)? as *mut c_void) }?;
    }

    fn cuMemFreeHost(at: *mut c_void) {
        driver.check_initialized()?;
        let is_used = |bytes| driver.note_freed(at as u64, bytes as u64);
        let table_bytes = driver.device.pinned.free_unless(at as usize, is_used)?;
        driver.device.give_back(table_bytes);
    }

    fn cuMemcpyHtoDAsync_v2(
        device: CUdeviceptr,
        host: *const c_void,
        bytes: usize,
        stream: CUstream,
    ) {
        let (host, bytes) = (host as usize, bytes as u64);
        check_copy(driver, caller, host, device, bytes)?;
        driver.enqueue(caller, stream as usize, Task::CopyH2D { host, device, bytes })?;
    }

    fn cuMemcpyDtoHAsync_v2(
        host: *mut c_void,
        device: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) {
        let (host, bytes) = (host as usize, bytes as u64);
        check_copy(driver, caller, host, device, bytes)?;
        driver.enqueue(caller, stream as usize, Task::CopyD2H { device, host, bytes })?;
    }

    fn cuMemsetD8Async(device: CUdeviceptr, byte: c_uchar, bytes: usize, stream: CUstream) {
        let bytes = bytes as u64;
        driver.check_context(caller)?;
        driver.device.space.read().check_access(device, bytes).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
        driver.counters().enqueued += 1;
        driver.enqueue(caller, stream as usize, Task::Fill { device, byte, bytes })?;
    }
}

/// Checks and counts a copy.
fn check_copy(driver: &Driver, caller: &Caller, host: usize, device: u64, bytes: u64) -> Outcome {
    driver.check_context(caller)?;
    driver.device.pinned.check(host, bytes)?;
    driver.device.space.read().check_access(device, bytes).map_err(|_| CUDA_ERROR_INVALID_VALUE)?;
    driver.counters().enqueued += 1;
    caller.refuse(CUDA_ERROR_INVALID_VALUE)
}
