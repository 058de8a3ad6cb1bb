//! CUDA is held to the suite on an emulated driver, which delays work at random. With
//! `SPILLWAY_CUDA_DRIVER=system` it is held to it on the machine's own device;
//! `EMULATED_CUDA_SEED` draws other delays, and `SPILLWAY_CUDA_DEVICE` picks another device than
//! the first.

use backend_cuda::Integrity;
use std::process::ExitCode;

fn main() -> ExitCode {
    let is_system = std::env::var("SPILLWAY_CUDA_DRIVER").is_ok_and(|driver| driver == "system");
    let driver = if is_system { None } else { emulated() };
    match Integrity::from_environment() {
        Ok(chosen) => conformance::suite::main_with_graphs(Integrity { driver, ..chosen }),
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
fn emulated() -> Option<std::path::PathBuf> {
    let path = emulated_cuda::Emulated::built_path();
    // Where it cannot be opened, the suite says why.
    if let Ok(emulated) = emulated_cuda::Emulated::open(&path) {
        emulated.delay_all();
    }
    Some(path)
}

#[cfg(not(target_os = "linux"))]
fn emulated() -> Option<std::path::PathBuf> {
    None
}
