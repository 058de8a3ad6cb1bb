//! Buffers whose size is known only once the work has been tried: they grow until it fits.

use planner_core::planner::PlanningError;
use planner_core::scratch::Limits;
use std::ops::ControlFlow::{self, Break, Continue};

/// Calls `attempt` with a size, and again with at least twice the size as long as it asks for
/// more. An attempt that fails returns `state` for the next one, and the size that it needs, if
/// known.
pub(crate) fn grow<S, T>(
    mut size: usize,
    mut state: S,
    mut attempt: impl FnMut(S, usize) -> ControlFlow<T, (S, usize)>,
) -> T {
    loop {
        match attempt(state, size) {
            Break(done) => return done,
            Continue((next, needed)) => {
                (state, size) = (next, size.saturating_mul(2).max(needed));
            }
        }
    }
}

/// Calls `attempt` with limits for plans of `steps`, and for more of them until the buffers for
/// its output suffice.
///
/// # Errors
/// Those of `attempt`, except those for buffers that are too short.
pub(crate) fn grow_steps<T>(
    limits: &Limits,
    steps: usize,
    mut attempt: impl FnMut(&Limits) -> Result<T, PlanningError>,
) -> Result<T, PlanningError> {
    grow(steps, (), |(), steps| match attempt(&limits.with_steps(steps)) {
        Err(PlanningError::BufferTooShort(short)) if steps < limits.max_steps() => {
            Continue(((), short.needed))
        }
        done => Break(done),
    })
}

/// Makes a buffer at least this long.
pub(crate) fn at_least<T: Clone>(buffer: &mut Vec<T>, len: usize, fill: T) {
    if buffer.len() < len {
        buffer.resize(len, fill);
    }
}
