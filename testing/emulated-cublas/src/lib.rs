//! A stand-in for cuBLAS on Linux, for tests on the emulated CUDA driver: the functions that
//! `train-cuda` calls, with a kernel that follows the manual's definition. So it shows whether
//! calls describe matrices as they lie in memory.
//!
//! It is stricter than cuBLAS: work needs a stream, a workspace and the pedantic math mode. It is
//! never used by accident: a program opens it by its path ([`open`]), and its file is not named
//! like the library.
#![cfg(target_os = "linux")]
#![allow(unsafe_code, reason = "these are functions of C")]
#![allow(non_snake_case, reason = "the library's names")]

mod driver;

use cudarc::driver::sys;
use libloading::Library;
use std::ffi::{CString, c_int, c_longlong, c_void};
use std::path::Path;

/// The status of a call, as in the manual.
type Status = c_int;
const SUCCESS: Status = 0;
const NOT_INITIALIZED: Status = 1;
const INVALID_VALUE: Status = 7;
const EXECUTION_FAILED: Status = 13;
const NOT_SUPPORTED: Status = 15;

/// `CUBLAS_PEDANTIC_MATH`.
const PEDANTIC: c_int = 2;
/// 0.1.0 as the library counts.
const VERSION: c_int = 100;
/// The alignment of a workspace.
const WORKSPACE_ALIGN_BYTES: usize = 256;
/// Threads of a block.
const THREADS: u32 = 256;

/// A handle of the library.
#[derive(Debug)]
pub struct Handle {
    module: sys::CUmodule,
    sgemm: sys::CUfunction,
    stream: Option<sys::CUstream>,
    has_workspace: bool,
    is_pedantic: bool,
}

/// Opens the library. No cuBLAS may be open yet.
///
/// # Errors
/// Says why it cannot be opened.
pub fn open(path: &Path) -> Result<(), String> {
    // SAFETY: the library is this crate's, and has nothing that runs when it is opened.
    let library = unsafe { Library::new(path) }.map_err(|error| error.to_string())?;
    // It stays open.
    std::mem::forget(library);
    Ok(())
}

/// Creates a handle in the current context.
///
/// # Safety
/// The pointer is null, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasCreate_v2(handle: *mut *mut Handle) -> Status {
    if handle.is_null() {
        return INVALID_VALUE;
    }
    let Ok(ptx) = CString::new(include_str!("kernels.ptx")) else { return EXECUTION_FAILED };
    let Ok(module) = driver::load(&ptx) else { return EXECUTION_FAILED };
    // SAFETY: the module is loaded.
    let sgemm = unsafe { driver::kernel(module, c"sgemm") };
    let Ok(sgemm) = sgemm else { return EXECUTION_FAILED };
    let created = Handle { module, sgemm, stream: None, has_workspace: false, is_pedantic: false };
    // SAFETY: the caller's.
    unsafe { handle.write(Box::into_raw(Box::new(created))) };
    SUCCESS
}

/// Destroys a handle.
///
/// # Safety
/// The handle is null, or one that has been created and not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasDestroy_v2(handle: *mut Handle) -> Status {
    if handle.is_null() {
        return NOT_INITIALIZED;
    }
    // SAFETY: the caller's.
    let handle = unsafe { Box::from_raw(handle) };
    // SAFETY: the module is the handle's.
    let unloaded = unsafe { driver::unload(handle.module) };
    if unloaded.is_ok() { SUCCESS } else { EXECUTION_FAILED }
}

/// Calls a function with a handle. Fails if it is null.
///
/// # Safety
/// As for [`cublasDestroy_v2`].
unsafe fn with(handle: *mut Handle, act: impl FnOnce(&mut Handle) -> Status) -> Status {
    // SAFETY: the caller's.
    unsafe { handle.as_mut() }.map_or(NOT_INITIALIZED, act)
}

/// Sets the stream, and forgets the workspace, as the manual says.
///
/// # Safety
/// As for [`cublasDestroy_v2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSetStream_v2(handle: *mut Handle, stream: sys::CUstream) -> Status {
    let set = |handle: &mut Handle| {
        (handle.stream, handle.has_workspace) = (Some(stream), false);
        SUCCESS
    };
    // SAFETY: the caller's.
    unsafe { with(handle, set) }
}

/// Tells the version, by which a program sees that this is not the library.
///
/// # Safety
/// The pointer is null, or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetVersion_v2(_handle: *mut Handle, version: *mut c_int) -> Status {
    if version.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's.
    unsafe { version.write(VERSION) };
    SUCCESS
}

/// Sets the math mode.
///
/// # Safety
/// As for [`cublasDestroy_v2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSetMathMode(handle: *mut Handle, mode: c_int) -> Status {
    let set = |handle: &mut Handle| {
        handle.is_pedantic = mode == PEDANTIC;
        SUCCESS
    };
    // SAFETY: the caller's.
    unsafe { with(handle, set) }
}

/// Sets the workspace.
///
/// # Safety
/// As for [`cublasDestroy_v2`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSetWorkspace_v2(
    handle: *mut Handle,
    workspace: *mut c_void,
    bytes: usize,
) -> Status {
    let set = |handle: &mut Handle| {
        handle.has_workspace =
            (workspace as usize).is_multiple_of(WORKSPACE_ALIGN_BYTES) && bytes > 0;
        if handle.has_workspace { SUCCESS } else { INVALID_VALUE }
    };
    // SAFETY: the caller's.
    unsafe { with(handle, set) }
}

/// Enqueues products of matrices.
///
/// # Safety
/// As for [`cublasDestroy_v2`]; the factors are null, or may be read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSgemmStridedBatched(
    handle: *mut Handle,
    transposes_a: c_int,
    transposes_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const f32,
    a: u64,
    lda: c_int,
    stride_a: c_longlong,
    b: u64,
    ldb: c_int,
    stride_b: c_longlong,
    beta: *const f32,
    c: u64,
    ldc: c_int,
    stride_c: c_longlong,
    count: c_int,
) -> Status {
    let column = |transposes, rows, columns| if transposes == 0 { rows } else { columns };
    let is_valid =
        ![transposes_a, transposes_b].iter().any(|transposes| !(0..=1).contains(transposes))
            && [m, n, k, count].iter().all(|&size| size > 0)
            && lda >= column(transposes_a, m, k)
            && ldb >= column(transposes_b, k, n)
            && ldc >= m;
    if !is_valid || alpha.is_null() || beta.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's.
    let factors = unsafe { [alpha.read(), beta.read()] };
    let enqueue = |handle: &mut Handle| {
        let Some(stream) = handle.stream.filter(|_| handle.has_workspace && handle.is_pedantic)
        else {
            return NOT_SUPPORTED;
        };
        let mut arguments = [
            std::ptr::from_ref(&transposes_a).cast::<c_void>(),
            std::ptr::from_ref(&transposes_b).cast(),
            std::ptr::from_ref(&m).cast(),
            std::ptr::from_ref(&n).cast(),
            std::ptr::from_ref(&k).cast(),
            std::ptr::from_ref(&factors[0]).cast(),
            std::ptr::from_ref(&a).cast(),
            std::ptr::from_ref(&lda).cast(),
            std::ptr::from_ref(&stride_a).cast(),
            std::ptr::from_ref(&b).cast(),
            std::ptr::from_ref(&ldb).cast(),
            std::ptr::from_ref(&stride_b).cast(),
            std::ptr::from_ref(&factors[1]).cast(),
            std::ptr::from_ref(&c).cast(),
            std::ptr::from_ref(&ldc).cast(),
            std::ptr::from_ref(&stride_c).cast(),
        ]
        .map(<*const c_void>::cast_mut);
        let blocks = (m as u32 * n as u32).div_ceil(THREADS);
        let grid = [blocks, count as u32];
        // SAFETY: the arguments are those of the kernel; that its matrices lie in the device's
        // memory is the caller's.
        let launched =
            unsafe { driver::launch(handle.sgemm, grid, THREADS, stream, &mut arguments) };
        if launched.is_ok() { SUCCESS } else { EXECUTION_FAILED }
    };
    // SAFETY: the caller's.
    unsafe { with(handle, enqueue) }
}
