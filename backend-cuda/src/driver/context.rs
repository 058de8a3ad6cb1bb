//! The devices of the driver and their contexts.

use super::api;
use crate::error::CudaError;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaStream, DriverError};
use std::ffi::CStr;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// Starts the driver.
pub(crate) fn initialize() -> Result<(), CudaError> {
    // SAFETY: no flags exist.
    unsafe { api::cuInit(0) }
}

/// The version of CUDA that the driver supports, as 1000 times the major and 10 times the
/// minor number.
pub(crate) fn version() -> Result<i32, CudaError> {
    let mut version = 0;
    // SAFETY: the number may be written.
    unsafe { api::cuDriverGetVersion(&raw mut version) }.map(|()| version)
}

/// How many devices there are.
pub(crate) fn device_count() -> Result<usize, CudaError> {
    let mut count = 0;
    // SAFETY: the number may be written.
    unsafe { api::cuDeviceGetCount(&raw mut count) }?;
    Ok(count.max(0) as usize)
}

/// The name of a device.
pub(crate) fn device_name(ordinal: usize) -> Result<String, CudaError> {
    let (mut device, mut name) = (0, [0u8; 256]);
    // SAFETY: the number may be written, and so may as many bytes as are named.
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
    // SAFETY: the address may be written. A code that the driver does not know is refused, and
    // the name of one that it does is a constant of the driver, which is never unloaded.
    let name = unsafe {
        api::cuGetErrorName(code, &raw mut name).ok()?;
        (!name.is_null()).then(|| CStr::from_ptr(name))
    };
    name?.to_str().ok()
}

/// Makes a context current on this thread.
///
/// Unlike cudarc's `bind_to_thread`, it neither reports nor clears an error that an object left
/// behind when it was dropped.
pub(crate) fn make_current(context: &CudaContext) -> Result<(), CudaError> {
    // SAFETY: the context lives.
    unsafe { api::cuCtxSetCurrent(context.cu_ctx()) }
}

/// What a device has of an attribute.
pub(crate) fn attribute(context: &CudaContext, attribute: Attribute) -> Result<i32, CudaError> {
    let mut value = 0;
    // SAFETY: the number may be written.
    unsafe { api::cuDeviceGetAttribute(&raw mut value, attribute as u32, context.cu_device()) }?;
    Ok(value)
}

/// Free memory and all memory, in bytes.
pub(crate) fn memory_bytes(context: &CudaContext) -> Result<[u64; 2], CudaError> {
    make_current(context)?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: the numbers may be written.
    unsafe { api::cuMemGetInfo_v2(&raw mut free, &raw mut total) }?;
    Ok([free as u64, total as u64])
}

/// Contexts of this process, with a stream each.
static CONTEXTS: Mutex<Vec<(Arc<CudaContext>, Arc<CudaStream>)>> = Mutex::new(Vec::new());

/// The primary context of a device. It is kept for as long as the process, since making one takes
/// seconds.
pub(crate) fn context(ordinal: usize) -> Result<Arc<CudaContext>, CudaError> {
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = contexts.iter().find(|(context, _)| context.ordinal() == ordinal);
    let context = match kept {
        Some((context, _)) => Arc::clone(context),
        None => {
            let made = CudaContext::new(ordinal);
            let context = made.map_err(|error| failed("cuDevicePrimaryCtxRetain", error))?;
            let first = first_stream(&context)?;
            contexts.push((Arc::clone(&context), first));
            context
        }
    };
    // What a former device left behind is no error of the next.
    let _ = context.check_err();
    Ok(context)
}

/// Creates the first stream of a context without waiting for the device.
///
/// cudarc synchronizes the context for its first stream if it tracks events of slices, and that is
/// illegal while another stream of the context is captured, by whomever (CUDA C++ Programming
/// Guide, "Prohibited and Unhandled Operations"). While this stream lives, no other is the first.
fn first_stream(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>, CudaError> {
    // SAFETY: nobody else has this context yet, so it has no slices that would have to be tracked.
    unsafe { context.disable_event_tracking() };
    let stream = new_stream(context);
    // SAFETY: for the same reason, there are no slices that were not tracked.
    unsafe { context.enable_event_tracking() };
    stream
}

/// Creates a stream that does not wait for the default stream.
pub(crate) fn new_stream(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>, CudaError> {
    context.new_stream().map_err(|error| failed("cuStreamCreate", error))
}

/// Names the call that failed inside of cudarc.
fn failed(call: &'static str, DriverError(code): DriverError) -> CudaError {
    CudaError::Driver { call, code: code as i32 }
}
