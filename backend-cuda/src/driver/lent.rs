//! cudarc's objects, which are lent to embedders' kernels.
//!
//! Only this module calls functions of cudarc that call the driver. They take the driver's codes as
//! an enumeration, so a code of a newer driver would be undefined behaviour. This crate therefore
//! makes none of these objects before an embedder asks for one.

use super::context::Context;
use crate::error::CudaError;
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaContext, CudaStream, DriverError};
use std::sync::{Arc, Mutex, PoisonError};

/// Contexts that were lent, each with a stream. They are kept until the process ends.
static CONTEXTS: Mutex<Vec<(Arc<CudaContext>, Arc<CudaStream>)>> = Mutex::new(Vec::new());

/// Wraps a context.
fn context(context: Context) -> Result<Arc<CudaContext>, DriverError> {
    let mut contexts = CONTEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = contexts.iter().find(|(kept, _)| kept.ordinal() == context.ordinal);
    let lent = match kept {
        Some((kept, _)) => Arc::clone(kept),
        None => {
            let lent = CudaContext::new(context.ordinal)?;
            contexts.push((Arc::clone(&lent), first_stream(&lent)?));
            lent
        }
    };
    // An error of an earlier device is no error of the next.
    let _ = lent.check_err();
    Ok(lent)
}

/// Creates the first stream of a context without waiting for the device.
///
/// If cudarc tracks events of slices, it synchronizes the context when it creates the first stream.
/// That is illegal while any other stream of the context is captured (CUDA C++ Programming Guide,
/// "Prohibited and Unhandled Operations"). While this stream lives, no later stream is the first.
fn first_stream(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>, DriverError> {
    // SAFETY: nobody else has this context yet, so it has no slices to track.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream();
    // SAFETY: for the same reason, there are no untracked slices.
    unsafe { context.enable_event_tracking() };
    stream
}

/// Wraps a stream of a context.
///
/// # Safety
/// The stream lives as long as the returned object and its clones.
pub(super) unsafe fn stream(of: Context, raw: CUstream) -> Result<Arc<CudaStream>, CudaError> {
    let lent = context(of).map_err(|DriverError(code)| CudaError::Driver {
        call: "cuDevicePrimaryCtxRetain",
        code: code as i32,
    })?;
    // SAFETY: as the caller promises. The steps of a plan order the work on the stream.
    Ok(unsafe { lent.wrap_borrowed_stream(raw) })
}
