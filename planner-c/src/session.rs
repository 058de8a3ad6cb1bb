//! Sessions: a plan that runs on a device.

use crate::boundary::{
    self, Out, array, call, check_sized, given, given_mut, given_sized, hand_out, put_sized, text,
};
use crate::device::{Callbacks, Device, Failed};
use crate::error::{Code, Error, Failure};
use crate::kernels::{Kernels, Launcher};
use crate::plan::Plan;
use planner_core::{ExecuteError, TensorId};
use spillway::{Error as SpillwayError, SessionError};
use spillway_c_types::sized::Versioned;
use std::ffi::c_char;
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
            SessionError::File { .. } => Code::File,
            SessionError::Tensor { .. } | SessionError::Bytes { .. } => Code::Argument,
            SessionError::Execute { error, .. } => match error {
                ExecuteError::Device { error, .. } => error.code(),
                ExecuteError::Scratch(_) => Code::OutOfMemory,
                ExecuteError::ForeignSignal { .. }
                | ExecuteError::Addresses(_)
                | ExecuteError::Failed => Code::Device,
                ExecuteError::Write { .. }
                | ExecuteError::ChunkBytes { .. }
                | ExecuteError::NoHostStream
                | ExecuteError::NoNetworkStream
                | ExecuteError::NoHostKernels
                | ExecuteError::NoOutputs { .. } => Code::Argument,
                _ => Code::Internal,
            },
            _ => Code::Internal,
        };
        Self::new(code, error)
    }
}

/// Sets up device and host memory for a plan, fills the states and the first inputs, and uploads
/// everything that is resident at the start of an iteration. Copies the tables of callbacks.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_new(
    plan: *const Plan,
    device: *const Device,
    kernels: *const Kernels,
    session: *mut *mut Session,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { spillway_session_with_others(plan, ptr::null(), 0, device, kernels, session, error) }
}

/// As `spillway_session_new`, with enough memory on the device and the host for each of the other
/// plans, so that the session can switch to them.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_with_others(
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
                given_sized(device, "the device")?,
                given_sized(kernels, "the kernels")?,
                Out::new(session, "session")?,
            )
        };
        let mut all = Vec::with_capacity(others.len());
        for &other in others {
            // SAFETY: as above.
            all.push(&unsafe { given(other, "one of the others") }?.0);
        }
        let (device, kernels) = (Callbacks::new(&device)?, Launcher::new(&kernels, plan.graph())?);
        let session = spillway::Session::with_others(plan.clone(), &all, device, kernels)?;
        hand_out(out, Session(session));
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// The cost of a switch from one plan to another.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SwitchFigures {
    /// The size of this struct, which the caller sets.
    pub struct_bytes: usize,
    /// Bytes of states that stay on the device.
    pub kept_bytes: u64,
    /// Bytes copied to the device.
    pub h2d_bytes: u64,
    /// Bytes copied to the host.
    pub d2h_bytes: u64,
    /// Time of all copies.
    pub time_ns: u64,
    /// Time to map and unmap memory, before the copies. Before a run, the most that this time can
    /// be.
    pub mapping_ns: u64,
}

// SAFETY: it is `repr(C)`, begins with its size, and may be all zero.
unsafe impl Versioned for SwitchFigures {}

impl From<spillway::SwitchFigures> for SwitchFigures {
    fn from(figures: spillway::SwitchFigures) -> Self {
        Self {
            struct_bytes: size_of::<Self>(),
            kept_bytes: figures.kept_bytes,
            h2d_bytes: figures.h2d_bytes,
            d2h_bytes: figures.d2h_bytes,
            time_ns: figures.time_ns,
            mapping_ns: figures.mapping_ns,
        }
    }
}

/// Returns the cost of a switch between two plans, without a session.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_switch_to(
    from: *const Plan,
    to: *const Plan,
    figures: *mut SwitchFigures,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Plan(from), Plan(to)) = unsafe { (given(from, "from")?, given(to, "to")?) };
        // SAFETY: as above.
        unsafe { check_sized(figures, "figures") }?;
        // SAFETY: as above.
        unsafe { put_sized(figures, &from.switch_to(to)?.into(), "figures") }
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Ends the plan of a session and starts another between two iterations. States that both plans
/// hold on the device stay there if possible. The plans may belong to two graphs whose states have
/// the same names and sizes.
///
/// `kernels` are the kernels of the other graph. Null keeps the callbacks. `fill_state` is not
/// called. `fill_input` is called for the next iteration, even if it has already been called for it
/// under the old plan. `figures` may be null. After `SPILLWAY_CODE_NO_SWITCH`, the session
/// continues with the old plan. After an error of the device, no further iteration runs.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
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
        let (Session(session), Plan(plan)) =
            unsafe { (given_mut(session, "session")?, given(plan, "plan")?) };
        let kernels = match kernels.is_null() {
            true => session.kernels().callbacks(),
            // SAFETY: as above.
            false => unsafe { given_sized(kernels, "the kernels") }?,
        };
        if !figures.is_null() {
            // SAFETY: as above.
            unsafe { check_sized(figures, "figures") }?;
        }
        let launcher = Launcher::new(&kernels, plan.graph())?;
        let moved = session.switch(plan.clone(), |old| *old = launcher)?;
        if !figures.is_null() {
            // SAFETY: the caller's promise.
            unsafe { put_sized(figures, &moved.into(), "figures") }?;
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Enqueues iterations. Returns once the last is enqueued, before it has ended. After an error of
/// the device, no further iteration runs.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
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

/// Waits until all iterations so far and all copies for the next one have ended.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_wait(session: *mut Session, error: *mut Error) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let Session(session) = unsafe { given_mut(session, "session") }?;
        Ok(session.wait()?)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Waits for all iterations, and reads bytes of the current value of a state, from `first_byte` on.
/// Copies only these bytes from the device, and only if the host does not have them.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_read_state(
    session: *mut Session,
    tensor: u32,
    first_byte: u64,
    into: *mut u8,
    bytes: usize,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Session(session), into) =
            unsafe { (given_mut(session, "session")?, buffer(into, bytes)?) };
        Ok(session.read_state_at(TensorId(tensor), first_byte, into)?)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Waits for all iterations, and writes bytes of a state, from `first_byte` on. The next iteration
/// begins with the new value.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_write_state(
    session: *mut Session,
    tensor: u32,
    first_byte: u64,
    value: *const u8,
    bytes: usize,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Session(session), value) =
            unsafe { (given_mut(session, "session")?, array(value, bytes, "value")?) };
        Ok(session.write_state_at(TensorId(tensor), first_byte, value)?)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Waits for all iterations, and writes the value of every state into a file in the format
/// safetensors. Each state is a tensor of bytes (`U8`) under its name, and the metadata
/// `spillway.iterations` gives the number of iterations so far. An older file of this name is
/// replaced once everything is written.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_save_states(
    session: *mut Session,
    path: *const c_char,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Session(session), path) =
            unsafe { (given_mut(session, "session")?, file_name(path)?) };
        Ok(session.save_states(path, |_| ())?)
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Waits for all iterations, and sets states to the values in a file in the format safetensors. The
/// tensors in it may have any type, and must have the names and sizes of states. If `all` is not 0,
/// every state must be in the file. Otherwise states that the file lacks keep their values. If
/// something in the file does not fit, nothing is written. `iterations` may be null. It is set to
/// the number of iterations before the file was saved, or to 0 if the file does not give it.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_load_states(
    session: *mut Session,
    path: *const c_char,
    all: u8,
    iterations: *mut u64,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Session(session), path) =
            unsafe { (given_mut(session, "session")?, file_name(path)?) };
        let saved = session.load_states(path, all != 0, |_| ())?;
        if !iterations.is_null() {
            // SAFETY: the caller's promise.
            unsafe { Out::new(iterations, "iterations") }?.put(saved.unwrap_or(0));
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Waits for an iteration, and reads the value that it left in an output. `bytes` is the size of
/// the output. Iterations are counted from 1 over all plans. Only the last two enqueued iterations
/// can be read. 0 stands for the last.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
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
        match iteration {
            0 => session.read_output(TensorId(tensor), into)?,
            _ => session.read_output_of(iteration, TensorId(tensor), into)?,
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// The name of a file.
///
/// # Safety
/// The pointer is as `spillway.h` requires.
unsafe fn file_name<'a>(path: *const c_char) -> Result<&'a str, Failure> {
    // SAFETY: the caller's promise.
    unsafe { text(path, "path") }?.ok_or_else(|| Failure::argument("path is null"))
}

/// A buffer of the caller.
///
/// # Safety
/// Null, or `bytes` bytes that nobody else uses during the call.
unsafe fn buffer<'a>(into: *mut u8, bytes: usize) -> Result<&'a mut [u8], Failure> {
    if into.is_null() || isize::try_from(bytes).is_err() {
        return Err(Failure::argument("the buffer is null, or larger than memory can be"));
    }
    // SAFETY: it points to `bytes` bytes, which `spillway.h` requires to be initialised.
    Ok(unsafe { slice::from_raw_parts_mut(into, bytes) })
}

/// Returns the number of iterations that have been enqueued, over all plans.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_iterations(
    session: *const Session,
    iterations: *mut u64,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Session(session), out) =
            unsafe { (given(session, "session")?, Out::new(iterations, "iterations")?) };
        out.put(session.iterations());
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Returns the size of the device memory that a session has taken for its plans.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_device_bytes(
    session: *const Session,
    device_bytes: *mut u64,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Session(session), out) =
            unsafe { (given(session, "session")?, Out::new(device_bytes, "device_bytes")?) };
        out.put(session.device_bytes());
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Frees a session. Null does nothing. The device must have ended all work before its own memory is
/// freed.
///
/// # Safety
/// The pointer is as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_session_free(session: *mut Session) {
    // SAFETY: the caller's promise.
    unsafe { boundary::free(session) };
}
