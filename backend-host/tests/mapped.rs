//! Mapped host memory, with a thread for each direction, is held to the suite like any other device.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    conformance::suite::main(backend_host::Mapped)
}

#[cfg(not(target_os = "linux"))]
const fn main() {}
