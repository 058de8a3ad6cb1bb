//! The verdicts of the example `cuda-figures`, whose own tests are beside them.

#[allow(dead_code, reason = "the tests use only a part")]
#[path = "../examples/cuda-figures/judge.rs"]
mod judge;
