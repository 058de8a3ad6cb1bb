//! The device of host memory passes the conformance suite like any other device.

use backend_host::Host;
use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::suite::main_in_chunks(Host, &[64 << 10, 2 << 20])
}
