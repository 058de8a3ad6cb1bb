//! The memory that a call of the kernels gets, and the memory of buffers.
#![allow(unsafe_code, reason = "Python views memory that is not its own")]

use crate::error::SessionError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyMemoryView, PySlice};
use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// `PyBUF_WRITE`, which pyo3 lacks for Python 3.10.
const WRITABLE: c_int = 0x200;

/// Bytes at an address: the argument of a kernel call for an operand, a workspace or an input. Two
/// ranges are equal if they have the same address and size.
///
/// The callee may use the bytes until the call returns. `view` and `write` fail afterwards, and if
/// the bytes are in a device's memory.
#[pyclass(frozen, eq, module = "spillway")]
pub(crate) struct MemoryRange {
    /// The address of the first byte.
    #[pyo3(get)]
    address: u64,
    /// The number of bytes.
    #[pyo3(get)]
    bytes: u64,
    /// The name in messages of the input that the bytes are for.
    input: Option<Arc<str>>,
    lent: Lent,
}

impl PartialEq for MemoryRange {
    fn eq(&self, other: &Self) -> bool {
        (self.address, self.bytes) == (other.address, other.bytes)
    }
}

/// Whether the memory of a call may be used, which it may until the call returns.
#[derive(Clone)]
pub(crate) struct Lent(Arc<Mutex<Access>>);

/// Who may use the memory.
enum Access {
    Device,
    /// The host, which has these views of it.
    Host(Vec<Py<PyMemoryView>>),
    Nobody,
}

impl Lent {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Access::Nobody)))
    }

    /// Returns bytes to be lent, for an input if its name is given.
    pub(crate) fn range(
        &self,
        py: Python<'_>,
        address: u64,
        bytes: u64,
        input: Option<&Arc<str>>,
    ) -> PyResult<Py<MemoryRange>> {
        Py::new(py, MemoryRange { address, bytes, input: input.cloned(), lent: self.clone() })
    }

    /// Lends the memory during a call.
    pub(crate) fn during<T>(
        &self,
        py: Python<'_>,
        is_on_host: bool,
        call: impl FnOnce() -> T,
    ) -> T {
        *self.access() = if is_on_host { Access::Host(Vec::new()) } else { Access::Device };
        let returned = call();
        let access = mem::replace(&mut *self.access(), Access::Nobody);
        if let Access::Host(views) = access {
            for view in views {
                // A view that an array still uses cannot be released.
                let _ = view.call_method0(py, "release");
            }
        }
        returned
    }

    fn access(&self) -> MutexGuard<'_, Access> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> PyResult<()> {
        let message = match &*self.access() {
            Access::Host(_) => return Ok(()),
            Access::Device => "the memory is on the device, so the host cannot access it",
            Access::Nobody => "the call that got the memory has returned",
        };
        Err(SessionError::new_err(message))
    }

    /// Keeps a view, to release it when the call has returned.
    fn keep<'py>(&self, view: Bound<'py, PyMemoryView>) -> Bound<'py, PyMemoryView> {
        if let Access::Host(views) = &mut *self.access() {
            views.push(view.clone().unbind());
        }
        view
    }
}

#[pymethods]
impl MemoryRange {
    /// Returns the bytes as a writable memoryview of one dimension, for example for NumPy. `format`
    /// is the `struct` format of its elements. The view is released when the call returns, unless
    /// an array still uses it.
    #[pyo3(signature = (format="B"))]
    fn view<'py>(&self, py: Python<'py>, format: &str) -> PyResult<Bound<'py, PyMemoryView>> {
        self.lent.check()?;
        let start = ptr::with_exposed_provenance_mut(self.address as usize);
        // SAFETY: the callee may use the bytes until the call returns, which ends the access.
        let whole = unsafe {
            let view = ffi::PyMemoryView_FromMemory(start, self.bytes as isize, WRITABLE);
            Bound::from_owned_ptr_or_err(py, view)?
        };
        let whole = self.lent.keep(whole.cast_into()?);
        if format == "B" {
            return Ok(whole);
        }
        Ok(self.lent.keep(whole.call_method1("cast", (format,))?.cast_into()?))
    }

    /// Copies a buffer of the same size into the memory.
    fn write(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let value = PyMemoryView::from(buffer)?;
        let bytes: u64 = value.getattr("nbytes")?.extract()?;
        if bytes != self.bytes {
            let name = self.input.as_deref().unwrap_or("the memory");
            return Err(SessionError::new_err(format!(
                "the buffer for {name} has {bytes} bytes, not {}",
                self.bytes
            )));
        }
        let value = match value.getattr("c_contiguous")?.is_truthy()? {
            true => value.call_method1("cast", ("B",))?,
            false => value.call_method0("tobytes")?,
        };
        self.view(py, "B")?.set_item(PySlice::full(py), value)
    }

    const fn __hash__(&self) -> u64 {
        self.address
    }

    fn __repr__(&self) -> String {
        format!("MemoryRange(address={:#x}, bytes={})", self.address, self.bytes)
    }
}

/// The bytes of a writable buffer. They stay as long as this object.
pub(crate) struct Buffer<'py> {
    _exported: Bound<'py, PyAny>,
    address: usize,
    len: usize,
}

impl<'py> Buffer<'py> {
    /// Gets the bytes by `ctypes`, since the stable interface of Python 3.10 has no buffers.
    pub(crate) fn new(buffer: &Bound<'py, PyAny>) -> PyResult<Self> {
        let view = PyMemoryView::from(buffer)?.call_method1("cast", ("B",))?;
        let (ctypes, len) = (buffer.py().import("ctypes")?, view.len()?);
        let array = ctypes.getattr("c_char")?.mul(len)?.call_method1("from_buffer", (view,))?;
        let address = ctypes.call_method1("addressof", (&array,))?.extract()?;
        Ok(Self { _exported: array, address, len })
    }

    /// The bytes. As with `readinto`, the caller must order the accesses of other threads.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        let start = ptr::with_exposed_provenance_mut(self.address);
        // SAFETY: the buffer is writable and has this size. It is exported, so it stays.
        unsafe { slice::from_raw_parts_mut(start, self.len) }
    }
}
