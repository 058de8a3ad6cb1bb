//! Sessions: a plan under way on a device.

use crate::boundary::{self, Out, array, call, given, given_mut, hand_out};
use crate::device::{Callbacks, Device, Failed};
use crate::error::{Code, Error, Failure};
use crate::kernels::{Kernels, Launcher};
use crate::plan::Plan;
use planner_core::{ExecuteError, TensorId};
use spillway::names::Mentions;
use spillway::{Error as SpillwayError, SessionError, SwitchPrediction};
use std::{ptr, slice};

/// A plan, the device that runs it, and the kernels that compute its ops.
pub struct Session(spillway::Session<Callbacks, Launcher>);

impl From<SessionError<Failed>> for Failure {
    fn from(error: SessionError<Failed>) -> Self {
        let code = match &error {
            SessionError::Plan(SpillwayError::States(_) | SpillwayError::Switch(_)) => {
                Code::NoSwitch
            }
            SessionError::Plan(_) => Code::OutOfMemory,
            SessionError::Execute(ExecuteError::Device { error, .. }) => error.code(),
            SessionError::Execute(ExecuteError::Scratch(_)) => Code::OutOfMemory,
            SessionError::Execute(
                ExecuteError::ForeignSignal { .. }
                | ExecuteError::Addresses(_)
                | ExecuteError::Failed,
            ) => Code::Device,
            SessionError::NotAState(_)
            | SessionError::NotAnOutput(_)
            | SessionError::BufferSize { .. }
            | SessionError::Execute(
                ExecuteError::ChunkBytes { .. }
                | ExecuteError::NoHostStream
                | ExecuteError::NoHostKernels
                | ExecuteError::NoOutputs { .. },
            ) => Code::Argument,
            _ => Code::Internal,
        };
        Self::new(code, error)
    }
}

/// The same with the names of what was under way in a plan.
fn named(plan: &spillway::Plan, error: SessionError<Failed>) -> Failure {
    let message = match &error {
        SessionError::Execute(error) => {
            Some(plan.names().execute_error(error, |_| Mentions::default()))
        }
        _ => None,
    };
    let failure = Failure::from(error);
    Failure { message: message.unwrap_or(failure.message), ..failure }
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
    // SAFETY: the caller's promise.
    unsafe { spillway_session_new_for(plan, ptr::null(), 0, device, kernels, session, error) }
}

/// The same, with enough memory on the device and on the host for each of some other plans, so that
/// the session can be switched to them.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_new_for(
    plan: *const Plan,
    others: *const *const Plan,
    other_count: usize,
    device: *const Device,
    kernels: *const Kernels,
    session: *mut *mut Session,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Plan(plan), others, device, kernels, out) = unsafe {
            (
                given(plan, "plan")?,
                array(others, other_count, "others")?,
                given(device, "device")?,
                given(kernels, "kernels")?,
                Out::new(session, "session")?,
            )
        };
        let mut capacity = plan.capacity()?;
        for &other in others {
            // SAFETY: the same.
            let Plan(other) = unsafe { given(other, "one of the others") }?;
            capacity = capacity.max(other.capacity()?);
        }
        let (device, kernels) = (Callbacks::new(device)?, Launcher::new(kernels, plan.graph())?);
        let session = spillway::Session::with_capacity(plan.clone(), capacity, device, kernels)
            .map_err(|error| named(plan, error))?;
        hand_out(out, Session(session));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// What a switch from one plan to another takes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SwitchFigures {
    /// Bytes of states that stay on the device.
    pub kept_bytes: u64,
    /// Bytes copied to the device.
    pub upload_bytes: u64,
    /// Bytes copied to the host.
    pub download_bytes: u64,
    /// Time of all copies.
    pub time_ns: u64,
}

impl From<SwitchPrediction> for SwitchFigures {
    fn from(predicted: SwitchPrediction) -> Self {
        let SwitchPrediction { kept_bytes, h2d_bytes, d2h_bytes, time_ns } = predicted;
        Self { kept_bytes, upload_bytes: h2d_bytes, download_bytes: d2h_bytes, time_ns }
    }
}

/// Says what a switch between two plans takes, ahead of a session.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_switch_figures(
    from: *const Plan,
    to: *const Plan,
    figures: *mut SwitchFigures,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Plan(from), Plan(to), out) =
            unsafe { (given(from, "from")?, given(to, "to")?, Out::new(figures, "figures")?) };
        out.put(from.switch_to(to)?.into());
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Ends the plan of a session and starts another between two iterations. States that both plans
/// hold on the device stay there where that can be. The plans may be for two graphs whose states
/// have the same names and sizes.
///
/// `kernels` are those of the other graph; null keeps the callbacks. `fill_states` is not called;
/// `fill_inputs` is called for the next iteration, also if it has been called for that with the old
/// plan. `figures` may be null. If the code is `SPILLWAY_CODE_NO_SWITCH`, the session goes on with
/// the old plan; after an error of the device, no further iteration runs.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_switch(
    session: *mut Session,
    plan: *const Plan,
    kernels: *const Kernels,
    figures: *mut SwitchFigures,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Session(session), Plan(plan), kernels) =
            unsafe { (given_mut(session, "session")?, given(plan, "plan")?, kernels.as_ref()) };
        let kernels = kernels.copied().unwrap_or_else(|| session.kernels().callbacks());
        let launcher = Launcher::new(&kernels, plan.graph())?;
        let predicted = session.switch(plan.clone(), |old| *old = launcher)?;
        if !figures.is_null() {
            // SAFETY: the caller's promise.
            unsafe { Out::new(figures, "figures") }?.put(predicted.into());
        }
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
        session.run(iterations).map_err(|error| named(session.plan(), error))
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
        let (Session(session), into) =
            unsafe { (given_mut(session, "session")?, buffer(into, bytes)?) };
        session.read_state(TensorId(tensor), into).map_err(|error| named(session.plan(), error))
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Waits for an iteration, and reads the value that it left in an output. `bytes` is its size.
/// Iterations are counted from 1 over all plans. Those of the last two that were enqueued can be read,
/// and 0 stands for the last.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_read_output(
    session: *mut Session,
    tensor: u32,
    iteration: u64,
    into: *mut u8,
    bytes: usize,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Session(session), into) =
            unsafe { (given_mut(session, "session")?, buffer(into, bytes)?) };
        let read = match iteration {
            0 => session.read_output(TensorId(tensor), into),
            _ => session.read_output_of(iteration, TensorId(tensor), into),
        };
        read.map_err(|error| named(session.plan(), error))
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// A buffer of the caller's.
///
/// # Safety
/// Null, or so many bytes, which nobody else uses during the call.
unsafe fn buffer<'a>(into: *mut u8, bytes: usize) -> Result<&'a mut [u8], Failure> {
    if into.is_null() || isize::try_from(bytes).is_err() {
        return Err(Failure::argument("the buffer is null, or larger than memory can be"));
    }
    // SAFETY: it points to so many bytes, which `spillway.h` asks to be initialised.
    Ok(unsafe { slice::from_raw_parts_mut(into, bytes) })
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
