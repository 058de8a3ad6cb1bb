//! Buffers for as much as there is memory for, which grow until the work fits.

use planner_core::planner::PlanningError;
use planner_core::scratch::{Limits, OutOfScratch, words};
use std::ops::ControlFlow::{self, Break, Continue};

/// Steps beyond which a list is of no use: predicting it takes minutes.
const MOST_STEPS: usize = 1 << 26;

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
        // Lists that launch ops again may have more steps than those of any one strategy.
        Err(PlanningError::BufferTooShort(short))
            if steps < limits.max_steps().max(short.needed).min(MOST_STEPS) =>
        {
            Continue(((), short.needed))
        }
        done => Break(done),
    })
}

/// A buffer of the size that untrusted work asks for, if there is memory for it.
pub(crate) fn buffer<T: Clone>(len: usize, fill: T) -> Result<Vec<T>, OutOfScratch> {
    let needed_words = words::<T>(len);
    let mut buffer = Vec::<T>::new();
    let reserved = buffer.try_reserve_exact(len);
    // Without this, compilers leave out what is not used.
    std::hint::black_box(&buffer);
    drop(buffer);
    reserved.map_err(|_| OutOfScratch { needed_words, free_words: 0 })?;
    Ok(vec![fill; len])
}

/// Makes a buffer this long at least, if there is memory for it. What it held is lost if it grows.
pub(crate) fn lengthen<T: Clone>(
    buffer: &mut Vec<T>,
    len: usize,
    fill: T,
) -> Result<(), OutOfScratch> {
    if buffer.len() < len {
        // Zeros of a new buffer cost nothing until they are used.
        *buffer = Vec::new();
        *buffer = self::buffer(len, fill)?;
    }
    Ok(())
}
