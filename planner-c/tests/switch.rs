//! Switches between plans for the same weights.

#![allow(clippy::unwrap_used)]
// SAFETY: throughout, arrays are passed with their lengths, texts end with a zero, and handles are
// from the library.
#![allow(clippy::undocumented_unsafe_blocks)]

mod common;

use common::made;
use planner_core::MachineParameters;
use spillway_c::addresses::*;
use spillway_c::error::Code;
use spillway_c::graph::*;
use spillway_c::machine::*;
use spillway_c::plan::*;
use spillway_c::session::*;
use spillway_c_types::kinds::{INPUT, STATE, TEMPORARY};
use spillway_c_types::machine::MachineDescription;
use std::ffi::CString;
use std::ptr;

const LAYERS: usize = 8;

/// Layers with a large state and a small one each. The values between layers have `value_bytes`
/// bytes.
fn graph(time_ns: u64, value_bytes: u64) -> *mut Graph {
    let name = |name: String| CString::new(name).unwrap();
    let names = (0..LAYERS)
        .flat_map(|at| ["weight", "bias", "value"].map(|kind| name(format!("{kind} {at}"))));
    let names: Vec<_> = [name("x".to_owned())].into_iter().chain(names).collect();
    let of_layer = [(4096, STATE), (200, STATE), (value_bytes, TEMPORARY)];
    let sizes = [(value_bytes, INPUT)].into_iter().chain([of_layer; LAYERS].concat());
    let tensors: Vec<_> = names
        .iter()
        .zip(sizes)
        .map(|(name, (bytes, kind))| TensorDescription {
            struct_bytes: size_of::<TensorDescription>(),
            name: name.as_ptr(),
            bytes,
            kind,
        })
        .collect();
    let operands: Vec<_> =
        (0..LAYERS as u32).map(|at| ([3 * at, 3 * at + 1, 3 * at + 2], [3 * at + 3])).collect();
    let op = |(reads, writes): &([u32; 3], [u32; 1])| OpDescription {
        struct_bytes: size_of::<OpDescription>(),
        name: ptr::null(),
        time_ns,
        workspace_bytes: 0,
        reads: reads.as_ptr(),
        read_count: reads.len(),
        writes: writes.as_ptr(),
        write_count: writes.len(),
        repeatable: 0,
        host_ns: 0,
        collective: 0,
    };
    let ops: Vec<_> = operands.iter().map(op).collect();
    let (tensors, ops) = ((tensors.as_ptr(), tensors.len()), (ops.as_ptr(), ops.len()));
    made(|to, error| unsafe {
        spillway_graph_new(ptr::null(), tensors.0, tensors.1, ops.0, ops.1, to, error)
    })
    .unwrap()
}

fn switch(from: *const Plan, to: *const Plan) -> SwitchFigures {
    let mut figures =
        SwitchFigures { struct_bytes: size_of::<SwitchFigures>(), ..SwitchFigures::default() };
    let code = unsafe { spillway_plan_switch_to(from, to, &raw mut figures, ptr::null_mut()) };
    assert_eq!(code, Code::Ok);
    figures
}

/// The copies of a switch in a slab, and its figures.
fn slab_switch(from: *const Plan, to: *const Plan) -> (Vec<SlabCopy>, SwitchFigures) {
    let (mut needed, mut slab_bytes) = (0, 0);
    let mut figures = switch(from, to);
    let (iterations, error) = (1, ptr::null_mut());
    let mut write = |into, capacity| unsafe {
        let (needed, slab_bytes) = (&raw mut needed, &raw mut slab_bytes);
        let figures = &raw mut figures;
        spillway_plan_slab_switch_to(
            from,
            iterations,
            to,
            into,
            size_of::<SlabCopy>(),
            capacity,
            needed,
            slab_bytes,
            figures,
            error,
        )
    };
    assert_eq!(write(ptr::null_mut(), 0), Code::BufferTooShort);
    let mut copies = Vec::with_capacity(1000);
    assert_eq!(write(copies.as_mut_ptr(), 1000), Code::Ok);
    unsafe { copies.set_len(needed) };
    assert!(copies.iter().all(|copy| copy.offset_bytes + copy.bytes <= slab_bytes));
    (copies, figures)
}

/// The values of a prompt take more of the arena than the values of a token, so small states have
/// other offsets.
#[test]
fn a_switch_to_an_arranged_plan_copies_less() {
    let description = MachineDescription {
        struct_bytes: size_of::<MachineDescription>(),
        parameters: MachineParameters::new()
            .with_device_bytes(1 << 20)
            .with_host_bytes(1 << 20)
            .with_chunk_bytes(1024)
            .with_h2d_bytes_per_s(1_000_000_000)
            .with_d2h_bytes_per_s(1_000_000_000)
            .with_transfer_latency_ns(100),
    };
    let machine = made(|to, error| unsafe {
        spillway_machine_new(ptr::null(), &raw const description, to, error)
    })
    .unwrap();
    let plan = |graph: *const Graph| {
        let options = PlanOptions {
            struct_bytes: size_of::<PlanOptions>(),
            budget: c"44KiB".as_ptr(),
            strategy: c"groups".as_ptr(),
            unplaced: 0,
        };
        made(|to, error| unsafe {
            spillway_plan_new(graph, machine, &raw const options, to, error)
        })
        .unwrap()
    };
    let graphs = [graph(9000, 900), graph(1000, 20)];
    let [prompt, token] = graphs.map(|graph| plan(graph));
    let arranged =
        made(|to, error| unsafe { spillway_plan_arranged_after(token, prompt, to, error) })
            .unwrap();
    let (plain, kept) = (switch(prompt, token), switch(prompt, arranged));
    assert!(kept.h2d_bytes < plain.h2d_bytes, "{kept:?} {plain:?}");
    assert!(kept.kept_bytes > plain.kept_bytes, "{kept:?} {plain:?}");
    // In a slab nothing is mapped, and at most as many bytes stay as with chunks.
    let (copies, in_slab) = slab_switch(prompt, arranged);
    assert_eq!(in_slab.mapping_ns, 0);
    assert!(in_slab.h2d_bytes >= kept.h2d_bytes && in_slab.kept_bytes > 0, "{in_slab:?}");
    let uploads = copies.iter().filter(|copy| copy.is_upload == 1).map(|copy| copy.bytes);
    assert_eq!(uploads.sum::<u64>(), in_slab.h2d_bytes);
    let between =
        made(|to, error| unsafe { spillway_plan_between(prompt, token, to, error) }).unwrap();
    let there_and_back = |plan| switch(token, plan).h2d_bytes + switch(plan, token).h2d_bytes;
    assert!(there_and_back(between) < there_and_back(prompt));
    unsafe {
        [prompt, token, arranged, between].into_iter().for_each(|plan| spillway_plan_free(plan));
        graphs.into_iter().for_each(|graph| spillway_graph_free(graph));
        spillway_machine_free(machine);
    }
}
