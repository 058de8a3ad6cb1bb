use crate::error::{CudaError, named};
use cudarc::driver::{CudaContext, CudaStream, result, sys};
use std::ffi::{CStr, c_void};
use std::sync::Arc;

/// Code that the driver has loaded.
#[derive(Debug)]
pub(crate) struct Module {
    raw: sys::CUmodule,
    context: Arc<CudaContext>,
}

/// A kernel, which lives as long as its module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function(sys::CUfunction);

impl Module {
    pub(crate) fn new(context: &Arc<CudaContext>, ptx: &CStr) -> Result<Self, CudaError> {
        named("cuCtxSetCurrent", context.bind_to_thread())?;
        // SAFETY: the text ends with a zero.
        let raw =
            named("cuModuleLoadData", unsafe { result::module::load_data(ptx.as_ptr().cast()) })?;
        Ok(Self { raw, context: Arc::clone(context) })
    }

    pub(crate) fn function(&self, name: &CStr) -> Result<Function, CudaError> {
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(self.raw, name.to_owned()) };
        named("cuModuleGetFunction", function).map(Function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        let _ = self.context.bind_to_thread();
        // SAFETY: it is this object's, and no enqueued work uses it.
        let _ = unsafe { result::module::unload(self.raw) };
    }
}

/// What a kernel is given.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    Word(u32),
    Long(u64),
}

/// Enqueues a kernel with as many arguments as it has, each of its kind.
pub(crate) fn launch(
    stream: &CudaStream,
    function: Function,
    [blocks, threads]: [u32; 2],
    arguments: &[Argument],
) -> Result<(), CudaError> {
    named("cuCtxSetCurrent", stream.context().bind_to_thread())?;
    let pointer = |argument: &Argument| match argument {
        Argument::Word(word) => std::ptr::from_ref(word) as *mut c_void,
        Argument::Long(long) => std::ptr::from_ref(long) as *mut c_void,
    };
    let mut pointers: Vec<_> = arguments.iter().map(pointer).collect();
    let (blocks, threads) = ((blocks, 1, 1), (threads, 1, 1));
    // SAFETY: the arguments are those of the kernel, and what it uses is mapped.
    let result = unsafe {
        result::launch_kernel(function.0, blocks, threads, 0, stream.cu_stream(), &mut pointers)
    };
    named("cuLaunchKernel", result)
}
