//! Sessions: a plan under way on a device.

use crate::boundary::{self, Out, call, given, given_mut, hand_out};
use crate::device::{Callbacks, Device, Failed};
use crate::error::{Code, Error, Failure};
use crate::kernels::{Kernels, Launcher};
use crate::plan::Plan;
use planner_core::{ExecuteError, TensorId};
use spillway::SessionError;
use std::slice;

/// A plan, the device that runs it, and the kernels that compute its ops.
pub struct Session(spillway::Session<Callbacks, Launcher>);

impl From<SessionError<Failed>> for Failure {
    fn from(error: SessionError<Failed>) -> Self {
        let code = match &error {
            SessionError::Plan(_) => Code::OutOfMemory,
            SessionError::Execute(ExecuteError::Device { error, .. }) => error.code(),
            SessionError::Execute(ExecuteError::Scratch(_)) => Code::OutOfMemory,
            SessionError::Execute(ExecuteError::ForeignSignal { .. } | ExecuteError::Failed) => {
                Code::Device
            }
            SessionError::NotAState(_)
            | SessionError::BufferSize { .. }
            | SessionError::Execute(ExecuteError::ChunkBytes { .. }) => Code::Argument,
            _ => Code::Internal,
        };
        Self::new(code, error)
    }
}

/// Sets up device and host memory for a plan, fills states and the first inputs, and uploads what is
/// resident at the start of an iteration. The tables of callbacks are copied.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_new(
    plan: *const Plan,
    device: *const Device,
    kernels: *const Kernels,
    session: *mut *mut Session,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Plan(plan), device, kernels, out) = unsafe {
            (
                given(plan, "plan")?,
                given(device, "device")?,
                given(kernels, "kernels")?,
                Out::new(session, "session")?,
            )
        };
        let (device, kernels) = (Callbacks::new(device)?, Launcher::new(kernels, plan.graph())?);
        hand_out(out, Session(spillway::Session::new(plan.clone(), device, kernels)?));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Enqueues iterations. Returns when the last is enqueued, not when it has ended. After an error of
/// the device, no further iteration runs.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_run(
    session: *mut Session,
    iterations: u64,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let Session(session) = unsafe { given_mut(session, "session") }?;
        Ok(session.run(iterations)?)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Waits for all iterations, and reads the value that a state then has. `bytes` is its size.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_read_state(
    session: *mut Session,
    tensor: u32,
    into: *mut u8,
    bytes: usize,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let Session(session) = unsafe { given_mut(session, "session") }?;
        if into.is_null() || isize::try_from(bytes).is_err() {
            return Err(Failure::argument("the buffer is null, or larger than memory can be"));
        }
        // SAFETY: it points to so many bytes, which `spillway.h` asks to be initialised.
        let into = unsafe { slice::from_raw_parts_mut(into, bytes) };
        Ok(session.read_state(TensorId(tensor), into)?)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Frees a session. Null does nothing. The device must have ended all work before its own memory
/// goes.
///
/// # Safety
/// The pointer is as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_free(session: *mut Session) {
    // SAFETY: the caller's promise.
    unsafe { boundary::free(session) };
}
