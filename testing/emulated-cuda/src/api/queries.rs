//! The driver, its one device and its one context.

use super::{driver_functions, store};
use crate::driver::Driver;
use crate::outcome::Outcome;
use cudarc::driver::sys::CUdevice_attribute_enum::{self as Attribute, *};
use cudarc::driver::sys::CUresult::{self, *};
use cudarc::driver::sys::{CUcontext, CUdevice};
use std::ffi::{CStr, c_char, c_int, c_uint};

const NAME: &CStr = c"emulated CUDA device, no GPU";

pub(super) fn check_device(driver: &Driver, device: CUdevice) -> Outcome {
    driver.check_initialized()?;
    if device == 0 { Ok(()) } else { Err(CUDA_ERROR_INVALID_DEVICE) }
}

driver_functions! {
    |driver, caller|

    fn cuInit(flags: c_uint) {
        if flags != 0 {
            return Err(CUDA_ERROR_INVALID_VALUE);
        }
        driver.initialize();
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        // SAFETY: the caller's.
        unsafe { store(version, 12_000) }?;
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        driver.check_initialized()?;
        // SAFETY: the caller's.
        unsafe { store(count, 1) }?;
    }

    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) {
        check_device(driver, ordinal)?;
        // SAFETY: the caller's.
        unsafe { store(device, 0) }?;
    }

    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) {
        check_device(driver, device)?;
        for (at, &byte) in NAME.to_bytes_with_nul().iter().take(len.max(0) as usize).enumerate() {
            // SAFETY: the caller's, for this many bytes.
            unsafe { store(name.add(at), byte as c_char) }?;
        }
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) {
        check_device(driver, device)?;
        // SAFETY: the caller's.
        unsafe { store(bytes, driver.device.space.read().memory().limit_bytes() as usize) }?;
    }

    fn cuDeviceGetAttribute(value: *mut c_int, attribute: Attribute, device: CUdevice) {
        check_device(driver, device)?;
        let is = match attribute {
            CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED
            | CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
            | CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED => 1,
            CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 2,
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 7,
            // Blocks run one after the other, as if there were one multiprocessor.
            CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => 1,
            _ => 0,
        };
        // SAFETY: the caller's.
        unsafe { store(value, is) }?;
    }

    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) {
        check_device(driver, device)?;
        // SAFETY: the caller's.
        unsafe { store(context, driver.retain_context()? as CUcontext) }?;
    }

    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) {
        check_device(driver, device)?;
        driver.release_context()?;
    }

    fn cuCtxSetCurrent(context: CUcontext) {
        driver.check_initialized()?;
        driver.set_current_context(caller, context as usize)?;
    }

    fn cuCtxGetCurrent(context: *mut CUcontext) {
        driver.check_initialized()?;
        // SAFETY: the caller's.
        unsafe { store(context, caller.context.get() as CUcontext) }?;
    }

    fn cuCtxSynchronize() {
        driver.check_context(caller)?;
        driver.synchronize_all(caller)?;
    }

    fn cuGetErrorName(error: c_uint, name: *mut *const c_char) {
        let [found, _] = error_texts(error)?;
        // SAFETY: the caller's.
        unsafe { store(name, found.as_ptr()) }?;
    }

    fn cuGetErrorString(error: c_uint, string: *mut *const c_char) {
        let [_, found] = error_texts(error)?;
        // SAFETY: the caller's.
        unsafe { store(string, found.as_ptr()) }?;
    }
}

/// Returns the name of a code and what it means. Fails for codes that are not in the table, as a
/// driver does for those that it does not know.
fn error_texts(error: u32) -> Outcome<[&'static CStr; 2]> {
    let known = ERRORS.iter().find(|(code, ..)| *code as u32 == error);
    known.map(|&(_, name, text)| [name, text]).ok_or(CUDA_ERROR_INVALID_VALUE)
}

const ERRORS: &[(CUresult, &CStr, &CStr)] = &[
    (CUDA_SUCCESS, c"CUDA_SUCCESS", c"no error"),
    (CUDA_ERROR_INVALID_VALUE, c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
    (CUDA_ERROR_OUT_OF_MEMORY, c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
    (CUDA_ERROR_NOT_INITIALIZED, c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
    (CUDA_ERROR_INVALID_CONTEXT, c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
    (CUDA_ERROR_INVALID_PTX, c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
    (CUDA_ERROR_INVALID_HANDLE, c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
    (CUDA_ERROR_NOT_FOUND, c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
    (CUDA_ERROR_NOT_READY, c"CUDA_ERROR_NOT_READY", c"device not ready"),
    (
        CUDA_ERROR_ILLEGAL_ADDRESS,
        c"CUDA_ERROR_ILLEGAL_ADDRESS",
        c"an illegal memory access was encountered",
    ),
    (CUDA_ERROR_MISALIGNED_ADDRESS, c"CUDA_ERROR_MISALIGNED_ADDRESS", c"misaligned address"),
    (CUDA_ERROR_LAUNCH_FAILED, c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
    (
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        c"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
        c"too many resources requested for launch",
    ),
];
