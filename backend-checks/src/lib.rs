//! What every backend has to check before it turns to its driver: [`AddressMap`] knows what is
//! reserved and mapped, [`Operands`] what a launch brings, and [`Refused`] says what is wrong
//! with a call.
#![forbid(unsafe_code)]

mod address_map;
mod operands;
mod refused;

pub use address_map::AddressMap;
pub use operands::Operands;
pub use refused::Refused;
