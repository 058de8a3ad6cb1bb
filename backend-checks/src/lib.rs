//! What backends over a driver do alike. Before they turn to it, [`AddressMap`] knows what is
//! reserved and mapped, [`check_launch`] and [`check_host_launch`] check what
//! a launch brings, and [`Refused`] says what
//! is wrong with a call. [`HostOp`] is an op that waits for its turn on the host.
#![forbid(unsafe_code)]

mod address_map;
mod host_op;
mod launch;
mod refused;
mod unavailable;

pub use address_map::AddressMap;
pub use host_op::{HostFailure, HostOp, HostRead, HostRun};
pub use launch::{check_host_launch, check_launch};
pub use refused::Refused;
pub use unavailable::Unavailable;
