//! cuBLAS as a library that is opened while the program runs: where it is, and its functions.
#![allow(unsafe_code, reason = "the library's functions are C")]

use backend_cuda::cudarc::driver::sys::CUstream;
use libloading::Library;
use std::env::{split_paths, var_os};
use std::ffi::{c_int, c_longlong, c_void};
use std::fs::{read_dir, read_to_string};
use std::path::{Path, PathBuf};

/// The versions that are known, the newest first. A driver takes those that are not newer than it.
const VERSIONS: [u32; 3] = [13, 12, 11];

/// A handle of the library.
pub(crate) type Handle = *mut c_void;
/// What a call returns; 0 is success.
type Status = u32;

/// The functions that are called, as in the manual. A device address is a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Functions {
    pub(crate) destroy: unsafe extern "C" fn(Handle) -> Status,
    pub(crate) set_stream: unsafe extern "C" fn(Handle, CUstream) -> Status,
    pub(crate) set_math_mode: unsafe extern "C" fn(Handle, c_int) -> Status,
    pub(crate) set_workspace: unsafe extern "C" fn(Handle, u64, usize) -> Status,
    pub(crate) sgemm_strided_batched: unsafe extern "C" fn(
        Handle,
        c_int,
        c_int,
        c_int,
        c_int,
        c_int,
        *const f32,
        u64,
        c_int,
        c_longlong,
        u64,
        c_int,
        c_longlong,
        *const f32,
        u64,
        c_int,
        c_longlong,
        c_int,
    ) -> Status,
}

/// The library with a handle in the current context.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) handle: Handle,
    pub(crate) functions: Functions,
    /// Its version and where it is, in words.
    pub(crate) name: String,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: the handle has been created, and nothing uses it afterwards.
        let _ = unsafe { (self.functions.destroy)(self.handle) };
    }
}

/// Opens the newest cuBLAS with which a handle can be created: one that the loader finds, or one
/// in these folders.
///
/// # Errors
/// Why none can be used.
pub(crate) fn open(folders: &[PathBuf]) -> Result<Opened, String> {
    let mut reasons = Vec::new();
    let file = |version| format!("libcublas.so.{version}");
    let names = VERSIONS.iter().flat_map(|&version| {
        let inside = folders.iter().map(move |folder| folder.join(file(version)));
        [PathBuf::from(file(version))].into_iter().chain(inside.filter(|path| path.exists()))
    });
    for name in names.chain([PathBuf::from("libcublas.so")]) {
        match open_one(&name) {
            Ok(opened) => return Ok(opened),
            // The loader's own names are only tried.
            Err(reason) if name.is_absolute() => reasons.push(reason),
            Err(_) => {}
        }
    }
    let searched =
        "neither the loader, nor Python's packages, nor the CUDA toolkit has libcublas.so";
    reasons.push(if reasons.is_empty() { searched } else { "no other is found" }.to_owned());
    Err(reasons.join("; "))
}

fn open_one(path: &Path) -> Result<Opened, String> {
    let failed = |reason: String| format!("{}: {reason}", path.display());
    // What it depends on lies beside it in Python's packages, where the loader does not look.
    if let Some(light) = path.to_str().map(|path| path.replace("libcublas.so", "libcublasLt.so"))
        && path.is_absolute()
        // SAFETY: by its name, the library is cuBLAS's.
        && let Ok(library) = unsafe { Library::new(light) }
    {
        std::mem::forget(library);
    }
    // SAFETY: by its name, the library is cuBLAS.
    let library = unsafe { Library::new(path) }.map_err(|error| failed(error.to_string()))?;
    // SAFETY: the functions have these types, by the manual.
    let found = unsafe { functions(&library) };
    let (create, version, functions) = found.map_err(|error| failed(error.to_string()))?;
    // It stays open: its functions are kept.
    std::mem::forget(library);
    let (mut handle, mut number) = (std::ptr::null_mut(), 0);
    // SAFETY: the handle may be written.
    let status = unsafe { create(&raw mut handle) };
    if status != 0 {
        return Err(failed(format!("cublasCreate: status {status}, perhaps the driver is older")));
    }
    // SAFETY: the handle has been created, and the number may be written.
    let _ = unsafe { version(handle, &raw mut number) };
    let (major, minor, patch) = (number / 10_000, number / 100 % 100, number % 100);
    let at = if path.is_absolute() { None } else { mapped(path) };
    let at = at.as_deref().unwrap_or(path).display();
    let name = format!("cuBLAS {major}.{minor}.{patch} ({at})");
    Ok(Opened { handle, functions, name })
}

type Create = unsafe extern "C" fn(*mut Handle) -> Status;
type GetVersion = unsafe extern "C" fn(Handle, *mut c_int) -> Status;

/// # Safety
/// The library is cuBLAS.
unsafe fn functions(
    library: &Library,
) -> Result<(Create, GetVersion, Functions), libloading::Error> {
    // SAFETY: the caller's; these are the functions' types.
    unsafe {
        let functions = Functions {
            destroy: *library.get(b"cublasDestroy_v2")?,
            set_stream: *library.get(b"cublasSetStream_v2")?,
            set_math_mode: *library.get(b"cublasSetMathMode")?,
            set_workspace: *library.get(b"cublasSetWorkspace_v2")?,
            sgemm_strided_batched: *library.get(b"cublasSgemmStridedBatched")?,
        };
        let create = *library.get(b"cublasCreate_v2")?;
        Ok((create, *library.get(b"cublasGetVersion_v2")?, functions))
    }
}

/// Where a library lies that the loader has found by its name.
fn mapped(name: &Path) -> Option<PathBuf> {
    let name = name.file_name()?.to_str()?;
    let maps = read_to_string("/proc/self/maps").ok()?;
    let path = maps.lines().find_map(|line| {
        let path = &line[line.find('/')?..];
        path.rsplit('/').next()?.starts_with(name).then_some(path)
    });
    path.map(PathBuf::from)
}

/// Where cuBLAS lies if the loader does not know it: with Python's packages, as PyTorch looks for
/// it (`nvidia/cu13/lib`, `nvidia/cublas/lib`), and with the CUDA toolkit.
pub(crate) fn folders() -> Vec<PathBuf> {
    let variable = |name| var_os(name).map(|paths| split_paths(&paths).collect::<Vec<_>>());
    let listed = |name| variable(name).unwrap_or_default();
    let environments = [listed("VIRTUAL_ENV"), listed("CONDA_PREFIX")].concat();
    let programs = listed("PATH").into_iter().filter(|folder| folder.join("python3").exists());
    let programs = programs.filter_map(|folder| folder.parent().map(Path::to_owned));
    let users = listed("HOME").into_iter().map(|home| home.join(".local"));
    let system = ["/usr/local", "/usr"].map(PathBuf::from);
    let prefixes = environments.into_iter().chain(programs).chain(users).chain(system);
    let libraries = prefixes.flat_map(|prefix| children(&prefix.join("lib"), "python3"));
    let packages =
        libraries.flat_map(|of| ["site-packages", "dist-packages"].map(|it| of.join(it)));
    let packages = listed("PYTHONPATH").into_iter().chain(packages);
    let wheels = packages.flat_map(|packages| children(&packages.join("nvidia"), "cu"));
    let toolkits = [listed("CUDA_HOME"), listed("CUDA_PATH")].concat().into_iter();
    let toolkits = toolkits.chain(children(Path::new("/usr/local"), "cuda"));
    let toolkits =
        toolkits.flat_map(|it| ["lib64", "targets/x86_64-linux/lib"].map(|to| it.join(to)));
    wheels.map(|package| package.join("lib")).chain(toolkits).collect()
}

/// What a folder holds whose name begins so, the last first.
fn children(folder: &Path, start: &str) -> Vec<PathBuf> {
    let entries = read_dir(folder).into_iter().flatten().flatten();
    let begins = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(start))
    };
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).filter(begins).collect();
    paths.sort_unstable_by(|one, other| other.cmp(one));
    paths
}
