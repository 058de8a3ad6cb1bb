//! The kinds of tensors.

use planner_core::Kind;

/// A tensor that keeps its value from one iteration to the next.
pub const STATE: u32 = 0;
/// A tensor that has a new value on the host in each iteration.
pub const INPUT: u32 = 1;
/// A tensor that an op writes before any op reads it.
pub const TEMPORARY: u32 = 2;
/// A tensor that an op writes before any op reads it. Each iteration leaves its last value on the
/// host.
pub const OUTPUT: u32 = 3;

/// The kind with a number. `None` if no kind has the number.
#[must_use]
pub const fn kind(number: u32) -> Option<Kind> {
    match number {
        STATE => Some(Kind::State),
        INPUT => Some(Kind::Input),
        TEMPORARY => Some(Kind::Temporary),
        OUTPUT => Some(Kind::Output),
        _ => None,
    }
}
