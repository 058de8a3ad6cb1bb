//! The simulated device is held to the suite like any other, in many orders.

use backend_sim::Sim;
use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::suite::main(Sim::default())
}
