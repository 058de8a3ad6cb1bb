//! The memory that work needs, and why a plan maps as it runs, through C.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]
// SAFETY: throughout, arrays are passed with their lengths, texts end with a zero, and handles are
// from the library.
#![allow(clippy::undocumented_unsafe_blocks)]

use planner_core::MachineParameters;
use spillway_c::error::Code;
use spillway_c::graph::{
    OpDescription, TensorDescription, spillway_graph_free, spillway_graph_new,
};
use spillway_c::machine::{spillway_machine_free, spillway_machine_new};
use spillway_c::plan::*;
use spillway_c_types::kinds::TEMPORARY;
use spillway_c_types::machine::MachineDescription;
use std::{mem, ptr};

const BYTES: u64 = 8 << 20;

/// Plans one op that writes a tensor, and returns the memory that the work needs and the reason.
fn planned(chunk_bytes: u64, unplaced: u8) -> (u64, String) {
    let (bytes, name, kind) = (BYTES, ptr::null(), TEMPORARY);
    let struct_bytes = size_of::<TensorDescription>();
    let tensor = TensorDescription { struct_bytes, name, bytes, kind };
    let writes = [0];
    let op = OpDescription {
        struct_bytes: size_of::<OpDescription>(),
        name,
        time_ns: 1000,
        workspace_bytes: 0,
        reads: ptr::null(),
        read_count: 0,
        writes: writes.as_ptr(),
        write_count: 1,
        repeatable: 0,
        host_ns: 0,
        collective: 0,
    };
    let description = MachineDescription {
        struct_bytes: size_of::<MachineDescription>(),
        parameters: MachineParameters::new()
            .with_device_bytes(2 * BYTES)
            .with_host_bytes(BYTES)
            .with_chunk_bytes(chunk_bytes)
            .with_h2d_bytes_per_s(1 << 30)
            .with_d2h_bytes_per_s(1 << 30),
    };
    let options = PlanOptions {
        struct_bytes: size_of::<PlanOptions>(),
        budget: ptr::null(),
        strategy: c"in-core".as_ptr(),
        unplaced,
    };
    let (mut graph, mut machine, mut plan) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let (error, ok) = (ptr::null_mut(), |code| assert_eq!(code, Code::Ok));
    unsafe {
        ok(spillway_graph_new(name, &raw const tensor, 1, &raw const op, 1, &raw mut graph, error));
        ok(spillway_machine_new(name, &raw const description, &raw mut machine, error));
        ok(spillway_plan_new(graph, machine, &raw const options, &raw mut plan, error));
        let mut figures: Figures = mem::zeroed();
        figures.struct_bytes = size_of::<Figures>();
        ok(spillway_plan_figures(plan, &raw mut figures, error));
        let (mut text, mut needed) = ([0; 100], 0);
        let (into, capacity) = (text.as_mut_ptr(), text.len());
        ok(spillway_plan_unplaced(plan, into, capacity, &raw mut needed, error));
        if needed > 0 {
            let short = spillway_plan_unplaced(plan, into, needed - 1, &raw mut needed, error);
            assert_eq!(short, Code::BufferTooShort);
        }
        spillway_plan_free(plan);
        spillway_machine_free(machine);
        spillway_graph_free(graph);
        (figures.in_core_peak_bytes, str::from_utf8(&text[..needed]).unwrap().to_owned())
    }
}

#[test]
fn a_plan_says_what_the_work_needs_and_why_it_maps_as_it_runs() {
    assert_eq!(planned(1 << 20, 0), (BYTES, String::new()));
    // A chunk of one byte makes too many objects.
    let reason = "there are too many objects for fixed placements";
    assert_eq!(planned(1, 0), (BYTES, reason.to_owned()));
    assert_eq!(planned(1, 1), (BYTES, String::new()));
}
