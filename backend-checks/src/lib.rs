//! Checks and records that backends over a driver share. [`AddressMap`] records reserved and mapped
//! addresses, [`check_launch`] and [`check_host_launch`] check a launch before the driver sees it,
//! and [`Refused`] says why a call is refused. [`HostOp`] is an op that waits for its turn on the
//! host.
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
