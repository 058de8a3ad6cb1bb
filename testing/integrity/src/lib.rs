//! Computations whose results show every wrong byte, and the abilities that a backend needs to run
//! them.
//!
//! An op of a real network hides many errors: a lost byte may never show. Here an op mixes every
//! word that it reads into every word that it writes, so one wrong byte changes all later values,
//! down to the [`digest`] of the results. The arithmetic is the same on every device and 32 bits
//! wide. It is so cheap that even a simulator without memory can do it. [`value`] defines it word
//! by word, for kernels in any language.
//!
//! [`Backend`] adds to the traits of [`planner_core::backend`] only the abilities that are needed
//! to run such a computation on a backend and to run the conformance suite.
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
