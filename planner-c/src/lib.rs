//! Spillway for C: the interface of the crate `spillway`, as functions that any language can call.
//! `include/spillway.h` is generated from this crate and documents it for C.
//!
//! - A handle (graph, machine, plan, session) is made by one function and freed by another. Graphs,
//!   machines and plans never change, so threads may share them. A session belongs to one thread at
//!   a time. A handle keeps what it needs of the handles from which it was made.
//! - A function that can fail returns a [`Code`](error::Code) and writes a message into the
//!   caller's [`Error`](error::Error). After a failure, all other output is unchanged.
//! - All input from the caller is checked, except pointers, and bad input is an error. A panic,
//!   which would be a bug here, becomes the code `SPILLWAY_CODE_INTERNAL`.
//! - There is no global state.

pub mod addresses;
mod boundary;
pub mod device;
pub mod error;
pub mod fill;
pub mod graph;
pub mod kernels;
pub mod machine;
pub mod plan;
pub mod session;
pub mod steps;
pub mod streaming;
