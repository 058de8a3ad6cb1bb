//! The exported functions: those of the driver, and those for tests.
//!
//! A function of C has no parameter for the driver. So [`call`] looks it up, for all of them, with
//! what it keeps for the calling thread. Nothing below this module knows either as a global.
//!
//! Null pointers are refused. All others have to be what the driver's manual says.
#![allow(unsafe_code, reason = "these are functions of C")]
#![allow(non_snake_case, reason = "the driver's names")]
#![allow(missing_docs, clippy::missing_safety_doc, reason = "the driver's manual says more")]

mod control;
mod graphs;
mod memory;
mod pools;
mod queries;
mod streams;

use crate::caller::Caller;
use crate::driver::Driver;
use crate::outcome::Outcome;
use crate::settings::Settings;
use cudarc::driver::sys::CUresult;
use std::sync::LazyLock;

/// Runs the body of a call with the driver of this process and the calling thread.
fn call<T>(body: impl FnOnce(&Driver, &Caller) -> T) -> T {
    static DRIVER: LazyLock<Driver> = LazyLock::new(|| Driver::new(&Settings::from_environment()));
    thread_local! {
        static CALLER: Caller = const { Caller::new() };
    }
    CALLER.with(|caller| body(&DRIVER, caller))
}

/// Returns the code of an outcome.
fn code(outcome: Outcome) -> u32 {
    outcome.err().unwrap_or(CUresult::CUDA_SUCCESS) as u32
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

/// Defines functions of the driver. The body of each gets the driver and the caller under the
/// names between the bars; in it, `?` ends the call with a code. Codes are integers, as a newer
/// driver may return any; a test can ask for the code of a call. Every pointer that a function is
/// given may be used as the driver's manual says, which is what `store` and `load` ask for.
macro_rules! driver_functions {
    (|$driver:ident, $caller:ident|
        $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block)*
    ) => {$(
        #[unsafe(no_mangle)]
        #[allow(unused_variables, reason = "some need only one of the two")]
        unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
            // Functions of the host must not call the driver (CUDA Driver API, `cuLaunchHostFunc`).
            if crate::task::in_host_function() {
                return cudarc::driver::sys::CUresult::CUDA_ERROR_NOT_PERMITTED as u32;
            }
            crate::api::call(|$driver, $caller| {
                $driver.device.let_host_function_end();
                $caller.injected(stringify!($name)).unwrap_or_else(|| {
                    let body = || -> crate::outcome::Outcome {
                        $body
                        Ok(())
                    };
                    crate::api::code(body())
                })
            })
        }
    )*};
}
use driver_functions;
