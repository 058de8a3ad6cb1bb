//! Kernels: how they are loaded from their text and launched.

use super::api;
use super::context::{Context, make_current};
use super::stream::Stream;
use crate::error::{CudaError, NOT_FOUND};
use cudarc::driver::sys;
use std::ffi::{CStr, c_void};

/// Code that the driver has loaded.
#[derive(Debug)]
pub(crate) struct Module {
    raw: sys::CUmodule,
    context: Context,
}

/// A kernel, which lives as long as its module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function(sys::CUfunction);

// SAFETY: any thread may use a module and its kernels after making their context current, and every
// function here makes it current.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Send for Function {}

impl Module {
    pub(crate) fn new(context: Context, ptx: &CStr) -> Result<Self, CudaError> {
        make_current(context)?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the text ends with a zero, and the module may be written.
        unsafe { api::cuModuleLoadData(&raw mut raw, ptx.as_ptr().cast()) }?;
        Ok(Self { raw, context })
    }

    pub(crate) fn function(&self, name: &CStr) -> Result<Function, CudaError> {
        let mut function = std::ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a zero, and the function may be
        // written.
        unsafe { api::cuModuleGetFunction(&raw mut function, self.raw, name.as_ptr()) }?;
        // Otherwise the first launch may load it, in a capture or once plans hold all memory. A
        // driver without this function has loaded the kernel already (CUDA C++ Programming Guide,
        // "Lazy Loading").
        // SAFETY: the module is loaded.
        match unsafe { api::cuFuncLoad(function) } {
            Err(CudaError::Driver { code: NOT_FOUND, .. }) => {}
            loaded => loaded?,
        }
        Ok(Function(function))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = make_current(self.context);
        // SAFETY: this object owns the module, and no enqueued work uses it.
        let _ = unsafe { api::cuModuleUnload(self.raw) };
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    Word(u32),
    Long(u64),
}

/// Enqueues a kernel. The arguments must have the number and types of the kernel's.
pub(crate) fn launch(
    stream: &Stream,
    function: Function,
    [blocks, threads]: [u32; 2],
    arguments: &[Argument],
) -> Result<(), CudaError> {
    make_current(stream.context())?;
    let pointer = |argument: &Argument| match argument {
        Argument::Word(word) => std::ptr::from_ref(word) as *mut c_void,
        Argument::Long(long) => std::ptr::from_ref(long) as *mut c_void,
    };
    let mut pointers: Vec<_> = arguments.iter().map(pointer).collect();
    let (stream, pointers, extra) = (stream.raw(), pointers.as_mut_ptr(), std::ptr::null_mut());
    // SAFETY: the arguments match the kernel, the driver copies them before it returns, and all
    // memory that the kernel uses is mapped.
    unsafe {
        api::cuLaunchKernel(function.0, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, extra)
    }
}
