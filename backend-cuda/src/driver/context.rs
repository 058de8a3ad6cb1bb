//! The devices of the driver and their contexts.

use super::api;
use crate::error::CudaError;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::sys::{CUcontext, CUdevice};
use std::ffi::CStr;
use std::ptr;
use std::sync::{Mutex, PoisonError};

/// The primary context of a device. It is kept until the process ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Context {
    pub(super) ordinal: usize,
    pub(super) device: CUdevice,
    raw: CUcontext,
}

// SAFETY: any thread may use a context after making it current, and every function here makes it
// current.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// Starts the driver.
pub(crate) fn initialize() -> Result<(), CudaError> {
    // SAFETY: the driver defines no flags.
    unsafe { api::cuInit(0) }
}

/// The version of CUDA that the driver supports, as 1000 times the major and 10 times the
/// minor number.
pub(crate) fn version() -> Result<i32, CudaError> {
    let mut version = 0;
    // SAFETY: `version` may be written.
    unsafe { api::cuDriverGetVersion(&raw mut version) }.map(|()| version)
}

/// The number of devices.
pub(crate) fn device_count() -> Result<usize, CudaError> {
    let mut count = 0;
    // SAFETY: `count` may be written.
    unsafe { api::cuDeviceGetCount(&raw mut count) }?;
    Ok(count.max(0) as usize)
}

/// The name of a device.
pub(crate) fn device_name(ordinal: usize) -> Result<String, CudaError> {
    let (mut device, mut name) = (0, [0u8; 256]);
    // SAFETY: the number may be written, and the name has room for the given number of bytes.
    unsafe {
        api::cuDeviceGet(&raw mut device, ordinal as i32)?;
        api::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32 - 1, device)?;
    }
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    Ok(name.to_string_lossy().into_owned())
}

/// The driver's name of a code, if it has one.
pub(crate) fn error_name(code: i32) -> Option<&'static str> {
    let mut name = ptr::null();
    // SAFETY: the address may be written. The driver refuses a code that it does not know, and the
    // name of a known code is a constant of the driver, which is never unloaded.
    let name = unsafe {
        api::cuGetErrorName(code, &raw mut name).ok()?;
        (!name.is_null()).then(|| CStr::from_ptr(name))
    };
    name?.to_str().ok()
}

/// Makes a context current on this thread.
pub(crate) fn make_current(context: Context) -> Result<(), CudaError> {
    // SAFETY: the context is never released.
    unsafe { api::cuCtxSetCurrent(context.raw) }
}

/// The value of a device's attribute.
pub(crate) fn attribute(context: Context, attribute: Attribute) -> Result<i32, CudaError> {
    let mut value = 0;
    // SAFETY: the value may be written.
    unsafe { api::cuDeviceGetAttribute(&raw mut value, attribute as u32, context.device) }?;
    Ok(value)
}

/// Free memory and total memory, in bytes.
pub(crate) fn memory_bytes(context: Context) -> Result<[u64; 2], CudaError> {
    make_current(context)?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: the numbers may be written.
    unsafe { api::cuMemGetInfo_v2(&raw mut free, &raw mut total) }?;
    Ok([free as u64, total as u64])
}

/// The contexts of this process.
static CONTEXTS: Mutex<Vec<Context>> = Mutex::new(Vec::new());

/// Retains the primary context of a device only once, because creating one takes seconds.
pub(crate) fn context(ordinal: usize) -> Result<Context, CudaError> {
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(&kept) = contexts.iter().find(|context| context.ordinal == ordinal) {
        return Ok(kept);
    }
    let (mut device, mut raw) = (0, ptr::null_mut());
    // SAFETY: both may be written.
    unsafe {
        api::cuDeviceGet(&raw mut device, ordinal as i32)?;
        api::cuDevicePrimaryCtxRetain(&raw mut raw, device)?;
    }
    let context = Context { ordinal, device, raw };
    contexts.push(context);
    Ok(context)
}
