//! The checks for every planner, verifier and backend.
//!
//! [`suite`] checks backends, with one test for each promise of their traits.
//!
//! [`layered`] runs the suite with middleware in between, and [`chunked`] runs it with larger
//! chunks.
//!
//! [`ledger`] judges a plan slowly and straight from the text of the plan format, as an independent
//! reference for the fast code of `planner-core`. [`planners`] checks planners against it.
//! [`graphs`], [`chains`] and [`plans`] make the graphs, machines and plans for the comparison.
//! [`shortest`] tries all schedules of a small chain. [`by_hand`] writes checkpointing into a
//! decoder, for comparison with a plan.
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
pub mod sharded;
pub mod shortest;
pub mod suite;
