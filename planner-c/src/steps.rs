//! The steps of a plan, for callers with their own executor.

use crate::boundary::{call, fill_entries, given};
use crate::error::{Code, Error};
use crate::plan::Plan;
use spillway_c_types::steps::StepDescription;

/// Writes the steps of a plan into a buffer, and their number into `needed`. If the buffer is too
/// short, writes only the number. `step_bytes` is the size of `SpillwayStep`. The list repeats
/// forever. It has the steps of one iteration, or of `iterations` iterations one after the other,
/// which differ only in their waits.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_steps(
    plan: *const Plan,
    into: *mut StepDescription,
    step_bytes: usize,
    capacity: usize,
    needed: *mut usize,
    iterations: *mut u32,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let Plan(plan) = unsafe { given(plan, "plan") }?;
        let schedule = plan.schedule().schedule();
        let steps = plan.owned().steps.iter().cycle().zip(schedule.steps);
        let steps: Vec<_> = steps.map(|(step, entry)| StepDescription::new(step, entry)).collect();
        // SAFETY: as above. Null, or one value that may be uninitialised.
        unsafe {
            fill_entries(into, (step_bytes, "step_bytes"), capacity, needed, &steps)?;
            if !iterations.is_null() {
                iterations.write(schedule.iterations);
            }
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}
