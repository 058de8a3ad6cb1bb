//! The driver, its one device and its one context.

use super::{driver_functions, store};
use crate::driver::{DRIVER, Driver};
use cudarc::driver::sys::CUdevice_attribute_enum::{self as Attribute, *};
use cudarc::driver::sys::CUresult::{self, *};
use cudarc::driver::sys::{CUcontext, CUdevice};
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::atomic::Ordering;

const NAME: &CStr = c"emulated CUDA device, no GPU";

fn check_device(device: CUdevice) -> crate::Outcome {
    DRIVER.check_initialized()?;
    if device == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_DEVICE) }
}

driver_functions! {
    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        DRIVER.is_initialized.store(true, Ordering::SeqCst);
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller's.
        unsafe { store(version, 12_000) }?;
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        DRIVER.check_initialized()?;
        // SAFETY: the caller's.
        unsafe { store(count, 1) }?;
    }

    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) {
        check_device(ordinal)?;
        // SAFETY: the caller's.
        unsafe { store(device, 0) }?;
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) {
        check_device(device)?;
        for (at, &byte) in NAME.to_bytes_with_nul().iter().take(len.max(0) as usize).enumerate() {
            // SAFETY: the caller's, for so many bytes.
            unsafe { store(name.add(at), byte as c_char) }?;
        }
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) {
        check_device(device)?;
        // SAFETY: the caller's.
        unsafe { store(bytes, DRIVER.space().limit_bytes as usize) }?;
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: Attribute, device: CUdevice) {
        check_device(device)?;
        let is = match attribute {
            CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING => 1,
            CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 2,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 7,
            // Blocks run one after the other.
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 1,
            _ => 0,
        };
        // SAFETY: the caller's.
        unsafe { store(value, is) }?;
    }

    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) {
        check_device(device)?;
        // SAFETY: the caller's.
        unsafe { store(context, DRIVER.retain() as CUcontext) }?;
    }

    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        check_device(device)?;
        DRIVER.release()?;
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        DRIVER.check_initialized()?;
        DRIVER.set_current(context as usize)?;
    }

    fn cuCtxGetCurrent(context: *mut CUcontext) {
        DRIVER.check_initialized()?;
        // SAFETY: the caller's.
        unsafe { store(context, Driver::current() as CUcontext) }?;
    }

    fn cuCtxSynchronize() {
        DRIVER.check_uncaptured()?;
        for stream in DRIVER.streams.all() {
            // Those that come and go meanwhile, or are captured by others, are theirs.
            if stream.capture().is_none() {
                stream.block();
            }
        }
        DRIVER.lost()?;
    }

    fn cuGetErrorName(error: CUresult, name: *mut *const c_char) {
        // SAFETY: the caller's.
        unsafe { store(name, text(error).as_ptr()) }?;
    }

    fn cuGetErrorString(error: CUresult, string: *mut *const c_char) {
        // SAFETY: the caller's.
        unsafe { store(string, text(error).as_ptr()) }?;
    }
}

fn text(error: CUresult) -> &'static CStr {
    match error {
        CUDA_SUCCESS => c"no error",
        CUDA_ERROR_INVALID_VALUE => c"invalid argument",
        CUDA_ERROR_OUT_OF_MEMORY => c"out of memory",
        CUDA_ERROR_NOT_INITIALIZED => c"initialization error",
        CUDA_ERROR_INVALID_CONTEXT => c"invalid device context",
        CUDA_ERROR_INVALID_HANDLE => c"invalid resource handle",
        CUDA_ERROR_NOT_READY => c"device not ready",
        CUDA_ERROR_ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
        CUDA_ERROR_LAUNCH_FAILED => c"unspecified launch failure",
        CUDA_ERROR_NOT_FOUND => c"named symbol not found",
        _ => c"an error of the emulated driver",
    }
}
