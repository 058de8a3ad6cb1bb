//! The driver's library: the system's, or one at a path.

use super::context::initialize;
use crate::error::Unavailable;
use cudarc::driver::sys;
use libloading::Library;
use std::path::Path;

/// The name under which cudarc finds the driver.
const NAME: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so" };

/// Finds the driver: the library at a path, for the whole process, or the system's.
pub(crate) fn load(path: Option<&Path>) -> Result<(), Unavailable> {
    if let Some(path) = path {
        substitute(path)?;
    }
    // SAFETY: only looks for a library; those with this name are drivers.
    if !unsafe { sys::is_culib_present() } {
        return Err(Unavailable(format!("there is no CUDA driver: {NAME} is not found")));
    }
    Ok(initialize()?)
}

/// Opens a library so that it is found as the driver.
fn substitute(path: &Path) -> Result<(), Unavailable> {
    let wrong = |reason: String| Unavailable(format!("{}: {reason}", path.display()));
    // SAFETY: whoever names a driver vouches for it, as whoever installs one.
    let library = unsafe { Library::new(path) }.map_err(|error| wrong(error.to_string()))?;
    // SAFETY: by its name, what is found is a driver.
    let found = unsafe { Library::new(NAME) };
    let address = |library: &Library| {
        // SAFETY: the function is not called; only where it lies matters.
        unsafe { library.get::<*const ()>(b"cuInit\0") }.ok().map(|symbol| *symbol)
    };
    let given = address(&library).ok_or_else(|| wrong("it is no CUDA driver".to_owned()))?;
    if found.as_ref().ok().and_then(address) != Some(given) {
        return Err(wrong(format!(
            "it cannot be used, since it does not call itself {NAME} or another driver is loaded"
        )));
    }
    // It stays for as long as the process.
    std::mem::forget(library);
    Ok(())
}
