//! Bad input of any kind is a code and a message.

#![allow(clippy::unwrap_used)]
// SAFETY: throughout, arrays are passed with their lengths, and texts end with a zero.
#![allow(clippy::undocumented_unsafe_blocks)]

use planner_core::MachineParameters;
use proptest::collection::vec;
use proptest::prelude::*;
use spillway_c_core::error::{Code, Error, SPILLWAY_CORE_MESSAGE_BYTES};
use spillway_c_core::plan::*;
use spillway_c_core::work::*;
use spillway_c_types::kinds::STATE;
use spillway_c_types::machine::MachineDescription;
use spillway_c_types::steps::{HOST_RUN, LAUNCH, NONE, OFFLOAD, PREFETCH, StepDescription};
use std::ffi::{CStr, CString};
use std::{ptr, slice};

/// Plans in some memory. Returns the code and the message, and checks that only a plan that fails has a message.
fn said(work: &Work, memory: &mut [u8], plan: &mut PlanDescription) -> (Code, String) {
    let mut error = Error { code: Code::Ok, message: [0; SPILLWAY_CORE_MESSAGE_BYTES] };
    let code = unsafe {
        spillway_core_plan(work, memory.as_mut_ptr(), memory.len(), plan, &raw mut error)
    };
    assert_eq!(error.code, code);
    let message = unsafe { CStr::from_ptr(error.message.as_ptr()) }.to_str().expect("ASCII");
    assert_eq!(code == Code::Ok, message.is_empty(), "{code:?}: {message}");
    (code, message.to_owned())
}

/// Plans in a buffer of `bytes` bytes that begins at an offset.
fn plan(work: &Work, bytes: usize, offset: usize) -> Result<(PlanDescription, Vec<u8>), Code> {
    let mut memory = vec![0xa5u8; bytes + offset];
    let zeros = unsafe { std::mem::zeroed() };
    let mut plan = PlanDescription { struct_bytes: size_of::<PlanDescription>(), ..zeros };
    let (code, _) = said(work, &mut memory[offset..], &mut plan);
    if code == Code::Ok { Ok((plan, memory)) } else { Err(code) }
}

fn number() -> impl Strategy<Value = u64> {
    prop_oneof![50 => 1..10_000u64, 1 => Just(0), 1 => Just(u64::MAX), 1 => any::<u64>()]
}

fn tensor() -> impl Strategy<Value = TensorDescription> {
    let kind = prop_oneof![9 => Just(STATE), 9 => 0..3u32, 1 => any::<u32>()];
    (number(), kind).prop_map(|(bytes, kind)| TensorDescription {
        struct_bytes: size_of::<TensorDescription>(),
        bytes,
        kind,
    })
}

fn op() -> impl Strategy<Value = OpDescription> {
    let few = || prop_oneof![20 => 0..3u32, 1 => any::<u32>()];
    let some = || prop_oneof![3 => Just(0), 1 => number()];
    (number(), some(), few(), few(), any::<u8>(), some()).prop_map(
        |(time_ns, workspace_bytes, reads, writes, repeatable, host_ns)| OpDescription {
            struct_bytes: size_of::<OpDescription>(),
            time_ns,
            workspace_bytes,
            reads,
            writes,
            repeatable,
            host_ns,
            collective: u8::from(repeatable > 200),
        },
    )
}

fn machine() -> impl Strategy<Value = MachineDescription> {
    prop::array::uniform8(number()).prop_map(|[device, host, chunk_bytes, rest @ ..]| {
        let [h2d_bytes_per_s, d2h_bytes_per_s, transfer_latency_ns, map, unmap] = rest;
        MachineDescription {
            struct_bytes: size_of::<MachineDescription>(),
            parameters: MachineParameters::new()
                .with_device_bytes(device.saturating_mul(64))
                .with_host_bytes(host.saturating_mul(64))
                .with_chunk_bytes(chunk_bytes)
                .with_h2d_bytes_per_s(h2d_bytes_per_s)
                .with_d2h_bytes_per_s(d2h_bytes_per_s)
                .with_transfer_latency_ns(transfer_latency_ns)
                .with_map_ns_per_chunk(map)
                .with_unmap_ns_per_chunk(unmap),
        }
    })
}

fn work(
    tensors: &[TensorDescription],
    ops: &[OpDescription],
    operands: &[u32],
    machine: &MachineDescription,
) -> Work {
    Work {
        struct_bytes: size_of::<Work>(),
        step_bytes: size_of::<StepDescription>(),
        tensors: tensors.as_ptr(),
        tensor_count: tensors.len(),
        ops: ops.as_ptr(),
        op_count: ops.len(),
        operands: operands.as_ptr(),
        operand_count: operands.len(),
        machine,
        budget_bytes: machine.parameters.device_bytes,
        strategy: ptr::null(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn garbage_is_an_error(
        tensors in vec(tensor(), 0..6),
        ops in vec(op(), 0..6),
        operands in vec(prop_oneof![20 => 0..6u32, 1 => any::<u32>()], 0..12),
        machine in machine(),
        budget in prop::option::of(number()),
        strategy in prop::option::of(prop::sample::select(vec!["auto", "on-demand", "window", "optimizer-offload", "none"])),
        offset in 0..9usize,
    ) {
        let name = strategy.map(|name| CString::new(name).unwrap());
        let mut work = work(&tensors, &ops, &operands, &machine);
        work.budget_bytes = budget.unwrap_or(work.budget_bytes);
        work.strategy = name.as_ref().map_or(ptr::null(), |name| name.as_ptr());
        let bytes = spillway_core_memory_bytes(tensors.len(), ops.len(), operands.len());
        if let Ok((made, memory)) = plan(&work, bytes, offset) {
            prop_assert!(memory.as_ptr_range().contains(&made.steps.cast()));
            let steps = unsafe { slice::from_raw_parts(made.steps, made.step_count) };
            let of_kind = |kind| steps.iter().filter(move |step| step.kind == kind);
            let on_host = of_kind(HOST_RUN).count();
            prop_assert!(of_kind(LAUNCH).count() + on_host >= ops.len());
            prop_assert!(of_kind(HOST_RUN).all(|it| ops[it.id as usize].host_ns > 0));
            let exchanges = ops.iter().any(|op| op.collective > 0);
            prop_assert!(on_host > 0 || exchanges || made.period_ns >= made.compute_ns);
        }
        let short = plan(&work, bytes - 1, 0);
        prop_assert!(short.is_err());
    }
}

const MACHINE: MachineDescription = MachineDescription {
    struct_bytes: size_of::<MachineDescription>(),
    parameters: MachineParameters::new()
        .with_device_bytes(1 << 30)
        .with_host_bytes(1 << 30)
        .with_chunk_bytes(4096)
        .with_h2d_bytes_per_s(1 << 30)
        .with_d2h_bytes_per_s(1 << 30),
};

#[test]
fn null_is_an_error() {
    let of = |count| Work { tensor_count: count, ..work(&[], &[], &[], &MACHINE) };
    let null = Work { tensors: ptr::null(), ..of(1) };
    assert_eq!(plan(&null, 1 << 20, 0).err(), Some(Code::Argument));
    let many = Work { tensors: ptr::null(), ..of(usize::MAX) };
    assert_eq!(plan(&many, 1 << 20, 0).err(), Some(Code::Argument));
    assert_eq!(plan(&of(0), 1 << 20, 0).err(), Some(Code::Graph), "a graph has ops");
    assert_eq!(spillway_core_memory_bytes(usize::MAX, 1, 1), usize::MAX);
    let none = || (ptr::null_mut(), ptr::null_mut());
    let code = unsafe { spillway_core_plan(ptr::null(), ptr::null_mut(), 0, none().0, none().1) };
    assert_eq!(code, Code::Argument);
}

#[test]
fn ops_that_may_run_on_the_host_do() {
    let tensors = [TensorDescription {
        struct_bytes: size_of::<TensorDescription>(),
        bytes: 8192,
        kind: STATE,
    }; 2];
    let op = |host_ns| OpDescription {
        struct_bytes: size_of::<OpDescription>(),
        time_ns: 9000,
        workspace_bytes: 0,
        reads: 1,
        writes: 1,
        repeatable: 0,
        host_ns,
        collective: 0,
    };
    let (ops, operands) = ([op(0), op(500)], [0, 0, 1, 1]);
    let strategy = c"optimizer-offload".as_ptr();
    let work = Work { strategy, ..work(&tensors, &ops, &operands, &MACHINE) };
    let (made, _memory) = plan(&work, spillway_core_memory_bytes(2, 2, 4), 0).unwrap();
    let steps = unsafe { slice::from_raw_parts(made.steps, made.step_count) };
    let of_kind = |kind| steps.iter().filter(move |step| step.kind == kind).map(|step| step.id);
    assert!(of_kind(LAUNCH).eq([0]) && of_kind(HOST_RUN).eq([1]));
}

#[test]
fn layers_that_do_not_fit_come_and_go() {
    let tensors = [TensorDescription {
        struct_bytes: size_of::<TensorDescription>(),
        bytes: 8192,
        kind: STATE,
    }; 3];
    let op = OpDescription {
        struct_bytes: size_of::<OpDescription>(),
        time_ns: 9000,
        workspace_bytes: 0,
        reads: 1,
        writes: 0,
        repeatable: 0,
        host_ns: 0,
        collective: 0,
    };
    let (ops, operands) = ([op; 3], [0, 1, 2]);
    let work = Work { budget_bytes: 16384, ..work(&tensors, &ops, &operands, &MACHINE) };
    let (made, _memory) = plan(&work, spillway_core_memory_bytes(3, 3, 3), 3).unwrap();
    let steps = unsafe { slice::from_raw_parts(made.steps, made.step_count) };
    let kinds = |kind| steps.iter().filter(|step| step.kind == kind).count();
    assert_eq!((kinds(LAUNCH), kinds(OFFLOAD)), (3, 0));
    assert!(kinds(PREFETCH) >= 1);
    assert!(steps.iter().any(|step| step.waits.iter().any(|wait| wait.index != NONE)));
    let short = Work { budget_bytes: 4096, ..work };
    assert_eq!(plan(&short, spillway_core_memory_bytes(3, 3, 3), 0).err(), Some(Code::Infeasible));
}

#[test]
fn structs_of_other_sizes_are_refused_by_name() {
    let state = TensorDescription { struct_bytes: 0, bytes: 8192, kind: STATE };
    let op = OpDescription {
        struct_bytes: 0,
        time_ns: 9000,
        workspace_bytes: 0,
        reads: 1,
        writes: 0,
        repeatable: 0,
        host_ns: 0,
        collective: 0,
    };
    // The struct whose size is too small: tensors, ops, the machine, the work, steps, the plan.
    let planned = |wrong: usize| {
        let size = |which, bytes| if wrong == which { bytes - 1 } else { bytes };
        let tensors =
            [TensorDescription { struct_bytes: size(0, size_of::<TensorDescription>()), ..state };
                3];
        let ops = [OpDescription { struct_bytes: size(1, size_of::<OpDescription>()), ..op }; 3];
        let machine = MachineDescription { struct_bytes: size(2, MACHINE.struct_bytes), ..MACHINE };
        let mut work = work(&tensors, &ops, &[0, 1, 2], &machine);
        work.struct_bytes = size(3, work.struct_bytes);
        work.step_bytes = size(4, work.step_bytes);
        let zeros = unsafe { std::mem::zeroed() };
        let struct_bytes = size(5, size_of::<PlanDescription>());
        let mut memory = vec![0; spillway_core_memory_bytes(3, 3, 3)];
        said(&work, &mut memory, &mut PlanDescription { struct_bytes, ..zeros })
    };
    assert_eq!(planned(6), (Code::Ok, String::new()));
    for (wrong, name) in [
        "struct_bytes of a tensor is",
        "struct_bytes of an op is",
        "struct_bytes of the machine is",
        "struct_bytes of the work is",
        "step_bytes is",
        "struct_bytes of the plan is",
    ]
    .into_iter()
    .enumerate()
    {
        let (code, message) = planned(wrong);
        assert_eq!(code, Code::Argument);
        assert!(message.starts_with(name), "{message}");
    }
}
