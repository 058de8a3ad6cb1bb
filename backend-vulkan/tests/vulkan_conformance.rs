//! Vulkan is held to the suite with validation and synchronisation validation on, where every
//! message fails. `backend-vulkan/with-lavapipe cargo test -p spillway-backend-vulkan` brings a device;
//! `SPILLWAY_VULKAN_DEVICE` picks one of the machine's own, by a part of its name.

use backend_vulkan::Integrity;
use std::process::ExitCode;

fn main() -> ExitCode {
    conformance::suite::main(Integrity::from_environment(true).expect("the environment is right"))
}
