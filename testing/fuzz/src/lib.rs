//! Calls everything public with garbage.
//!
//! A [`case`] is a number: with the seed it decides on a target and on an input for it. The same
//! seed and number give the same input on every machine.
//!
//! | target | input | what must hold |
//! |---|---|---|
//! | [`judge`] | [`plans`], valid or mutated | the verifier and the ledger agree; what is valid runs |
//! | [`switches`] | two plans, a switch planned or forged | the verifier and the ledger agree; no arranged plan copies more |
//! | [`sessions`] | two plans, what is asked of a session | host and simulation, with switches or without, answer alike |
//! | [`layers`] | layers to stream, plans with fixed objects | run at their addresses in one [`slab`], each op finds the bytes that it reads |
//! | [`pages`] | plans with hostile names, and measured times | reports, pictures and traces are well-formed; times of no run are refused |
//! | [`calls`] | [`plans`], [`graphs`], [`machines`], sizes, schedules | every function returns |
//! | [`texts`] | damaged files; [`certificates`] with any prices | readers and importers return; a certificate proves no more than a valid plan takes |
//!
//! A short run is the crate's test. A long one, in which [`memory`] is watched as well:
//!
//! ```text
//! cargo run --profile fuzz -p fuzz -- --minutes 10
//! ```

pub mod calls;
pub mod case;
pub mod certificates;
pub mod fault;
pub mod graphs;
pub mod judge;
pub mod layers;
pub mod machines;
pub mod memory;
pub mod numbers;
pub mod pages;
pub mod plans;
pub mod sessions;
pub mod slab;
pub mod switches;
pub mod texts;
