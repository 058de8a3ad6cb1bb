//! Converts pointers from C to Rust's values, and back.
//!
//! All functions here share one condition, which `spillway.h` states for callers. A pointer is
//! null, or it points to as many values of its type as the function says, which nobody changes
//! during the call. A handle comes from this library and has not been freed.

use crate::error::{Code, Error, Failure};
use spillway_c_types::sized::{self, Array, Versioned};
use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

/// Runs the body of a function. A failure in it becomes a code and a message.
///
/// # Safety
/// The condition of the module.
pub(crate) unsafe fn call(error: *mut Error, body: impl FnOnce() -> Result<(), Failure>) -> Code {
    // After a panic, a session may be half done. It runs no further iteration.
    let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|&text| text.to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let what = text.unwrap_or_else(|| "a panic".to_owned());
        Err(Failure::new(Code::Internal, format!("a bug in Spillway: {what}")))
    });
    let Err(failure) = result else { return Code::Ok };
    if !error.is_null() {
        // SAFETY: the pointer is not null, so it points to one value. The value may be
        // uninitialised, so it is written, not assigned.
        unsafe { error.write(failure.to_c()) };
    }
    failure.code
}

/// A value that the caller must pass.
///
/// # Safety
/// The condition of the module, and the caller keeps the value alive as long as the result is used.
pub(crate) unsafe fn given<'a, T>(value: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: null, or one value.
    unsafe { value.as_ref() }.ok_or_else(|| Failure::argument(format!("{name} is null")))
}

/// A value that the caller must pass and that is changed.
///
/// # Safety
/// The condition of [`given`], and nobody else uses the value.
pub(crate) unsafe fn given_mut<'a, T>(value: *mut T, name: &str) -> Result<&'a mut T, Failure> {
    // SAFETY: null, or one value that nobody else uses.
    unsafe { value.as_mut() }.ok_or_else(|| Failure::argument(format!("{name} is null")))
}

/// A struct that the caller must pass and that begins with its size.
///
/// # Safety
/// The condition of the module, and the struct has as many bytes as its size says.
pub(crate) unsafe fn given_sized<T: Versioned>(at: *const T, name: &str) -> Result<T, Failure> {
    if at.is_null() {
        return Err(Failure::argument(format!("{name} is null")));
    }
    // SAFETY: not null, so it points to one struct.
    Ok(unsafe { sized::read(at, name) }?)
}

/// An array of structs that begin with their size. It may be null if it is empty.
///
/// # Safety
/// The condition of [`given_sized`].
pub(crate) unsafe fn sized_array<T: Versioned>(
    values: *const T,
    count: usize,
    name: &str,
) -> Result<Vec<T>, Failure> {
    check_size::<T>(count, name)?;
    if values.is_null() && count > 0 {
        return Err(Failure::argument(format!("{name} is null, but has {count} entries")));
    }
    // SAFETY: it points to `count` structs.
    let array = unsafe { Array::new(values, count, name) }?;
    Ok(array.iter().collect::<Result<_, _>>()?)
}

/// Checks that a struct can be written later.
///
/// # Safety
/// The condition of [`put_sized`].
pub(crate) unsafe fn check_sized<T: Versioned>(at: *const T, name: &str) -> Result<(), Failure> {
    if at.is_null() {
        return Err(Failure::argument(format!("{name} is null")));
    }
    // SAFETY: not null, so it points to one struct.
    Ok(unsafe { sized::check(at, name) }?)
}

/// Writes a struct that begins with its size.
///
/// # Safety
/// The condition of the module: `at` is null, or points to a struct whose size is initialised.
pub(crate) unsafe fn put_sized<T: Versioned>(
    at: *mut T,
    value: &T,
    name: &str,
) -> Result<(), Failure> {
    if at.is_null() {
        return Err(Failure::argument(format!("{name} is null")));
    }
    // SAFETY: not null, so it points to one struct.
    Ok(unsafe { sized::write(at, value, name) }?)
}

/// An array, which may be null if it is empty.
///
/// # Safety
/// The condition of [`given`].
pub(crate) unsafe fn array<'a, T>(
    values: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    check_size::<T>(count, name)?;
    match (count, values.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(Failure::argument(format!("{name} is null, but has {count} entries"))),
        _ if !values.is_aligned() => {
            let bytes = align_of::<T>();
            Err(Failure::argument(format!("{name} does not begin at a multiple of {bytes} bytes")))
        }
        // SAFETY: it points to `count` values, which fit into the address space.
        _ => Ok(unsafe { slice::from_raw_parts(values, count) }),
    }
}

fn check_size<T>(count: usize, name: &str) -> Result<(), Failure> {
    match count.checked_mul(size_of::<T>()) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(Failure::argument(format!("{name} has {count} entries, more than memory can"))),
    }
}

/// A text. `None` if the pointer is null.
///
/// # Safety
/// The condition of [`given`], and the text ends with a zero.
pub(crate) unsafe fn text<'a>(text: *const c_char, name: &str) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, so it points to a text that ends with a zero.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Failure::argument(format!("{name} is not UTF-8")))
}

/// A place for one value of output, which may be uninitialised.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// # Safety
    /// The condition of the module.
    pub(crate) unsafe fn new(at: *mut T, name: &str) -> Result<Self, Failure> {
        if at.is_null() {
            return Err(Failure::argument(format!("{name} is null")));
        }
        Ok(Self(at))
    }

    pub(crate) fn put(self, value: T) {
        // SAFETY: not null, so it points to one value, and it is used once.
        unsafe { self.0.write(value) };
    }
}

/// Passes a handle to the caller, who frees it by [`free`].
pub(crate) fn hand_out<T>(out: Out<*mut T>, value: T) {
    out.put(Box::into_raw(Box::new(value)));
}

/// Frees a handle. Null does nothing.
///
/// # Safety
/// The condition of the module, and the handle is not used afterwards.
pub(crate) unsafe fn free<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: a handle comes from `hand_out`, and is freed once.
        let owned = unsafe { Box::from_raw(handle) };
        // A drop may call a device's callbacks, and one may panic. A panic must not unwind into C.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(owned)));
    }
}

/// Writes structs into the caller's buffer, in which each has `entry_bytes` bytes. Writes their
/// number into `needed` in any case.
///
/// # Safety
/// The condition of the module: `into` points to `capacity` structs of this size, which may be
/// uninitialised.
pub(crate) unsafe fn fill_entries<T: Copy>(
    into: *mut T,
    (entry_bytes, name): (usize, &str),
    capacity: usize,
    needed: *mut usize,
    values: &[T],
) -> Result<(), Failure> {
    if entry_bytes < size_of::<T>() {
        let least_bytes = size_of::<T>();
        return Err(Failure::argument(format!(
            "{name} is {entry_bytes}, but an entry has {least_bytes} bytes or more"
        )));
    }
    // SAFETY: the caller's promise.
    unsafe { check_room(into, capacity, needed, values.len()) }?;
    for (position, value) in values.iter().enumerate() {
        // SAFETY: `into` has room for no fewer entries.
        unsafe { sized::write_entry(into.byte_add(position * entry_bytes), value, entry_bytes) };
    }
    Ok(())
}

/// Writes the number of values, and checks that the caller's buffer has room for them.
///
/// # Safety
/// The condition of the module.
unsafe fn check_room<T>(
    into: *mut T,
    capacity: usize,
    needed: *mut usize,
    count: usize,
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { Out::new(needed, "needed") }?.put(count);
    if capacity < count {
        let message = format!("the buffer holds {capacity}, but {count} are needed");
        return Err(Failure::new(Code::BufferTooShort, message));
    }
    match into.is_null() && count > 0 {
        true => Err(Failure::argument("the buffer is null")),
        false => Ok(()),
    }
}

/// Writes values into the caller's buffer, and their number into `needed` in any case.
///
/// # Safety
/// The condition of the module: `into` points to `capacity` values, which may be uninitialised.
pub(crate) unsafe fn fill<T: Copy>(
    into: *mut T,
    capacity: usize,
    needed: *mut usize,
    values: &[T],
) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { check_room(into, capacity, needed, values.len()) }?;
    if !values.is_empty() {
        // SAFETY: `into` has room for `capacity` values, which is at least their number. The
        // caller's buffer does not overlap with the values.
        unsafe { ptr::copy_nonoverlapping(values.as_ptr(), into, values.len()) };
    }
    Ok(())
}
