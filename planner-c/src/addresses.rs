//! The offset of each tensor and workspace in one allocation of device memory.

use crate::boundary::{call, fill_entries, given, put_sized};
use crate::error::{Code, Error};
use crate::plan::Plan;
use crate::session::SwitchFigures;
use planner_core::machine::Direction;
use planner_core::placement::{Holder, Run as CoreRun};
use spillway_c_types::steps::NONE;

/// Bytes that a step touches, at consecutive offsets.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The position of the step among all steps that `spillway_plan_steps` writes. `SPILLWAY_NONE`
    /// for bytes that are on the device when the first iteration starts.
    pub step: u32,
    /// The tensor. For a workspace, the op.
    pub id: u32,
    /// Whether it is the workspace of an op: 1 or 0.
    pub is_workspace: u8,
    /// The offset of the bytes in the tensor or the workspace.
    pub first_byte: u64,
    /// The offset of the bytes in the slab.
    pub offset_bytes: u64,
    /// The number of bytes. If it is less than the tensor's size, the tensor does not lie in one
    /// piece, and a launch has further runs of it.
    pub bytes: u64,
}

/// Writes the offsets of all bytes that the plan touches into a buffer, and the number of runs into
/// `needed`. If the buffer is too short, writes only the number. `run_bytes` is the size of
/// `SpillwayRun`. The offsets are in one slab of `slab_bytes`, which the runtime allocates once.
/// The bytes on the device at the start come first. The bytes of each step follow, in the order of
/// the steps: for a copy, a part of a tensor; for a launch, each of its tensors once, then its
/// workspace.
///
/// A plan that does not fix its objects has no offsets: `SPILLWAY_CODE_NOT_PLACED`.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_addresses(
    plan: *const Plan,
    into: *mut Run,
    run_bytes: usize,
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
        // SAFETY: as above. Null, or one value that may be uninitialised.
        unsafe {
            fill_entries(into, (run_bytes, "run_bytes"), capacity, needed, &runs)?;
            if !slab_bytes.is_null() {
                slab_bytes.write(addresses.slab_bytes());
            }
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

/// A copy between the slab and the host's copy of a tensor.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabCopy {
    /// The tensor, by its number in the graph of the second plan.
    pub tensor: u32,
    /// The direction: 1 to the device, 0 to the host.
    pub is_upload: u8,
    /// Whether it waits for all copies before it: 1 or 0. Only an upload does.
    pub waits: u8,
    /// The offset of the bytes in the tensor.
    pub first_byte: u64,
    /// The offset of the bytes in the slab.
    pub offset_bytes: u64,
    /// The number of bytes.
    pub bytes: u64,
}

/// Writes the copies of a switch from one plan to another after `iterations` iterations into a
/// buffer, and their number into `needed`. If the buffer is too short, writes only the number.
/// `copy_bytes` is the size of `SpillwaySlabCopy`. Both plans have the same states and lie in one
/// slab, each at its `spillway_plan_addresses`. `slab_bytes` is set to the larger of their sizes.
/// Bytes that both plans hold at the same offset stay. Downloads run in order on one stream, and
/// uploads on another. `figures` may be null. It is set to the cost of the copies.
///
/// # Safety
/// The pointers are as `spillway.h` requires.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_plan_slab_switch_to(
    from: *const Plan,
    iterations: u64,
    to: *const Plan,
    into: *mut SlabCopy,
    copy_bytes: usize,
    capacity: usize,
    needed: *mut usize,
    slab_bytes: *mut u64,
    figures: *mut SwitchFigures,
    error: *mut Error,
) -> Code {
    let body = || {
        // SAFETY: the caller's promise.
        let (Plan(from), Plan(to)) = unsafe { (given(from, "from")?, given(to, "to")?) };
        let switch = from.slab_switch_to(iterations, to)?;
        let copies: Vec<_> = switch.copies.iter().map(describe_copy).collect();
        // SAFETY: as above. Null, or one value that may be uninitialised.
        unsafe {
            fill_entries(into, (copy_bytes, "copy_bytes"), capacity, needed, &copies)?;
            if !slab_bytes.is_null() {
                slab_bytes.write(switch.slab_bytes);
            }
            if !figures.is_null() {
                put_sized(figures, &switch.figures.into(), "figures")?;
            }
        }
        Ok(())
    };
    // SAFETY: the caller's promise.
    unsafe { call(error, body) }
}

fn describe_copy(copy: &spillway::SlabCopy) -> SlabCopy {
    let spillway::SlabCopy { direction, waits, tensor, first_byte, offset_bytes, bytes, .. } =
        *copy;
    let is_upload = u8::from(direction == Direction::HostToDevice);
    SlabCopy {
        tensor: tensor.0,
        is_upload,
        waits: u8::from(waits),
        first_byte,
        offset_bytes,
        bytes,
    }
}

fn describe(run: &CoreRun) -> Run {
    let CoreRun { entry, holder, first_byte, offset_bytes, bytes } = *run;
    let (id, is_workspace) = match holder {
        Holder::Tensor(tensor) => (tensor.0, 0),
        Holder::Workspace(op) => (op.0, 1),
    };
    let step = entry.unwrap_or(NONE);
    Run { step, id, is_workspace, first_byte, offset_bytes, bytes }
}
