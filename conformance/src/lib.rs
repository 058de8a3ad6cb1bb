//! What every planner, verifier and backend is held to.
//!
//! [`ledger`] judges a plan slowly and straight from the text of the plan format, so that
//! the fast code of `planner-core` has something independent to be compared with.
//! [`planners`] holds planners to it; [`graphs`], [`chains`] and
//! [`plans`] make the graphs, machines and plans to compare them on. [`shortest`] tries all
//! schedules of a small chain.
#![forbid(unsafe_code)]

pub mod chains;
pub mod choices;
pub mod graphs;
pub mod ledger;
pub mod planners;
pub mod plans;
pub mod shortest;
