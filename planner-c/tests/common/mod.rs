//! Calls functions of the library and reads their errors.

use spillway_c::error::{Code, Error, SPILLWAY_MESSAGE_BYTES};
use std::ffi::CStr;
use std::ptr;

/// The code and the message of a call. Checks that only a call that fails has a message.
pub(crate) fn said(call: impl FnOnce(*mut Error) -> Code) -> (Code, String) {
    let mut error = Error { code: Code::Ok, message: [0; SPILLWAY_MESSAGE_BYTES] };
    let code = call(&raw mut error);
    assert_eq!(error.code, code);
    // SAFETY: the message ends with a zero.
    let message = unsafe { CStr::from_ptr(error.message.as_ptr()) }.to_str().expect("UTF-8");
    assert_eq!(code == Code::Ok, message.is_empty(), "{code:?}: {message}");
    (code, message.to_owned())
}

/// Makes a handle by a call. Checks that the call returns either a handle or the code of an error of the caller.
pub(crate) fn made<T>(call: impl FnOnce(*mut *mut T, *mut Error) -> Code) -> Result<*mut T, Code> {
    let mut handle = ptr::null_mut();
    let (code, message) = said(|error| call(&raw mut handle, error));
    assert_eq!(code == Code::Ok, !handle.is_null());
    assert_ne!(code, Code::Internal, "{message}");
    if code == Code::Ok { Ok(handle) } else { Err(code) }
}
