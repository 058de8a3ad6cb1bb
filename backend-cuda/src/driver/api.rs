//! The driver's functions that this crate calls. Each is looked up by name at its first call.
//!
//! The driver's codes are integers here. A newer driver returns codes that no enumeration of today
//! has, and a value outside of a Rust enumeration is undefined behaviour.

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUmemAccessDesc,
    CUmemAllocationProp, CUmemGenericAllocationHandle, CUmodule, CUstream,
};
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};

/// Declares functions of the driver for the enclosing module, by their names and arguments. It is
/// for embedders who call the driver themselves, for example to launch kernels on
/// [`CudaDevice::raw_stream`](crate::CudaDevice::raw_stream).
///
/// Each function is looked up at its first call, after [`Cuda::load`](crate::Cuda::load). If the
/// driver does not have it, the call is an error (500). All codes become a
/// [`CudaError`](crate::CudaError) unchanged, including codes of newer drivers. The functions are
/// unsafe.
#[macro_export]
macro_rules! driver_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {$(
        #[allow(non_snake_case, reason = "the driver's names")]
        #[allow(clippy::too_many_arguments, reason = "as many as the driver's have")]
        pub(super) unsafe fn $name($($argument: $type),*) -> Result<(), $crate::CudaError> {
            type Function = unsafe extern "C" fn($($type),*) -> i32;
            static FOUND: ::std::sync::OnceLock<Option<Function>> = ::std::sync::OnceLock::new();
            let found = FOUND.get_or_init(|| {
                let name = concat!(stringify!($name), "\0");
                // SAFETY: the library is the driver, which `load` has found. Whoever declares a
                // function guarantees its type.
                let found = unsafe {
                    $crate::cudarc::driver::sys::culib().get::<Function>(name.as_bytes())
                };
                found.ok().map(|found| *found)
            });
            // SAFETY: the caller keeps to the driver's manual.
            let code = found.map(|function| unsafe { function($($argument),*) });
            $crate::CudaError::check(stringify!($name), code)
        }
    )*};
}

// The functions have had these types since CUDA 12.0 at the latest.
driver_functions! {
    fn cuInit(flags: c_uint);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuGetErrorName(code: c_int, name: *mut *const c_char);
    fn cuDeviceGetCount(count: *mut c_int);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int);
    fn cuDeviceGetName(name: *mut c_char, bytes: c_int, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);

    fn cuMemGetAllocationGranularity(
        bytes: *mut usize,
        properties: *const CUmemAllocationProp,
        option: c_uint,
    );
    fn cuMemAddressReserve(
        at: *mut CUdeviceptr,
        bytes: usize,
        alignment: usize,
        wanted: CUdeviceptr,
        flags: c_ulonglong,
    );
    fn cuMemAddressFree(at: CUdeviceptr, bytes: usize);
    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle,
        bytes: usize,
        properties: *const CUmemAllocationProp,
        flags: c_ulonglong,
    );
    fn cuMemRelease(handle: CUmemGenericAllocationHandle);
    fn cuMemMap(
        at: CUdeviceptr,
        bytes: usize,
        offset: usize,
        handle: CUmemGenericAllocationHandle,
        flags: c_ulonglong,
    );
    fn cuMemSetAccess(
        at: CUdeviceptr,
        bytes: usize,
        access: *const CUmemAccessDesc,
        count: usize,
    );
    fn cuMemUnmap(at: CUdeviceptr, bytes: usize);
    fn cuMemAlloc_v2(at: *mut CUdeviceptr, bytes: usize);
    fn cuMemFree_v2(at: CUdeviceptr);
    fn cuMemHostAlloc(at: *mut *mut c_void, bytes: usize, flags: c_uint);
    fn cuMemFreeHost(at: *mut c_void);

    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemsetD8Async(at: CUdeviceptr, byte: u8, bytes: usize, stream: CUstream);
    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void);
    fn cuModuleUnload(module: CUmodule);
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    // Since CUDA 12.4.
    fn cuFuncLoad(function: CUfunction);
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

    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamWaitValue32_v2(stream: CUstream, at: CUdeviceptr, value: c_uint, flags: c_uint);
    fn cuLaunchHostFunc(
        stream: CUstream,
        function: unsafe extern "C" fn(*mut c_void),
        data: *mut c_void,
    );
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    fn cuEventSynchronize(event: CUevent);
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint);
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph);
    fn cuGraphInstantiateWithFlags(
        executable: *mut CUgraphExec,
        graph: CUgraph,
        flags: c_ulonglong,
    );
    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream);
    fn cuGraphExecDestroy(executable: CUgraphExec);
    fn cuGraphDestroy(graph: CUgraph);
}
