//! Fixes physical objects for everything that a plan allocates, so that nothing is mapped or
//! unmapped once it runs.

mod free;
mod place;
mod sweep;

pub use place::{Output, Over, PlacementError, place, scratch_words, slots};
