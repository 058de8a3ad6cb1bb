//! Fixes physical objects for everything that a plan allocates, so that nothing is mapped or
//! unmapped while it runs.

mod addresses;
mod contiguous;
mod line;
mod place;
mod sweep;

pub(crate) use addresses::resident_after;
pub use addresses::{AddressError, Holder, Run, addresses, addresses_scratch_words};
pub use place::{
    Over, PlacementError, PlacementOutput, contiguous_scratch_words, place, place_contiguously,
    scratch_words, slots,
};
