//! The simulated device passes the suite like any other device, in many orders and with the chunk
//! sizes of real devices.

use backend_sim::Sim;
use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::suite::main_in_chunks(Sim::default(), &[4 << 10, 64 << 10, 2 << 20])
}
