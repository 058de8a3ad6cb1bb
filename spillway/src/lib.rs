//! Runs computations that need more memory than the GPU has, by planning every transfer ahead.

pub mod placing;
pub mod planning;
pub mod swapping;
