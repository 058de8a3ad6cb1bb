//! The driver's functions that are called. Their codes are integers: a driver may return some that
//! no enumeration has.

use cudarc::driver::sys::{self, CUfunction, CUmodule, CUstream};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;
use std::sync::OnceLock;

/// Something went wrong.
#[derive(Debug)]
pub(crate) struct Failed;

#[derive(Debug)]
struct Functions {
    load: unsafe extern "C" fn(*mut CUmodule, *const c_void) -> c_int,
    unload: unsafe extern "C" fn(CUmodule) -> c_int,
    kernel: unsafe extern "C" fn(*mut CUfunction, CUmodule, *const c_char) -> c_int,
    launch: unsafe extern "C" fn(
        CUfunction,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        c_uint,
        CUstream,
        *mut *mut c_void,
        *mut *mut c_void,
    ) -> c_int,
}

fn functions() -> Result<&'static Functions, Failed> {
    static FOUND: OnceLock<Option<Functions>> = OnceLock::new();
    let find = || {
        // SAFETY: the library is the driver, and these are the functions' types, by its manual.
        unsafe {
            let driver = sys::culib();
            Some(Functions {
                load: *driver.get(b"cuModuleLoadData\0").ok()?,
                unload: *driver.get(b"cuModuleUnload\0").ok()?,
                kernel: *driver.get(b"cuModuleGetFunction\0").ok()?,
                launch: *driver.get(b"cuLaunchKernel\0").ok()?,
            })
        }
    };
    FOUND.get_or_init(find).as_ref().ok_or(Failed)
}

const fn done(code: c_int) -> Result<(), Failed> {
    if code == 0 { Ok(()) } else { Err(Failed) }
}

/// Loads a module in the current context.
pub(crate) fn load(ptx: &CStr) -> Result<CUmodule, Failed> {
    let mut module = ptr::null_mut();
    // SAFETY: the module may be written, and the text ends with a zero.
    done(unsafe { (functions()?.load)(&raw mut module, ptx.as_ptr().cast()) })?;
    Ok(module)
}

/// # Safety
/// The module is loaded, and nothing uses it any more.
pub(crate) unsafe fn unload(module: CUmodule) -> Result<(), Failed> {
    // SAFETY: the caller's.
    done(unsafe { (functions()?.unload)(module) })
}

/// # Safety
/// The module is loaded.
pub(crate) unsafe fn kernel(module: CUmodule, name: &CStr) -> Result<CUfunction, Failed> {
    let mut kernel = ptr::null_mut();
    // SAFETY: the kernel may be written, the name ends with a zero, and the module is the caller's.
    done(unsafe { (functions()?.kernel)(&raw mut kernel, module, name.as_ptr()) })?;
    Ok(kernel)
}

/// Enqueues a kernel on a grid of two dimensions.
///
/// # Safety
/// The kernel and the stream live, and the arguments are those of the kernel.
pub(crate) unsafe fn launch(
    kernel: CUfunction,
    [across, down]: [u32; 2],
    threads: u32,
    stream: CUstream,
    arguments: &mut [*mut c_void],
) -> Result<(), Failed> {
    let (arguments, extra) = (arguments.as_mut_ptr(), ptr::null_mut());
    let launch = functions()?.launch;
    // SAFETY: the caller's.
    done(unsafe { launch(kernel, across, down, 1, threads, 1, 1, 0, stream, arguments, extra) })
}
