//! The mapped device, with a thread for each direction, passes the conformance suite like any other
//! device.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    conformance::suite::main_in_chunks(backend_host::Mapped, &[64 << 10])
}

#[cfg(not(target_os = "linux"))]
const fn main() {}
