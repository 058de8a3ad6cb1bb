//! Memory that is allocated and freed in the order of a stream.

use super::queries::check_device;
use super::{driver_functions, load, store};
use cudarc::driver::sys::CUmemPool_attribute_enum::{
    self as Attribute, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
};
use cudarc::driver::sys::CUresult::*;
use cudarc::driver::sys::{CUdevice, CUdeviceptr, CUmemoryPool, CUstream};
use std::ffi::c_void;

driver_functions! {
    |driver, caller|

    fn cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice) {
        check_device(driver, device)?;
        // SAFETY: the caller's.
        unsafe { store(pool, driver.default_pool as CUmemoryPool) }?;
    }

    fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice) {
        check_device(driver, device)?;
        // SAFETY: the caller's.
        unsafe { store(pool, driver.default_pool as CUmemoryPool) }?;
    }

    fn cuMemPoolSetAttribute(pool: CUmemoryPool, attribute: Attribute, value: *mut c_void) {
        driver.check_initialized()?;
        let pool = driver.pools.get(pool as usize)?;
        if attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        // SAFETY: the caller's; this attribute has 64 bits.
        pool.set_release_threshold(unsafe { load(value.cast()) }?);
    }

    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: Attribute, value: *mut c_void) {
        driver.check_initialized()?;
        let pool = driver.pools.get(pool as usize)?;
        if attribute != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD {
            return Err(CUDA_ERROR_NOT_SUPPORTED);
        }
        // SAFETY: the caller's; this attribute has 64 bits.
        unsafe { store(value.cast(), pool.release_threshold_bytes()) }?;
    }

    fn cuMemPoolTrimTo(pool: CUmemoryPool, _kept_bytes: usize) {
        driver.check_initialized()?;
        driver.pools.get(pool as usize)?;
    }

    fn cuMemAllocAsync(at: *mut CUdeviceptr, bytes: usize, stream: CUstream) {
        driver.check_context(caller)?;
        caller.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        let pool = driver.default_pool;
        // SAFETY: the caller's.
        unsafe { store(at, driver.allocate_async(stream as usize, pool, bytes as u64)?) }?;
    }

    fn cuMemAllocFromPoolAsync(
        at: *mut CUdeviceptr,
        bytes: usize,
        pool: CUmemoryPool,
        stream: CUstream,
    ) {
        driver.check_context(caller)?;
        caller.refuse(CUDA_ERROR_OUT_OF_MEMORY)?;
        // SAFETY: the caller's.
        unsafe { store(at, driver.allocate_async(stream as usize, pool as usize, bytes as u64)?) }?;
    }

    fn cuMemFreeAsync(at: CUdeviceptr, stream: CUstream) {
        driver.check_context(caller)?;
        driver.free_async(caller, stream as usize, at)?;
    }
}
