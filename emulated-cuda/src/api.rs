//! The functions of the driver, by their names.
//!
//! Pointers are the callers': null ones are refused, and others are what the driver's manual
//! says.
#![allow(unsafe_code, reason = "these are functions of C")]
#![allow(non_snake_case, reason = "the driver's names")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "the driver's manual says more")]

mod graphs;
mod memory;
mod queries;
mod streams;

use crate::Outcome;
use cudarc::driver::sys::CUresult;

/// The code of an outcome.
fn code(outcome: Outcome) -> CUresult {
    outcome.err().unwrap_or(CUresult::CUDA_SUCCESS)
}

/// Stores what a call returns.
///
/// # Safety
/// The pointer is null, or may be written.
unsafe fn store<T>(at: *mut T, value: T) -> Outcome {
    if at.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: by the promise above.
    unsafe { at.write(value) };
    Ok(())
}

/// Loads what a call is given.
///
/// # Safety
/// The pointer is null, or may be read.
unsafe fn load<T: Copy>(at: *const T) -> Outcome<T> {
    if at.is_null() {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    // SAFETY: by the promise above.
    Ok(unsafe { at.read() })
}

/// A function of the driver. In its body, `?` ends the call with a code. Every pointer that it
/// is given may be used as the driver's manual says, which is what `store` and `load` ask for.
macro_rules! driver_functions {
    ($(fn $name:ident($($argument:ident: $kind:ty),* $(,)?) $body:block)*) => {$(
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($argument: $kind),*) -> cudarc::driver::sys::CUresult {
            let call = || -> crate::Outcome { $body Ok(()) };
            crate::api::code(call())
        }
    )*};
}
use driver_functions;
