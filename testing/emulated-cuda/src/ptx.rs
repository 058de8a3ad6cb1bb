//! PTX, run instruction by instruction.
//!
//! A module is read (`token`, `parse`, `syntax`), its names become registers and constants
//! (`symbols`), and each instruction a function over the 32 lanes of a warp (`decode`). What is
//! not supported is refused when the module is loaded.
//!
//! A warp runs up to a barrier or its end; lanes that have diverged reconverge where they meet
//! (`warp`). The warps of a block take turns at barriers, and blocks run one after the other
//! (`grid`), so a block that waits for a later one waits forever. Every access to memory is
//! checked (`memory`).
//!
//! All that it knows of the driver is the address space and the clock that a launch is given.
//!
//! Results are those of the PTX manual (Parallel Thread Execution ISA, NVIDIA), bit by bit, except
//! for instructions named `approx` and `full`. These are computed by the host's functions; a
//! device's last bits may differ.

mod atomics;
mod decode;
mod error;
mod grid;
mod kernel;
mod kind;
mod memory;
mod module;
mod parse;
mod registers;
mod special;
mod symbols;
mod syntax;
mod token;
mod warp;

pub(crate) use grid::Launch;
pub(crate) use kernel::Kernel;
pub(crate) use module::Module;
