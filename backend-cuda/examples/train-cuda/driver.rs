//! What this example has of the driver by itself: kernels, and memory beside the plan's. The
//! device's context is current on the thread that makes and drops it.
#![allow(unsafe_code, reason = "the driver's functions are C")]

use backend_cuda::CudaError;
use backend_cuda::cudarc::driver::sys::{CUdeviceptr, CUfunction, CUmodule, CUstream};
use std::ffi::{CStr, c_char, c_uint, c_void};
use std::ptr;

backend_cuda::driver_functions! {
    fn cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize);
    fn cuMemFree_v2(at: CUdeviceptr);
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    fn cuLaunchKernel(
        function: CUfunction,
        blocks_x: c_uint,
        blocks_y: c_uint,
        blocks_z: c_uint,
        threads_x: c_uint,
        threads_y: c_uint,
        threads_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        arguments: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
}

/// Memory that work uses which has ended when this is dropped.
#[derive(Debug)]
pub(crate) struct Memory(pub(crate) CUdeviceptr);

impl Memory {
    pub(crate) fn new(bytes: usize) -> Result<Self, CudaError> {
        let mut at = 0;
        // SAFETY: the address may be written.
        unsafe { cuMemAlloc_v2(&raw mut at, bytes) }?;
        Ok(Self(at))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it is this object's, and nothing uses it any more.
        let _ = unsafe { cuMemFree_v2(self.0) };
    }
}

/// Kernels that run in no work when this is dropped.
#[derive(Debug)]
pub(crate) struct Module(CUmodule);

impl Module {
    pub(crate) fn new(ptx: &CStr) -> Result<Self, CudaError> {
        let mut module = ptr::null_mut();
        // SAFETY: the text ends with a zero, and the module may be written.
        unsafe { cuModuleLoadData(&raw mut module, ptx.as_ptr().cast()) }?;
        Ok(Self(module))
    }

    /// A kernel, which lives as long as its module.
    pub(crate) fn kernel(&self, name: &CStr) -> Result<CUfunction, CudaError> {
        let mut kernel = ptr::null_mut();
        // SAFETY: the module is loaded, the name ends with a zero, and the kernel may be written.
        unsafe { cuModuleGetFunction(&raw mut kernel, self.0, name.as_ptr()) }?;
        Ok(kernel)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        // SAFETY: it is this object's, and nothing runs in it.
        let _ = unsafe { cuModuleUnload(self.0) };
    }
}

/// An argument of a kernel.
pub(crate) enum Value {
    Word(u32),
    Long(u64),
    Number(f32),
}

impl Value {
    const fn at(&self) -> *mut c_void {
        match self {
            Self::Word(word) => ptr::from_ref(word).cast_mut().cast(),
            Self::Long(long) => ptr::from_ref(long).cast_mut().cast(),
            Self::Number(number) => ptr::from_ref(number).cast_mut().cast(),
        }
    }
}

/// Enqueues a kernel.
///
/// # Safety
/// The kernel and the stream live. The values are the kernel's arguments, each of its kind, and what
/// it uses stays mapped until it has ended.
pub(crate) unsafe fn launch(
    kernel: CUfunction,
    [across, down, deep]: [u32; 3],
    threads: u32,
    stream: CUstream,
    values: &[Value],
) -> Result<(), CudaError> {
    let mut values: Vec<_> = values.iter().map(Value::at).collect();
    let (values, extra) = (values.as_mut_ptr(), ptr::null_mut());
    // SAFETY: the caller's; the driver copies the arguments before it returns.
    unsafe { cuLaunchKernel(kernel, across, down, deep, threads, 1, 1, 0, stream, values, extra) }
}
