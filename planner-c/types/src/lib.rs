//! The common part of `spillway.h` and `spillway_core.h`: the kinds of tensors, machines, the steps
//! of a plan, and structs that begin with their size.
//!
//! Each header has its own prefix for the names here. The `cbindgen.toml` beside the header renames
//! them.
#![no_std]

pub mod kinds;
pub mod machine;
pub mod sized;
pub mod steps;
