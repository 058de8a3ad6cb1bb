//! cudarc's objects, lent to embedders' kernels.
//!
//! Only here does this crate call functions of cudarc that call the driver: they take its codes as
//! an enumeration, so a code of a newer driver would be undefined behaviour. So nothing of this is
//! made before an embedder asks for it.

use super::context::Context;
use crate::error::CudaError;
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaContext, CudaStream, DriverError};
use std::sync::{Arc, Mutex, PoisonError};

/// Contexts that were lent, kept for as long as the process, with a stream each.
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
    // What a former device left behind is no error of the next.
    let _ = lent.check_err();
    Ok(lent)
}

/// Creates the first stream of a context without waiting for the device.
///
/// cudarc synchronizes the context for its first stream if it tracks events of slices, and that is
/// illegal while another stream of the context is captured, by whomever (CUDA C++ Programming
/// Guide, "Prohibited and Unhandled Operations"). While this stream lives, no other is the first.
fn first_stream(context: &Arc<CudaContext>) -> Result<Arc<CudaStream>, DriverError> {
    // SAFETY: nobody else has this context yet, so it has no slices that would have to be tracked.
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream();
    // SAFETY: for the same reason, there are no slices that were not tracked.
    unsafe { context.enable_event_tracking() };
    stream
}

/// Wraps a stream of a context.
///
/// # Safety
/// The stream lives for as long as what is returned, and its clones.
pub(super) unsafe fn stream(of: Context, raw: CUstream) -> Result<Arc<CudaStream>, CudaError> {
    let lent = context(of).map_err(|DriverError(code)| CudaError::Driver {
        call: "cuDevicePrimaryCtxRetain",
        code: code as i32,
    })?;
    // SAFETY: by the promise above; work on the stream is ordered by the steps of a plan.
    Ok(unsafe { lent.wrap_borrowed_stream(raw) })
}
