//! What every planner, verifier and backend is held to.
//!
//! [`suite`] is what backends are held to, one test a promise of their traits.
//!
//! [`layered`] holds them to it with middleware in between, [`chunked`] with larger chunks.
//!
//! [`ledger`] judges a plan slowly and straight from the text of the plan format, so that
//! the fast code of `planner-core` has something independent to be compared with.
//! [`planners`] holds planners to it; [`graphs`], [`chains`] and
//! [`plans`] make the graphs, machines and plans to compare them on. [`shortest`] tries all
//! schedules of a small chain. [`by_hand`] writes checkpointing into a decoder, as a plan to compare with.
#![forbid(unsafe_code)]

pub mod by_hand;
pub mod certificates;
pub mod chains;
pub mod choices;
pub mod chunked;
pub mod graphs;
pub mod layered;
pub mod ledger;
pub mod planners;
pub mod plans;
pub mod seeds;
pub mod shortest;
pub mod suite;
