//! The values of states and inputs.

use crate::boundary::{array, call, given_mut};
use crate::device::{Callbacks, Failed};
use crate::error::{Code, Error, Failure};
use bytemuck::NoUninit;
use planner_core::TensorId;
use planner_core::backend::{FillError, InputWriter, StateWriter};
use std::ffi::c_void;

/// A state or an input that a callback fills. It is valid only during the call.
///
/// A device may instead write the bytes of the host block from `offset_bytes` on itself.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Fill {
    /// The size of this struct, which the library sets.
    pub struct_bytes: usize,
    /// The tensor.
    pub tensor: u32,
    /// The iteration, counted from 1. 0 for a state.
    pub iteration: u64,
    /// The size of the tensor.
    pub bytes: u64,
    /// The offset of its value in the host block.
    pub offset_bytes: u64,
    /// Private to the library.
    pub writer: *mut c_void,
}

/// The core's writer of the tensor.
pub(crate) enum To<'a, 'w> {
    State(&'a mut StateWriter<'w, Callbacks>),
    Input(&'a mut InputWriter<'w, Callbacks>),
}

/// The object to which [`Fill::writer`] points.
pub(crate) struct Writer<'a, 'w> {
    to: To<'a, 'w>,
    tensor: TensorId,
    /// The first write that failed.
    failed: Option<FillError<Failed>>,
}

impl<'a, 'w> Writer<'a, 'w> {
    pub(crate) const fn new(to: To<'a, 'w>, tensor: TensorId) -> Self {
        Self { to, tensor, failed: None }
    }

    /// The argument of a callback.
    pub(crate) fn fill(&mut self) -> Result<Fill, FillError<Failed>> {
        let (range, iteration) = match &self.to {
            To::State(states) => (states.range(self.tensor)?, 0),
            To::Input(inputs) => (inputs.range(self.tensor)?, inputs.iteration()),
        };
        Ok(Fill {
            struct_bytes: size_of::<Fill>(),
            tensor: self.tensor.0,
            iteration,
            bytes: range.bytes,
            offset_bytes: range.offset_bytes,
            writer: (&raw mut *self).cast(),
        })
    }

    /// The result of a callback.
    pub(crate) fn end(self, call: &'static str, status: i32) -> Result<(), FillError<Failed>> {
        match self.failed {
            Some(error) => Err(error),
            None => Ok(crate::device::check(call, status)?),
        }
    }

    fn put<T: NoUninit>(&mut self, values: &[T]) -> Result<(), FillError<Failed>> {
        match &mut self.to {
            To::State(states) => states.write(self.tensor, values),
            To::Input(inputs) => inputs.write(self.tensor, values),
        }
    }
}

/// # Safety
/// The condition of [`crate::boundary`].
unsafe fn write<T: NoUninit>(
    fill: *mut Fill,
    values: *const T,
    count: usize,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (fill, values) = unsafe { (given_mut(fill, "fill")?, array(values, count, "values")?) };
        // SAFETY: a callback got the pointer from this library, and the writer lives as long as the
        // call.
        let writer = unsafe { given_mut(fill.writer.cast::<Writer<'_, '_>>(), "fill->writer") }?;
        let written = writer.put(values);
        written.map_err(|error| {
            let failure = match &error {
                FillError::Device(failed) => Failure::new(failed.code(), failed),
                other => Failure::argument(other),
            };
            writer.failed.get_or_insert(error);
            failure
        })
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// Writes numbers of 32 bits (`float`) as the whole value of a state or an input.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_fill_f32(
    fill: *mut Fill,
    values: *const f32,
    count: usize,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { write(fill, values, count, error) }
}

/// Writes numbers of 64 bits (`double`) as the whole value of a state or an input.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_fill_f64(
    fill: *mut Fill,
    values: *const f64,
    count: usize,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { write(fill, values, count, error) }
}

/// Writes integers of 32 bits as the whole value of a state or an input.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_fill_i32(
    fill: *mut Fill,
    values: *const i32,
    count: usize,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { write(fill, values, count, error) }
}

/// Writes integers of 64 bits as the whole value of a state or an input.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_fill_i64(
    fill: *mut Fill,
    values: *const i64,
    count: usize,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { write(fill, values, count, error) }
}

/// Writes numbers of 16 bits, such as half precision, as the whole value of a state or an input.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_fill_u16(
    fill: *mut Fill,
    values: *const u16,
    count: usize,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { write(fill, values, count, error) }
}

/// Writes bytes as the whole value of a state or an input.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_fill_bytes(
    fill: *mut Fill,
    values: *const u8,
    count: usize,
    error: *mut Error,
) -> Code {
    // SAFETY: the caller's promise.
    unsafe { write(fill, values, count, error) }
}
