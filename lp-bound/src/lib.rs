//! The least period in a given order of the ops, stronger than `planner_core::bounds`: a
//! linear program in which every tensor may move in part. What it assumes, and why it holds,
//! is in `docs/bounds.md`.
//!
//! It is solved by HiGHS, behind the feature `highs`, since that is built from C++. Nothing
//! depends on the solver being right: the bound is computed anew from its dual values.
#![forbid(unsafe_code)]

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
#[cfg(feature = "highs")]
mod weights;

#[cfg(feature = "highs")]
pub use given_order::{Bound, Error, Options, Pages, period_ns};
#[cfg(feature = "highs")]
pub use weights::{Unsolved, WeightBound, WeightOptions, weights_period_ns};
