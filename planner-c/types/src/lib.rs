//! What `spillway.h` and `spillway_core.h` share: the kinds of tensors, machines, the steps of a plan, and
//! structs that begin with their size.
//!
//! Each header has a prefix of its own for the names here: `cbindgen.toml` beside it renames them.
#![no_std]

pub mod kinds;
pub mod machine;
pub mod sized;
pub mod steps;
