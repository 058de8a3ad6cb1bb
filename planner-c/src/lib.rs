//! Spillway for C: the front door of the crate `spillway`, as functions that any language can
//! call. `include/spillway.h` is made from this crate, and documents it for C.
//!
//! - A handle (graph, machine, plan, session) is made by one function and freed by another. Graphs,
//!   machines and plans never change, so threads may share them; a session belongs to one thread at
//!   a time. A handle keeps what it needs of those that it was made from.
//! - A function that can fail returns a [`Code`](error::Code) and writes a sentence into the
//!   caller's [`Error`](error::Error). It then leaves all other output as it was.
//! - Pointers apart, nothing that a caller passes is trusted: bad input is an error. A panic, which
//!   would be a bug here, is the code `SPILLWAY_CODE_INTERNAL`.
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
