//! Computations in which every wrong byte shows, and what a backend brings so that they run
//! on it.
//!
//! An op of a real network forgives much: a byte that is lost may never be seen. Here an op
//! mixes every word that it reads into every word that it writes, so that one wrong byte
//! changes all that follows, down to the [`digest`] of the results. The arithmetic is the
//! same on every device, 32 bits wide, and so cheap that even a simulator without memory can
//! follow it: [`value`] defines it word by word, for kernels in any language.
//!
//! [`Backend`] is all that has to be known of a backend, beyond the traits of
//! [`planner_core::backend`], to run such a computation on it, and to hold it to the
//! conformance suite.
#![forbid(unsafe_code)]

mod backend;
mod host;
mod kernels;
mod passes;
mod reference;
pub mod value;

pub use backend::{Backend, Exemption, Found, Graphs, RUN_WORDS};
pub use host::HostArithmetic;
pub use kernels::{fill_inputs, fill_states, slots, states_digest};
pub use passes::{FoldOrder, Passes, Read, Write};
pub use reference::{reference_digest, reference_values};
pub use value::{Reading, Results, Value, digest};
