//! Layers with caches and outputs, through C.

#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]
// SAFETY: throughout, arrays are passed with their lengths, texts end with a zero, and handles are
// from the library.
#![allow(clippy::undocumented_unsafe_blocks)]

use planner_core::MachineParameters;
use spillway_c::error::Code;
use spillway_c::machine::{spillway_machine_free, spillway_machine_new};
use spillway_c::plan::{Figures, spillway_plan_figures, spillway_plan_free};
use spillway_c::streaming::{Layer, spillway_streaming_min_feasible, spillway_streaming_plan};
use spillway_c_types::machine::MachineDescription;
use std::{mem, ptr};

const CHUNK: u64 = 256;

fn layer(cache_bytes: u64, output_bytes: u64) -> Layer {
    Layer {
        struct_bytes: size_of::<Layer>(),
        name: ptr::null(),
        bytes: 4 * CHUNK,
        time_ns: 1000,
        host_ns: 0,
        activation_bytes: 0,
        cache_bytes,
        output_bytes,
    }
}

#[test]
fn caches_stay_and_outputs_are_downloaded() {
    let layers = [layer(3 * CHUNK, 0), layer(0, 0), layer(CHUNK, 300)];
    let description = MachineDescription {
        struct_bytes: size_of::<MachineDescription>(),
        parameters: MachineParameters::new()
            .with_device_bytes(1 << 30)
            .with_host_bytes(1 << 30)
            .with_chunk_bytes(CHUNK)
            .with_h2d_bytes_per_s(1 << 30)
            .with_d2h_bytes_per_s(1 << 30),
    };
    let (mut machine, mut plan, error) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let (mut least_bytes, mut first) = (0, 0);
    unsafe {
        let code =
            spillway_machine_new(c"link".as_ptr(), &raw const description, &raw mut machine, error);
        assert_eq!(code, Code::Ok);
        let (at, count) = (layers.as_ptr(), layers.len());
        let (least, layer) = (&raw mut least_bytes, &raw mut first);
        let code = spillway_streaming_min_feasible(at, count, machine, least, layer, error);
        assert_eq!((code, least_bytes, first), (Code::Ok, (4 + 3 + 1 + 2) * CHUNK, 0));
        let budget = c"min".as_ptr();
        let code = spillway_streaming_plan(at, count, machine, budget, &raw mut plan, error);
        assert_eq!(code, Code::Ok);
        let mut figures: Figures = mem::zeroed();
        figures.struct_bytes = size_of::<Figures>();
        assert_eq!(spillway_plan_figures(plan, &raw mut figures, error), Code::Ok);
        assert_eq!((figures.h2d_bytes, figures.d2h_bytes), (3 * 4 * CHUNK, 300));
        assert_eq!(figures.peak_bytes, least_bytes);
        spillway_plan_free(plan);
        spillway_machine_free(machine);
    }
}
