//! The driver's library: the system's library, or a library at a path.

use super::context::initialize;
use crate::error::Unavailable;
use cudarc::driver::sys;
use libloading::Library;
use std::path::Path;

/// The name under which cudarc finds the driver.
const NAME: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so" };

/// Finds the driver: the library at a path, for the whole process, or the system's library.
pub(crate) fn load(path: Option<&Path>) -> Result<(), Unavailable> {
    if let Some(path) = path {
        substitute(path)?;
    }
    // SAFETY: the call only looks for a library, and libraries with this name are drivers.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable(format!("the machine has no CUDA driver: {NAME} is not found")));
    }
    Ok(initialize()?)
}

/// Opens a library so that cudarc finds it as the driver.
fn substitute(path: &Path) -> Result<(), Unavailable> {
    let wrong = |reason: String| Unavailable(format!("{}: {reason}", path.display()));
    // SAFETY: whoever names a driver guarantees that it is one, as whoever installs one.
    let library = unsafe { Library::new(path) }.map_err(|error| wrong(error.to_string()))?;
    // SAFETY: a library with this name is a driver.
    let found = unsafe { Library::new(NAME) };
    let address = |library: &Library| {
        // SAFETY: the function is not called. Only its address matters.
        unsafe { library.get::<*const ()>(b"cuInit\0") }.ok().map(|symbol| *symbol)
    };
    let given =
        address(&library).ok_or_else(|| wrong("the library is not a CUDA driver".to_owned()))?;
    if found.as_ref().ok().and_then(address) != Some(given) {
        return Err(wrong(format!(
            "the library cannot be used: its name is not {NAME}, or another driver is loaded"
        )));
    }
    // The library stays until the process ends.
    std::mem::forget(library);
    Ok(())
}
