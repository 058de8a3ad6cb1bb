//! A lower bound on the period in a given order of the ops, stronger than `planner_core::bounds`.
//! It comes from a linear program in which any part of a tensor may move. `docs/research/bounds.md`
//! has its assumptions and its proof.
//!
//! HiGHS solves the program. It needs the feature `highs`, because HiGHS is built from C++. The
//! bound does not rely on the solver: this crate computes the bound again from the solver's dual
//! values.
//!
//! `weights` is the published integer program for chains. The example `comparison` writes
//! `docs/research/comparison.md`.
#![forbid(unsafe_code)]

#[cfg(feature = "highs")]
mod given_order;
#[cfg(feature = "highs")]
mod model;
#[cfg(feature = "highs")]
mod program;
#[cfg(feature = "highs")]
mod repeats;
#[cfg(feature = "highs")]
mod solver;
#[cfg(feature = "highs")]
mod spans;
#[cfg(feature = "highs")]
mod weights;

#[cfg(feature = "highs")]
pub use given_order::{Bound, Error, Options, Pages, period_ns};
#[cfg(feature = "highs")]
pub use repeats::period_with_repeats_ns;
#[cfg(feature = "highs")]
pub use weights::{Unsolved, WeightBound, WeightOptions, weights_period_ns};
