//! Least periods that no plan can beat, stronger than those of `planner_core::bounds`.
//!
//! `period_ns` holds for plans that run the ops in the given order: a linear program in
//! which every tensor may move in part. [`any_order_ns`] holds for every order. What they
//! assume, and why they hold, is in `docs/bounds.md`.
//!
//! The linear program is solved by HiGHS, behind the feature `highs`, since that is built
//! from C++. Nothing depends on the solver being right: the bound is computed anew from its
//! dual values.
#![forbid(unsafe_code)]

mod any_order;
#[cfg(feature = "highs")]
mod given_order;
#[cfg(feature = "highs")]
mod model;
#[cfg(feature = "highs")]
mod program;
#[cfg(feature = "highs")]
mod solver;
#[cfg(feature = "highs")]
mod spans;

pub use any_order::any_order_ns;
#[cfg(feature = "highs")]
pub use given_order::{Bound, Error, Options, Pages, period_ns};
