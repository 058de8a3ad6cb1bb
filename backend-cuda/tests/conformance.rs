//! CUDA is held to the suite on an emulated driver, which delays work at random. With
//! `SPILLWAY_CUDA_DRIVER=system` it is held to it on the machine's own device;
//! `EMULATED_CUDA_SEED` draws other delays, and `SPILLWAY_CUDA_DEVICE` picks another device than
//! the first.

#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "nothing is wrong here")]
mod watched;

use backend_cuda::Integrity;
use conformance::suite::main_with_graphs;
use std::process::ExitCode;

fn main() -> ExitCode {
    let is_system = std::env::var("SPILLWAY_CUDA_DRIVER").is_ok_and(|driver| driver == "system");
    match Integrity::from_environment() {
        Ok(Integrity { ordinal, .. }) if is_system => {
            main_with_graphs(Integrity { driver: None, ordinal }, &[])
        }
        Ok(Integrity { ordinal, .. }) => on_emulated(ordinal),
        Err(reason) => {
            eprintln!("{reason}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(target_os = "linux")]
fn on_emulated(ordinal: usize) -> ExitCode {
    use emulated_cuda::Emulated;
    let path = Emulated::built_path();
    let integrity = Integrity { driver: Some(path.clone()), ordinal };
    match Emulated::open(&path) {
        Ok(emulated) => {
            emulated.delay_all();
            // Small chunks, which are interpreted word by word, and memory for large tensors in
            // several checks at a time.
            emulated.resize(16 << 30, 4096);
            let bug = watched::Bug::None;
            // Whoever names a driver has a time limit (`go`).
            let is_named = std::env::var_os("SPILLWAY_CUDA_DRIVER").is_some();
            let larger: &[u64] = if is_named { &[] } else { &[64 << 10, 2 << 20] };
            main_with_graphs(watched::Watched { integrity, emulated, bug }, larger)
        }
        // The suite says why.
        Err(_) => main_with_graphs(integrity, &[]),
    }
}

#[cfg(not(target_os = "linux"))]
fn on_emulated(ordinal: usize) -> ExitCode {
    main_with_graphs(Integrity { driver: None, ordinal }, &[])
}
