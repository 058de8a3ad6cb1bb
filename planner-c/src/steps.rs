//! The steps of a plan, for those who have an executor of their own.

use crate::boundary::{call, fill, given};
use crate::error::{Code, Error};
use crate::plan::Plan;
use planner_core::schedule::Scheduled;
use planner_core::{Launched, Part, PerStream, Step};

/// Allocates device memory for a range of a tensor, and copies its value in. Of an input, after the
/// last launch of the list that reads it: the value of the next iteration.
pub const SPILLWAY_PREFETCH: u32 = 0;
/// Runs an op. What it writes is allocated where it is not on the device, and so is its workspace.
pub const SPILLWAY_LAUNCH: u32 = 1;
/// Copies a range of a tensor to the host; it stays on the device.
pub const SPILLWAY_OFFLOAD: u32 = 2;
/// Gives back the device memory of a range of a tensor.
pub const SPILLWAY_EVICT: u32 = 3;
/// Runs an op on the host: on the host's copies of its tensors, and without device memory. Of an input,
/// that is the value of this iteration.
pub const SPILLWAY_HOST_RUN: u32 = 4;

/// Ops run on this stream.
pub const SPILLWAY_COMPUTE: u32 = 0;
/// Prefetches run on this stream.
pub const SPILLWAY_UPLOAD: u32 = 1;
/// Offloads run on this stream.
pub const SPILLWAY_DOWNLOAD: u32 = 2;
/// Ops that run on the host run on this stream.
pub const SPILLWAY_HOST: u32 = 3;

/// No step: there is nothing to wait for.
pub const SPILLWAY_NONE: u32 = u32::MAX;
/// All objects of a tensor.
pub const SPILLWAY_ALL: u64 = u64::MAX;

/// What must have ended on a stream before a step starts.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The position of the awaited step among those of its stream in one iteration, or
    /// `SPILLWAY_NONE`.
    pub index: u32,
    /// How many iterations back that step lies. Where that is before the first, there is nothing to
    /// wait for.
    pub iterations_back: u32,
}

/// One step. Steps are enqueued in the order of the list, each on the stream of its kind.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepDescription {
    /// `SPILLWAY_PREFETCH`, `SPILLWAY_LAUNCH`, `SPILLWAY_OFFLOAD`, `SPILLWAY_EVICT` or
    /// `SPILLWAY_HOST_RUN`.
    pub kind: u32,
    /// The op of a launch or of a host run, else the tensor.
    pub id: u32,
    /// The first object of the range; 0 of an op.
    pub first_object: u64,
    /// How many objects, or `SPILLWAY_ALL`; 0 of an op. `spillway_plan_addresses` has the bytes.
    pub object_count: u64,
    /// Whether the op has been launched before in this iteration: 1, or 0.
    pub is_repeat: u8,
    /// The position among the steps of its stream in one iteration. An evict is on no stream:
    /// `SPILLWAY_NONE`.
    pub index: u32,
    /// What it waits for on each stream, by number. For an evict: what must have ended before its
    /// memory is free.
    pub waits: [Wait; 4],
}

/// Writes the steps of a plan into a buffer, and their number into `needed`. Where the buffer is
/// too short, only the number is written. The list repeats for ever: it has the steps of one
/// iteration, or of `iterations`, one after the other, which differ only in their waits.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_steps(
    plan: *const Plan,
    into: *mut StepDescription,
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
        let steps: Vec<_> = steps.map(|(step, entry)| describe(step, entry)).collect();
        // SAFETY: the same. Null, or one value that may be uninitialised.
        unsafe {
            fill(into, capacity, needed, &steps)?;
            if !iterations.is_null() {
                iterations.write(schedule.iterations);
            }
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

fn describe(step: &Step, entry: &Scheduled) -> StepDescription {
    let PerStream(waits) = entry.waits().map(|wait| match wait {
        Some(wait) => Wait { index: wait.index, iterations_back: wait.iterations_back },
        None => Wait { index: SPILLWAY_NONE, iterations_back: 0 },
    });
    let index = entry.stream().map_or(SPILLWAY_NONE, |_| entry.index());
    let (kind, id, [first_object, object_count], is_repeat) = match *step {
        Step::Prefetch(part) => of_part(SPILLWAY_PREFETCH, part),
        Step::Offload(part) => of_part(SPILLWAY_OFFLOAD, part),
        Step::Evict(part) => of_part(SPILLWAY_EVICT, part),
        Step::Host(op) => (SPILLWAY_HOST_RUN, op.0, [0, 0], false),
        Step::Launch(Launched { op, is_repeat }) => (SPILLWAY_LAUNCH, op.0, [0, 0], is_repeat),
    };
    let is_repeat = u8::from(is_repeat);
    StepDescription { kind, id, first_object, object_count, is_repeat, index, waits }
}

const fn of_part(kind: u32, part: Part) -> (u32, u32, [u64; 2], bool) {
    (kind, part.tensor.0, [part.first, part.count], false)
}
