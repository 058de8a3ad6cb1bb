//! Buffers that grow until the work fits, or until memory runs out.

use planner_core::planner::PlanningError;
use planner_core::scratch::{Limits, OutOfScratch, words};
use std::ops::ControlFlow::{self, Break, Continue};

/// The most steps of a list. The prediction of a longer list would take minutes.
const MOST_STEPS: usize = 1 << 26;

/// Calls `attempt` with a size, and again with at least twice the size while it asks for more. An attempt
/// that needs more returns `state` for the next attempt, and the size that it needs, if known.
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

/// Calls `attempt` with limits for plans of `steps` steps, and with more steps until its output buffers are
/// large enough.
///
/// # Errors
/// The errors of `attempt`, except for buffers that are too short.
pub(crate) fn grow_steps<T>(
    limits: &Limits,
    steps: usize,
    mut attempt: impl FnMut(&Limits) -> Result<T, PlanningError>,
) -> Result<T, PlanningError> {
    grow(steps, (), |(), steps| match attempt(&limits.with_steps(steps)) {
        // Lists with repeats may have more steps than the lists of any strategy without them.
        Err(PlanningError::BufferTooShort(short))
            if steps < limits.max_steps().max(short.needed).min(MOST_STEPS) =>
        {
            Continue(((), short.needed))
        }
        done => Break(done),
    })
}

/// Allocates a buffer of a size that untrusted work determines. Fails if there is too little memory.
pub(crate) fn buffer<T: Clone>(len: usize, fill: T) -> Result<Vec<T>, OutOfScratch> {
    let needed_words = words::<T>(len);
    let mut buffer = Vec::<T>::new();
    let reserved = buffer.try_reserve_exact(len);
    // Without this, compilers remove the unused allocation.
    std::hint::black_box(&buffer);
    drop(buffer);
    reserved.map_err(|_| OutOfScratch { needed_words, free_words: 0 })?;
    Ok(vec![fill; len])
}

/// Makes a buffer at least `len` long. A buffer that grows loses its content. Fails if there is too little
/// memory.
pub(crate) fn lengthen<T: Clone>(
    buffer: &mut Vec<T>,
    len: usize,
    fill: T,
) -> Result<(), OutOfScratch> {
    if buffer.len() < len {
        // The zeros of a new buffer cost nothing until they are used.
        *buffer = Vec::new();
        *buffer = self::buffer(len, fill)?;
    }
    Ok(())
}
