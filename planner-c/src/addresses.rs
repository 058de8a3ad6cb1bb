//! Where everything lies in one allocation of device memory.

use crate::boundary::{call, fill, given};
use crate::error::{Code, Error};
use crate::plan::Plan;
use crate::steps::SPILLWAY_NONE;
use planner_core::placement::{Holder, Run as CoreRun};

/// Bytes that a step touches and that lie at consecutive offsets.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The position of the step among all that `spillway_plan_steps` writes, or `SPILLWAY_NONE` for
    /// what is on the device when the first iteration starts.
    pub step: u32,
    /// The tensor; for a workspace, the op.
    pub id: u32,
    /// Whether it is the workspace of an op: 1, or 0.
    pub is_workspace: u8,
    /// Where the bytes begin in the tensor or the workspace.
    pub first_byte: u64,
    /// Where they begin in the slab.
    pub offset_bytes: u64,
    /// How many there are. Where it is less than the tensor has, the tensor does not lie in one piece:
    /// a launch has further runs of it.
    pub bytes: u64,
}

/// Writes the offsets of all that the plan touches into a buffer, and their number into `needed`;
/// where the buffer is too short, only the number. They are offsets in one slab, which the runtime
/// allocates once, of `slab_bytes`. First comes what is on the device at the start, then what each step
/// touches, in the order of the steps: of a copy, a part of a tensor; of a launch, each of its tensors
/// once, then its workspace.
///
/// A plan that does not fix its objects has no offsets: `SPILLWAY_CODE_NOT_PLACED`.
///
/// # Safety
/// The pointers are as `spillway.h` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_addresses(
    plan: *const Plan,
    into: *mut Run,
    capacity: usize,
    needed: *mut usize,
    slab_bytes: *mut u64,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let Plan(plan) = unsafe { given(plan, "plan") }?;
        let addresses = plan.addresses()?;
        let runs: Vec<_> = addresses.all().iter().map(describe).collect();
        // SAFETY: the same. Null, or one value that may be uninitialised.
        unsafe {
            fill(into, capacity, needed, &runs)?;
            if !slab_bytes.is_null() {
                slab_bytes.write(addresses.slab_bytes());
            }
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

fn describe(run: &CoreRun) -> Run {
    let CoreRun { entry, holder, first_byte, offset_bytes, bytes } = *run;
    let (id, is_workspace) = match holder {
        Holder::Tensor(tensor) => (tensor.0, 0),
        Holder::Workspace(op) => (op.0, 1),
    };
    let step = entry.unwrap_or(SPILLWAY_NONE);
    Run { step, id, is_workspace, first_byte, offset_bytes, bytes }
}
